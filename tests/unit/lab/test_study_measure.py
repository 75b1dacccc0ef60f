"""When a measurement is believed: against a bench whose truth is known."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_lab.study.bench import Done, Machine, Reading
from joulecut_lab.study.cell import Cell
from joulecut_lab.study.measure import QUICK, Rule, measure
from joulecut_wire.assumed import COUNTER_STEP_S
from joulecut_wire.errors import Unavailable


class KnownBench:
    """Draws `power_w(t)` and takes `pass_s` a pass; its counter steps every 100 ms."""

    machine = Machine("measured", "card", "GPU-x", "1", (900,), ("fp16",))

    def __init__(self, power_w: Callable[[float], float], pass_s: float = 0.003) -> None:
        self._power_w = power_w
        self._pass_s = pass_s
        self._at_s = 17.0
        self._energy_j = self._shown_j = 100.0

    def prepare(self, cell: Cell) -> str:
        return ""

    def work(self, seconds: float) -> Done:
        until_s = self._at_s + seconds
        while self._at_s < until_s:
            step_s = min(0.005, until_s - self._at_s)
            before = int(self._at_s / COUNTER_STEP_S)
            self._energy_j += self._power_w(self._at_s) * step_s
            self._at_s += step_s
            if int(self._at_s / COUNTER_STEP_S) > before:
                self._shown_j = self._energy_j
        passes = int(self._at_s / self._pass_s)
        return Done(passes, passes * self._pass_s)

    def now_s(self) -> float:
        return self._at_s

    def read(self) -> Reading:
        return Reading(self._shown_j, 900.0, 50.0, capped=False)

    def causes_j(self) -> dict[str, float]:
        return {}

    def close(self) -> None: ...


@settings(max_examples=20)
@given(st.floats(50.0, 700.0), st.floats(1e-4, 1.5))
def test_steady_work_is_measured_right(power_w: float, pass_s: float) -> None:
    """Whatever a pass takes: a hundredth of a counter step, or fifteen of them."""
    found = measure(KnownBench(lambda _: power_w, pass_s), Rule())
    assert found.stable
    assert found.windows == Rule().windows
    assert found.power_w == pytest.approx(power_w, rel=0.004)
    assert found.time_s == pytest.approx(pass_s, rel=1e-6)
    assert found.energy_j == found.time_s * found.power_w


def test_a_card_that_warms_up_is_waited_for() -> None:
    """Ten watts of leakage arrive within the first minute; only then is it stable."""
    began_s = 17.0
    found = measure(KnownBench(lambda t: 210.0 - 40.0 * 2.0 ** (-(t - began_s) / 12.0)), Rule())
    assert found.stable
    assert found.windows > Rule().windows + 2
    assert found.power_w == pytest.approx(210.0, rel=0.015)


def test_what_never_settles_is_marked_and_ends() -> None:
    found = measure(KnownBench(lambda t: 200.0 + 50.0 * (int(t / 5.0) % 2)), Rule())
    assert not found.stable
    assert found.windows == Rule().windows_max
    assert found.power_spread > Rule().tolerance


def test_quick_takes_less_and_asks_less() -> None:
    bench = KnownBench(lambda _: 100.0)
    assert measure(bench, QUICK).stable
    assert bench.now_s() - 17.0 < 3.0


def test_a_counter_that_stands_still_or_falls_is_an_error() -> None:
    with pytest.raises(Unavailable, match="stood still"):
        measure(KnownBench(lambda _: 0.0), QUICK)
    with pytest.raises(Unavailable, match="fell"):
        measure(KnownBench(lambda t: 100.0 if t < 18.0 else -1e4), QUICK)
