"""Applications never swept, among made-up ones whose shares follow from their counters."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecut_engine.estimate import application
from joulecut_engine.estimate.application import Counters, Swept
from joulecut_engine.estimate.physics import Sweep

CLOCKS = np.arange(510.0, 1411.0, 30.0)
TOP = float(CLOCKS[-1])
STATIC_W = 60.0


def counters(memory: float, engine: float = 1.0) -> Counters:
    return Counters(engine, 0.95 * engine, 0.9 * memory * engine, 0.6 * (1 - memory) * engine)


def swept(memory: float, engine: float = 1.0, probe_w: float = 300.0) -> Swept:
    """Of the time the engine is active, `memory` follows bandwidth and the rest the clock."""
    stretch = TOP / CLOCKS
    saturated = np.maximum(1.0, 1000.0 / CLOCKS)
    time_s = 10.0 * ((1 - engine) + engine * ((1 - memory) * stretch + memory * saturated))
    shape = CLOCKS * (1 + 1.0e-3 * np.maximum(0.0, CLOCKS - 1100.0)) ** 2
    power_w = STATIC_W + (probe_w - STATIC_W) * shape / shape[-1]
    return Swept(counters(memory, engine), Sweep(CLOCKS, time_s, power_w))


KNOWN = [
    swept(memory, engine, 200.0 + 15.0 * i)
    for i, (memory, engine) in enumerate(
        [(m, e) for m in (0.0, 0.1, 0.4, 0.6, 0.9, 1.0) for e in (1.0, 0.6, 0.3)]
    )
]
MODEL = application.fit(KNOWN)


@pytest.mark.parametrize("engine", [1.0, 0.5])
@pytest.mark.parametrize("memory", [0.05, 0.5, 0.95])
def test_an_application_never_swept_is_predicted(memory: float, engine: float) -> None:
    one = swept(memory, engine, 333.0)
    ratio = MODEL.time_ratio(one.counters, CLOCKS)
    real = one.sweep.time_s / one.sweep.time_s[-1]
    assert float(np.abs(ratio / real - 1).mean()) < 0.05
    power_w = MODEL.power_w(one.counters, 333.0, CLOCKS)
    assert float(np.abs(power_w / one.sweep.power_w - 1).mean()) < 0.05


def test_what_hardly_uses_the_engine_hardly_follows_the_clock() -> None:
    ratio = MODEL.time_ratio(counters(0.0, engine=0.02), CLOCKS)
    assert ratio[0] < 1.06


def test_the_probe_is_met_at_the_highest_clock() -> None:
    assert MODEL.time_ratio(counters(0.3), np.array([TOP]))[0] == pytest.approx(1.0)
    assert MODEL.physics_w(250.0, np.array([TOP]))[0] == pytest.approx(250.0)


@settings(max_examples=50)
@given(*[st.floats(0.0, 1.0)] * 4, st.floats(1.0, 1000.0))
def test_no_counters_make_an_absurd_answer(
    engine: float, sm: float, memory: float, pipes: float, probe_w: float
) -> None:
    seen = Counters(engine, sm, memory, pipes)
    ratio = MODEL.time_ratio(seen, CLOCKS)
    assert (np.diff(ratio) <= 1e-12).all(), "a higher clock is not slower"
    assert (ratio >= 1.0 - 1e-9).all()
    assert (ratio <= TOP / CLOCKS + 1e-9).all(), "nothing slows down more than the clock does"
    power_w = MODEL.power_w(seen, probe_w, CLOCKS)
    assert (power_w > 0.0).all()
    assert np.isfinite(power_w).all()


def test_the_same_bytes_on_every_run() -> None:
    again = application.fit(KNOWN)
    asked = counters(0.33, 0.8)
    assert again.time_ratio(asked, CLOCKS).tobytes() == MODEL.time_ratio(asked, CLOCKS).tobytes()
    assert (
        again.power_w(asked, 222.0, CLOCKS).tobytes()
        == MODEL.power_w(asked, 222.0, CLOCKS).tobytes()
    )


def test_one_application_teaches_nothing() -> None:
    with pytest.raises(ValueError, match="at least two"):
        application.fit(KNOWN[:1])


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf")])
def test_a_counter_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="finite and at least 0"):
        Counters(1.0, 1.0, wrong, 0.0)
