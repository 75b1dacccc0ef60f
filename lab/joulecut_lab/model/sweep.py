"""All layouts of a run within given choices, and those that nothing beats.

A space is cut into parts that are evaluated one by one, anywhere, in any order. Impossible shapes
and layouts that do not fit in memory leave no row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from typing import Any, Self

import numpy as np

from joulecut_engine.graph.shape import V_SHAPED
from joulecut_engine.money import Prices
from joulecut_lab.model import formula
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.estimate import BREAKDOWN, ENERGIES
from joulecut_lab.model.run import WORDS, Run
from joulecut_lab.model.runs import Flags, Floats, Runs
from joulecut_lab.model.system import System

ROWS_MAX = 20_000  # of one part: some seconds of work, and a bounded memory
# Parts are cut along these keys, in this order; the others keep equal layouts within one part.
CUT = ("tensor", "pipeline", "context", "microbatch", "expert", "recompute", "clock_mhz")
OBJECTIVES = ("iteration_time_s", "energy_j", "memory_bytes", "money")
# Seconds of the slowest stage and joules of all GPUs and hosts, by part.
TIMES = {f"slowest_stage_{part}_s": part for part in BREAKDOWN}
JOULES = {f"energy_{part}_j": part for part in ENERGIES}
FREE = Prices(0.0, 0.0, 1.0)
FIGURES = (*OBJECTIVES, "tokens_per_s", "mfu", "held_clock_mhz", *TIMES, *JOULES)

Choices = Mapping[str, Sequence[Any]]
Rows = dict[str, Floats]  # one array per key of `Run` and per figure


@dataclass(frozen=True, slots=True)
class Space:
    """A run, and the values that some of its keys may take. `data` is what the others leave.

    Money is that of one iteration, energy of hosts included.
    """

    architecture: Architecture
    system: System
    run: Run
    choices: Choices
    prices: Prices = FREE

    @property
    def size(self) -> int:
        """Combinations, possible or not."""
        return int(np.prod([len(values) for values in self.choices.values()], dtype=np.int64))

    def parts(self) -> Iterator["Space"]:
        """Smaller spaces that together are this one."""
        cut, size = [], self.size
        for key in (*CUT, *self.choices):
            if size > ROWS_MAX and key in self.choices and key not in cut:
                cut.append(key)
                size //= max(1, len(self.choices[key]))
        for values in product(*(self.choices[key] for key in cut)):
            only = {key: (value,) for key, value in zip(cut, values, strict=True)}
            yield replace(self, choices={**self.choices, **only})


@dataclass(frozen=True)
class Layouts:
    """Those that fit: for each key of a run and each figure one array, (layouts,)."""

    columns: Rows
    impossible: int  # combinations of another number of GPUs, or of shares that are not whole
    too_large: int  # layouts that do not fit in memory

    def __len__(self) -> int:
        return len(self.columns["money"])

    @cached_property
    def front(self) -> Self:
        """Those that none beats or equals in every objective, fastest first; of equal ones the
        first.
        """
        best = _front(np.stack([self.columns[name] for name in OBJECTIVES], axis=1))
        columns = {name: column[best] for name, column in self.columns.items()}
        return replace(self, columns=columns)

    @classmethod
    def joined(cls, parts: Sequence["Layouts"]) -> Self:
        columns = {k: np.concatenate([one.columns[k] for one in parts]) for k in _empty()}
        counts = (sum(getattr(one, k) for one in parts) for k in ("impossible", "too_large"))
        return cls(columns, *counts)

    def run(self, i: int) -> Run:
        return Runs({field.name: self.columns[field.name] for field in fields(Run)}).run(i)


def evaluate(space: Space) -> Layouts:
    """Every layout of a part that fits."""
    asked = space.choices.get("clock_mhz", (space.run.clock_mhz,))
    clocks = np.sort(np.array(asked, dtype=np.float64))
    clocks = np.roll(clocks, -1) if len(clocks) > 1 and clocks[0] == 0.0 else clocks  # 0: highest
    runs, size = _shapes(space), space.size
    if not len(runs):
        return Layouts(_empty(), size, 0)
    at_all = Runs({key: np.repeat(column, len(clocks)) for key, column in runs.columns.items()})
    at_all = at_all.at_clock(np.tile(clocks, len(runs)))
    found = formula.evaluate(space.architecture, space.system, at_all)
    energy_j = found.energy_j + found.host_j
    figures: Rows = {
        "iteration_time_s": found.iteration_time_s,
        "energy_j": energy_j,
        "memory_bytes": found.memory_bytes,
        "money": space.prices.cost(found.iteration_time_s, energy_j, at_all.gpus),
        "tokens_per_s": found.tokens_per_s,
        "mfu": found.mfu,
        "held_clock_mhz": found.clock_mhz,
        **{name: found.breakdown_s[part] for name, part in TIMES.items()},
        **{name: found.energy_breakdown_j[part] for name, part in JOULES.items()},
    }
    # A cap makes higher clocks equal to the lowest that it does not reach: one row for them.
    held = found.clock_mhz.reshape(len(runs), len(clocks))
    again = np.concatenate(
        [np.zeros((len(runs), 1), dtype=bool), held[:, 1:] <= clocks[:-1]], axis=1
    ).ravel() & (len(clocks) > 1)
    fits = found.fits & ~again
    columns = {**at_all.columns, **figures}
    rows = {key: np.asarray(column)[fits] for key, column in columns.items()}
    equal = int(again.sum())
    return Layouts(rows, size - len(at_all) + equal, int((~found.fits & ~again).sum()))


def _front(costs: Floats) -> Any:
    """Indices of the front. The row of least normalised sum is on it; it removes what it beats."""
    if not len(costs):
        return np.zeros(0, dtype=np.int64)
    scale = np.maximum(costs.min(axis=0), 1e-300)
    order = np.argsort((costs / scale).sum(axis=1), kind="stable")
    left, front = order, []
    while len(left):
        best = left[0]
        front.append(best)
        beaten = (costs[left] >= costs[best]).all(axis=1)
        left = left[~beaten]
    found = np.array(front)
    return found[np.argsort(costs[found, 0], kind="stable")]


def _shapes(space: Space) -> Runs:
    """Possible runs of a part at any clock."""
    base = {f.name: getattr(space.run, f.name) for f in fields(Run)}
    choices = {k: v for k, v in space.choices.items() if k != "clock_mhz"}
    columns: dict[str, Floats] = {}
    lists = [_coded(key, values) for key, values in choices.items()]
    grids = np.meshgrid(*lists, indexing="ij") if lists else []
    count = grids[0].size if grids else 1
    for key, value in base.items():
        columns[key] = np.repeat(_coded(key, [value]), count)
    columns |= {key: grid.ravel() for key, grid in zip(choices, grids, strict=True)}
    model = space.architecture
    shared = columns["tensor"] * columns["pipeline"] * columns["context"]
    if "data" not in choices:
        columns["data"] = np.floor(columns["gpus"] / shared)
    whole = (columns["data"] >= 1) & (shared * columns["data"] == columns["gpus"])
    whole &= np.mod(model.heads, columns["tensor"]) == 0
    each = np.maximum(columns["data"] * columns["microbatch"], 1.0)
    whole &= np.mod(columns["global_batch"], each) == 0
    runs = Runs(columns).take(whole & ~_twice(columns))
    return runs.take(runs.possible(model)) if len(runs) else runs


def _twice(columns: Rows) -> Flags:
    """Layouts that another one of the grid stands for already: a single stage has no schedule,
    V-shaped schedules have their own chunks, and one GPU has nothing to share out.
    """
    more_chunks = columns["chunks"] > columns["chunks"].min()
    other_schedule = columns["schedule"] > columns["schedule"].min()
    folded = np.isin(columns["schedule"], [WORDS["schedule"].index(word) for word in V_SHAPED])
    again = (columns["pipeline"] == 1) & (other_schedule | more_chunks)
    again |= folded & more_chunks
    parallel, zero = columns["sequence_parallel"], columns["zero"]
    again |= (columns["tensor"] == 1) & (parallel > parallel.min())
    single = columns["data"] * columns["context"] == 1
    return np.asarray(again | (single & (zero > zero.min())))


def _coded(key: str, values: Sequence[Any]) -> Floats:
    words = WORDS.get(key)
    return np.array([words.index(v) if words else v for v in values], dtype=np.float64)


def _empty() -> Rows:
    names = (*(field.name for field in fields(Run)), *FIGURES)
    return {name: np.zeros(0) for name in names}
