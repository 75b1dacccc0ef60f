"""Garbage of a controller goes in the end, whatever was frozen."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from joulecut_controller.garbage import FULL_S, Sweeper


class Knot:
    """Garbage that only a collection can find."""

    def __init__(self) -> None:
        self.itself = self


class Host:
    """A clock that says what the test wants."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.sweeper = Sweeper(lambda: self.now_s)


@pytest.fixture(autouse=True)
def _own_rules() -> Iterator[None]:
    """The collector as other tests know it, whatever happens here."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.freeze()  # as in `conftest`: collections of later tests skip what exists by now


def old_knot() -> "weakref.ref[Knot]":
    """A knot that lived through its youth and was dropped then."""
    knot = Knot()
    gc.collect(1)
    gc.collect(1)
    return weakref.ref(knot)


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


def test_what_lived_through_a_sweep_is_not_lost_for_good() -> None:
    host = Host()
    knot = Knot()
    seen = weakref.ref(knot)
    host.sweeper.settle()
    del knot
    host.now_s += FULL_S
    assert host.sweeper.tend()
    assert seen() is None


def test_a_term_that_ends_leaves_no_garbage() -> None:
    host = Host()
    knot = Knot()
    seen = weakref.ref(knot)
    host.sweeper.freeze()
    del knot
    host.sweeper.settle()
    assert seen() is None
