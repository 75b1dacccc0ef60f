"""Under a clock program every clock between its lowest and its highest is ours."""

from dataclasses import replace

import pytest

from joulecut_agent.control import drift
from joulecut_agent.control.drift import TICKS, Memory, order_of
from joulecut_agent.control.slowdown_notice import notice_of
from joulecut_wire.messages import GpuSnapshot, Lease

LEASE = Lease("demo", 1, 1, 0, 1410, 60.0, None, 900)
BUSY = GpuSnapshot("GPU-a", clock_sm_mhz=1410, utilization_gpu_ratio=1.0)


def _cause(*clocks_mhz: int, lease: Lease = LEASE, default_mhz: int = 1980) -> str:
    memory, cause = Memory(), ""
    order = order_of(lease, default_mhz, since_s=0.0, fresh=False)
    for n, clock_mhz in enumerate(clocks_mhz):
        reading = replace(BUSY, clock_sm_mhz=clock_mhz)
        memory, cause = drift.look(memory, reading, order, 10.0 + n)
    return cause


@pytest.mark.parametrize(
    ("clocks_mhz", "cause"),
    [
        ((1410, 900, 1410, 900, 900, 900), ""),
        ((900,) * (TICKS + 2), ""),
        ((1200,) * (TICKS + 2), ""),
        ((600,) * (TICKS + 2), "not_reached"),
        ((900, *[600] * (TICKS + 2)), "external_writer"),
        ((1600,) * (TICKS + 2), "external_writer"),
        ((1980,) * (TICKS + 2), "reset"),
    ],
)
def test_clocks_of_a_schedule_are_no_drift(clocks_mhz: tuple[int, ...], cause: str) -> None:
    assert _cause(*clocks_mhz) == cause


def test_without_a_schedule_a_lower_clock_still_is() -> None:
    assert _cause(1410, *[900] * (TICKS + 2), lease=replace(LEASE, clock_lowest_mhz=0))


def test_a_low_step_is_not_slow_without_our_doing() -> None:
    order = order_of(LEASE, 1980, since_s=0.0, fresh=False)
    capped = replace(BUSY, clock_sm_mhz=900, event_reasons=("sw_power_cap",))
    assert drift.slow_reason(capped, order) == ""
    assert drift.slow_reason(replace(capped, clock_sm_mhz=700), order) == "power_cap"


def test_a_health_check_reads_the_lowest_clock() -> None:
    assert notice_of(LEASE, "", 1980, 0.0).max_slowdown_ratio == pytest.approx(
        1980 / 900 - 1, abs=1e-3
    )
