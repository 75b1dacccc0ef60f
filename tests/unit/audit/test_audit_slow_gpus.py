"""Who is slow, and why."""

import pytest

from joulecut_lab.audit.auditor import Auditor
from joulecut_lab.audit.finding import Audit, Cause
from joulecut_lab.audit.reading import Frame, GpuName, GpuReading

STEP_S = 60.0


def gpu(
    number: int,
    clock_mhz: float = 1410.0,
    power_w: float = 380.0,
    *reasons: str,
    told: bool = True,
    on_purpose: bool = False,
) -> GpuReading:
    words = frozenset(reasons) if told else None
    return GpuReading(
        f"g{number}", "job", None, power_w, clock_mhz, 0.98, None, words, 400.0, on_purpose
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
        ((), "unknown"),
    ],
)
def test_the_driver_says_why(reasons: tuple[str, ...], cause: Cause) -> None:
    found = steady(gpu(0), gpu(1), gpu(2), gpu(3, 1200.0, 300.0, *reasons))
    [slow] = found.slow
    assert (slow.uuid, slow.cause, slow.share) == ("g3", cause, 1.0)
    assert (slow.clock_mhz, slow.usual_clock_mhz) == (1200.0, 1410.0)


def test_without_event_reasons_the_cause_is_unknown_and_said_so() -> None:
    [slow] = steady(*[gpu(n, told=False) for n in range(3)], gpu(3, 1200.0, told=False)).slow
    assert (slow.cause, slow.text) == ("unknown", "no series has clock event reasons")


def test_a_few_slow_steps_few_gpus_and_clocks_on_purpose_are_no_finding() -> None:
    usual, slow = [gpu(n) for n in range(3)], gpu(3, 1200.0)
    assert not audit(*[[*usual, gpu(3)]] * 40, *[[*usual, slow]] * 3).slow
    assert not steady(gpu(0), slow).slow
    assert not steady(*usual, gpu(3, 1200.0, on_purpose=True)).slow
