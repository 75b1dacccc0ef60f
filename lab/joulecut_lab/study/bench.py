"""The interface of a card to a study; a real and a simulated one are measured alike."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from joulecut_lab.study.cell import Cell
from joulecut_sim.layer import Dtype

Basis = Literal["measured", "simulated"]
DEFAULT_CLOCK = 0  # no request: the driver decides


@dataclass(frozen=True, slots=True)
class Machine:
    """Whose numbers these are. `clocks_mhz` are the card's own, ascending."""

    basis: Basis
    card: str
    uuid: str
    driver: str
    clocks_mhz: tuple[int, ...]
    dtypes: tuple[Dtype, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """The card's sensors now; `energy_j` is a counter that moves in steps."""

    energy_j: float
    clock_mhz: float
    temperature_celsius: float | None
    capped: bool  # a power or thermal limit holds the clock down


@dataclass(frozen=True, slots=True)
class Done:
    """How many passes are done, and when the last of them was seen to end."""

    passes: int
    at_s: float


class Bench(Protocol):
    """Runs a layer over and over, and reads the card meanwhile."""

    machine: Machine

    def prepare(self, cell: Cell) -> str:
        """Sets the layer up; why it cannot be run here (too large), or empty."""
        ...

    def work(self, seconds: float) -> Done:
        """Keeps the card busy without a gap for about so long."""
        ...

    def now_s(self) -> float: ...

    def read(self) -> Reading: ...

    def causes_j(self) -> dict[str, Any]:
        """Joules of one pass by cause, by the names of `Row`; known of a simulated card alone."""
        ...

    def close(self) -> None: ...


class Clocks(Protocol):
    """Setter of the clock of the card on the bench, outside this process."""

    def choices_mhz(self) -> tuple[int, ...]:
        """What may be asked, ascending; empty where nothing may."""
        ...

    def ask(self, clock_mhz: int) -> None:
        """Raises Unavailable where the clock is refused or was lost."""
        ...

    def check(self) -> None:
        """Raises Unavailable where the clock last asked for was lost meanwhile."""
        ...

    def close(self) -> None:
        """Reset the clock. Idempotent."""
        ...


class NoClocks:
    """No setter: the driver's default clock is measured."""

    def choices_mhz(self) -> tuple[int, ...]:
        return ()

    def ask(self, clock_mhz: int) -> None:
        assert clock_mhz == DEFAULT_CLOCK

    def check(self) -> None: ...

    def close(self) -> None: ...
