"""Who is slow, why, and what the others burn meanwhile."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_lab.audit.auditor import Auditor
from joulecut_lab.audit.finding import Audit, Cause
from joulecut_lab.audit.lockstep import compare
from joulecut_lab.audit.reading import Frame, GpuName, GpuReading

STEP_S = 60.0


def gpu(
    number: int,
    clock_mhz: float = 1410.0,
    power_w: float = 380.0,
    *reasons: str,
    told: bool = True,
    busy: float = 0.98,
    work: float | None = None,
    limit_w: float = 400.0,
    on_purpose: bool = False,
) -> GpuReading:
    return GpuReading(
        f"g{number}",
        "job",
        None,
        power_w,
        clock_mhz,
        busy,
        work,
        frozenset(reasons) if told else None,
        limit_w,
        on_purpose,
    )


def audit(*steps: list[GpuReading]) -> Audit:
    auditor = Auditor()
    for number, readings in enumerate(steps):
        auditor.take(Frame(number * STEP_S, STEP_S, tuple(readings)))
    names = {one.uuid: GpuName(one.uuid, "n/0", "A100") for one in steps[0]}
    return auditor.finish(names, {})


def steady(*readings: GpuReading) -> Audit:
    return audit(*[list(readings)] * 20)


@pytest.mark.parametrize(
    ("reasons", "cause"),
    [
        (("sw_power_cap",), "power cap"),
        (("sw_thermal", "sw_power_cap"), "thermal"),
        (("hw_thermal", "hw_slowdown"), "thermal"),
        (("hw_power_brake", "hw_slowdown"), "power brake"),
        (("hw_slowdown",), "hardware slowdown"),
        (("applications_clocks",), "clock lock"),
        ((), "clock lock"),
    ],
)
def test_the_driver_says_why(reasons: tuple[str, ...], cause: Cause) -> None:
    found = steady(gpu(0), gpu(1), gpu(2), gpu(3, 1200.0, 300.0, *reasons))
    [slow] = found.slow
    assert (slow.uuid, slow.cause, slow.share) == ("g3", cause, 1.0)
    assert (slow.clock_mhz, slow.usual_clock_mhz) == (1200.0, 1410.0)


def test_a_lower_limit_is_named() -> None:
    others = [gpu(n) for n in range(3)]
    found = steady(*others, gpu(3, 1200.0, 300.0, "sw_power_cap", limit_w=300.0))
    assert found.slow[0].text == "power limit 300 W, others 400 W"


def test_a_clock_that_moves_without_a_reason_stays_unknown() -> None:
    steps = [
        [gpu(0), gpu(1), gpu(2), gpu(3, clock_mhz, 300.0)] for clock_mhz in (1200.0, 1290.0) * 10
    ]
    [slow] = audit(*steps).slow
    assert slow.cause == "unknown"


def test_all_under_one_lock_show_against_another_job_on_the_same_model() -> None:
    free = replace(gpu(9), owner="another")
    found = steady(free, *[gpu(n, 1110.0, 280.0) for n in range(4)])
    assert {one.cause for one in found.slow} == {"clock lock"}
    assert len(found.slow) == 4
    assert not steady(free, *[gpu(n, 1110.0, 280.0, on_purpose=True) for n in range(4)]).slow
    assert not steady(free, *[gpu(n, 1110.0, 400.0, "sw_power_cap") for n in range(4)]).slow


def test_a_brake_counts_without_anybody_to_compare_with() -> None:
    [slow] = steady(gpu(0, 1350.0, 200.0, "hw_power_brake")).slow
    assert slow.cause == "power brake"


def test_equal_gpus_waste_nothing_by_variability() -> None:
    [job] = steady(*[gpu(n, 1410.0 - 5 * n, 380.0 - n) for n in range(4)]).jobs
    assert job.variability.joules == 0.0
    assert job.variability.basis == "measured"


def test_gpus_that_do_different_work_are_not_compared() -> None:
    others = [gpu(0, power_w=390.0), gpu(1, power_w=250.0), gpu(2, power_w=320.0)]
    [job] = steady(*others, gpu(3, 1200.0, 300.0)).jobs
    assert job.variability.joules is None
    assert "do not do the same work" in job.variability.text


def test_how_much_of_the_card_works_says_more_than_power() -> None:
    others = [gpu(n, power_w=250.0 + 60 * n, work=0.4) for n in range(3)]
    found = compare([*others, gpu(3, 1200.0, 240.0, work=0.39)])
    assert found.alike


@given(st.lists(st.tuples(st.floats(900, 1410), st.floats(50, 400)), min_size=1, max_size=9))
def test_bloat_is_never_negative_nor_more_than_what_is_drawn(
    members: list[tuple[float, float]],
) -> None:
    readings = [gpu(n, clock, power) for n, (clock, power) in enumerate(members)]
    found = compare(readings)
    if found is None:
        assert len(members) < 3
        return
    assert 0.0 <= found.bloat_w <= sum(power for _, power in members)
    assert found.bloat_w == 0.0 or found.slow
