"""Many runs as columns, so that the closed form costs one pass of numpy for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.run import WORDS, Run, misfit

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Runs:
    """One array per key of `Run`; words are indices into `WORDS`, flags are 0 or 1."""

    columns: dict[str, Floats]

    @staticmethod
    def of(runs: Sequence[Run]) -> "Runs":
        columns = {}
        for field in fields(Run):
            values = [getattr(run, field.name) for run in runs]
            if field.name in WORDS:
                values = [WORDS[field.name].index(value) for value in values]
            columns[field.name] = np.array(values, dtype=np.float64)
        return Runs(columns)

    def __len__(self) -> int:
        return len(self.columns["gpus"])

    def __getattr__(self, name: str) -> Floats:
        if name == "columns" or name not in self.columns:  # asked while a copy is being made
            raise AttributeError(name)
        return self.columns[name]

    @property
    def microbatches(self) -> Floats:
        return self.global_batch / (self.data * self.microbatch)

    @property
    def tokens(self) -> Floats:
        """Of a microbatch on one GPU."""
        return self.microbatch * self.sequence / self.context

    @property
    def apart(self) -> Floats:
        """GPUs over which norms and inputs of blocks are split."""
        return np.where(self.sequence_parallel > 0, self.tensor, 1.0)

    @property
    def folded(self) -> Flags:
        """Schedules whose first stage holds the last part as well."""
        return self.word("schedule", "zb-v") | self.word("schedule", "dualpipe-v")

    @property
    def expert_parts(self) -> Floats:
        """GPUs that share one expert; see `Run`."""
        usual = np.where(self.expert > 1, 1.0, self.tensor)
        return np.where(self.expert_tensor > 0, self.expert_tensor, usual)

    @property
    def shards(self) -> Floats:
        """GPUs over which ZeRO shards."""
        whole = self.data * self.context
        return np.where(self.shard > 0, self.shard, whole)

    @property
    def expert_copies(self) -> Floats:
        """GPUs that hold the same experts."""
        return self.tensor * self.data * self.context / (self.expert * self.expert_parts)

    @property
    def expert_shards(self) -> Floats:
        """Of these, those over which ZeRO shards."""
        near = self.shards * self.tensor / (self.expert * self.expert_parts)
        return np.clip(near, 1.0, self.expert_copies)

    def word(self, key: str, value: str) -> Flags:
        """Which runs have this word."""
        return np.asarray(self.columns[key] == WORDS[key].index(value))

    def run(self, i: int) -> Run:
        keys: dict[str, Any] = {}
        for field in fields(Run):
            value = float(self.columns[field.name][i])
            if field.name in WORDS:
                keys[field.name] = WORDS[field.name][int(value)]
            elif field.type is bool or field.type == "bool":
                keys[field.name] = bool(value)
            elif field.type is float or field.type == "float":
                keys[field.name] = value
            else:
                keys[field.name] = int(value)
        return Run(**keys)

    def take(self, which: Any) -> "Runs":
        return Runs({name: column[which] for name, column in self.columns.items()})

    def at_clock(self, clock_mhz: Floats | float) -> "Runs":
        clocks = np.broadcast_to(np.asarray(clock_mhz, dtype=np.float64), (len(self),))
        return Runs({**self.columns, "clock_mhz": clocks})

    def possible(self, architecture: Architecture) -> Flags:
        """Which runs have a shape that can be; memory is not looked at."""
        found = [misfit(self.run(i), architecture) is None for i in range(len(self))]
        return np.array(found, dtype=np.bool_)
