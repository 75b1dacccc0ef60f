"""When everything that lives is looked through: never by itself, and always in the end."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from joulecut_controller.garbage import (
    FULL_S,
    GROWTH_BYTES_MIN,
    GROWTH_RATIO,
    GROWTH_RATIO_WHOLE,
    Sweeper,
)


class Knot:
    """Garbage that only a collection can find."""

    def __init__(self) -> None:
        self.itself = self


class Host:
    """A clock and a memory that say what the test wants."""

    def __init__(self, resident: int = 2**30) -> None:
        self.now_s, self.resident = 100.0, resident
        self.sweeper = Sweeper(lambda: self.now_s, lambda: self.resident)


@pytest.fixture(autouse=True)
def _own_rules() -> Iterator[None]:
    """The collector as other tests know it, whatever happens here."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.fixture
def full() -> Iterator[list[int]]:
    """Grows by one with each full collection."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            seen.append(info["collected"])

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


def old_knot() -> "weakref.ref[Knot]":
    """A knot that lived through its youth and was dropped then."""
    knot = Knot()
    gc.collect(1)
    gc.collect(1)
    return weakref.ref(knot)


def test_however_much_lives_nothing_looks_through_it_by_itself(full: list[int]) -> None:
    many = [[number] for number in range(1000)]
    Host().sweeper.settle()
    del full[:]
    kept = [[one] for one in many for _ in range(300)]  # the interpreter's own rule does: below
    assert full == []
    gc.set_threshold(*gc.get_threshold()[:2], 10)
    again = [[one] for one in many for _ in range(300)]
    assert full
    assert len(kept) == len(again)


def test_old_garbage_goes_when_it_is_time() -> None:
    host = Host()
    host.sweeper.settle()
    knot = old_knot()
    host.now_s += FULL_S - 1.0
    assert not host.sweeper.tend()
    assert knot() is not None
    host.now_s += 1.0
    assert host.sweeper.tend()
    assert knot() is None
    assert not host.sweeper.tend(), "once, until it is time again"


@pytest.mark.parametrize("resident", [GROWTH_BYTES_MIN, 2**30])
def test_old_garbage_goes_when_memory_has_grown(resident: int) -> None:
    host = Host(resident)
    host.sweeper.settle()
    knot = old_knot()
    host.resident += max(GROWTH_BYTES_MIN, int(GROWTH_RATIO * resident))
    assert not host.sweeper.tend()
    host.resident += 1
    assert host.sweeper.tend()
    assert knot() is None
    assert not host.sweeper.tend(), "what is left now is measured against"


def test_what_lived_through_a_sweep_is_not_lost_for_good() -> None:
    host = Host(GROWTH_BYTES_MIN)
    knot = Knot()
    seen = weakref.ref(knot)
    host.now_s += FULL_S
    assert host.sweeper.tend()
    del knot
    host.now_s += FULL_S
    assert host.sweeper.tend()
    assert seen() is not None, "passed over"
    host.resident += int(GROWTH_RATIO_WHOLE * GROWTH_BYTES_MIN) + 1
    assert host.sweeper.tend()
    assert seen() is None, "the process has doubled"


def test_a_term_that_ends_leaves_no_garbage() -> None:
    host = Host()
    knot = Knot()
    seen = weakref.ref(knot)
    host.sweeper.freeze()
    del knot
    host.sweeper.settle()
    assert seen() is None
