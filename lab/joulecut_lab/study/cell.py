"""Which layers a study sweeps, and at which clocks: checked before anything runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from joulecut_sim.layer import SIZES, Dtype, Pass, Shape, flops, shape
from joulecut_wire.errors import BadInput
from joulecut_wire.flags import words

GPT = "gpt-"  # what all models are called
SEQUENCE_MAX = 65536  # attention scores of one head are then 8 GB: no card has them all
BATCH_MAX = 4096
CLOCKS_MIN, CLOCKS_USUAL, CLOCKS_MAX = 2, 25, 1000
# Of the highest clock. Below about half of it energy only rises again on every card swept in
# public, and the lowest clocks take ten times as long to measure.
LOWEST_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class Cell:
    """One layer in one data type, swept over clocks."""

    layer: Shape
    dtype: Dtype
    which: Pass

    @property
    def flops(self) -> float:
        return flops(self.layer, self.which)

    def __str__(self) -> str:
        return f"{self.layer.model} s={self.layer.sequence} {self.dtype}"


@dataclass(frozen=True, slots=True)
class Selection:
    """The requested sweep; an empty `clocks_mhz` means `count` clocks spread evenly."""

    models: tuple[str, ...]
    sequences: tuple[int, ...]
    dtypes: tuple[Dtype, ...]
    batch: int
    which: Pass
    count: int
    clocks_mhz: tuple[int, ...] = ()

    def cells(self) -> tuple[Cell, ...]:
        return tuple(
            Cell(shape(model, sequence, self.batch), dtype, self.which)
            for model in self.models
            for sequence in self.sequences
            for dtype in self.dtypes
        )


def models(text: str) -> tuple[str, ...]:
    """By name, or by size alone as people say it: "gpt-125m" is "125M". Raises Fault."""
    named = {name: one for one in SIZES for name in (one, one.removeprefix(GPT))}
    asked = [word.strip() for word in text.split(",")]
    return words(*SIZES)(",".join(named.get(word.lower(), word) for word in asked))


def grid(selection: Selection, supported_mhz: Sequence[int], where: str) -> tuple[int, ...]:
    """The clocks of a sweep, ascending: raising a clock always passes an agent's bounds.

    Raises BadInput on a clock that the card does not list.
    """
    if selection.clocks_mhz:
        for clock in selection.clocks_mhz:
            if clock not in supported_mhz:
                near = min(supported_mhz, key=lambda one: abs(one - clock))
                raise BadInput("--at", f"{where} has no {clock} MHz", f"{near}, for one")
        return selection.clocks_mhz
    usable = [clock for clock in supported_mhz if clock >= LOWEST_SHARE * supported_mhz[-1]]
    count = min(selection.count, len(usable))
    step = (len(usable) - 1) / max(1, count - 1)
    return tuple(usable[round(place * step)] for place in range(count))
