"""Findings of a self-test from evidence alone: what was not measured never passes, and no reading
that a sound card may give is an alarm."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.nvml.card import Identity
from joulecut_agent.selftest import judge
from joulecut_agent.selftest.evidence import Change, Evidence, Sample
from joulecut_cli.selftest.report import CardReport, screen, to_json

CLOCKS = tuple(range(210, 1411, 15))
CARD = Identity(0, "GPU-1", 0, "00:10.0", "580.1", "96.0", (1, 1))
NEEDS_A_WRITE = {
    "permission", "set latency", "locks", "reset", "every clock", "other writers",
    "silent tester", "at the end",
}  # fmt: skip


def _sample(
    at_s: float, energy_j: float | None, power_w: float = 50.0, **changed: object
) -> Sample:
    sample = Sample(at_s, "watched", 210, power_w, None, energy_j, 0.0, ("idle",), 400.0)
    return replace(sample, **changed)


def _counted(step_s: float, watts: float, seconds: float, every_s: float = 0.02) -> list[Sample]:
    """A counter that moves every `step_s`, of a card that draws 50 W."""
    times_s = [n * every_s for n in range(int(seconds / every_s))]
    return [_sample(t, watts * step_s * int(t / step_s + 1e-9)) for t in times_s]


def _evidence(samples: list[Sample], **changed: object) -> Evidence:
    seen = Evidence(CARD, CARD, "NVIDIA A100", CLOCKS, samples=samples)
    for name, value in changed.items():
        setattr(seen, name, value)
    return seen


def _verdicts(seen: Evidence) -> dict[str, str]:
    return {one.name: one.verdict for one in judge.findings(seen)}


def test_nothing_measured_is_nothing_passed() -> None:
    verdicts = _verdicts(_evidence([]))
    assert {verdicts[name] for name in NEEDS_A_WRITE} == {judge.UNANSWERED}
    assert judge.WRONG not in verdicts.values()


@given(
    step_s=st.sampled_from([0.02, 0.05, 0.1, 0.12]),
    every_s=st.sampled_from([0.01, 0.02, 0.03]),
    error=st.floats(-0.05, 0.05),
)
def test_a_sound_counter_is_no_alarm(step_s: float, every_s: float, error: float) -> None:
    seen = _evidence(_counted(step_s, 50.0 * (1.0 + error), 8.0, every_s))
    verdicts = _verdicts(seen)
    assert verdicts["counter step"] in {judge.OK, judge.UNANSWERED}
    assert verdicts["counter scope"] == judge.OK
    assert judge.facts(seen, 1.7e9).counter_scope == "gpu"


@given(step_s=st.floats(0.3, 1.5), more=st.floats(1.3, 5.0))
def test_a_counter_of_other_steps_or_scope_is_found(step_s: float, more: float) -> None:
    assert _verdicts(_evidence(_counted(step_s, 50.0, 10.0)))["counter step"] == judge.WRONG
    seen = _evidence(_counted(0.1, 50.0 * more, 10.0))
    assert _verdicts(seen)["counter scope"] == judge.WRONG
    module = [replace(one, module_w=50.0 * more) for one in seen.samples]
    assert _verdicts(_evidence(module))["counter scope"] == judge.NOTE


@pytest.mark.parametrize(("reasons", "verdict"), [((), "wrong"), (("sw_power_cap",), "note")])
def test_a_low_clock_under_load(reasons: tuple[str, ...], verdict: str) -> None:
    busy = [
        _sample(n * 0.02, None, clock_mhz=900, busy_ratio=1.0, reasons=reasons)
        for n in range(100, 300)
    ]
    assert _verdicts(_evidence(busy))["clock under load"] == verdict


def test_a_cap_excuses_no_clock_above_the_lock() -> None:
    capped = ("sw_power_cap",)
    above = [Change(1400, 600, True, None, 1400, capped)] * 6
    below = [Change(1200, 1410, True, None, 1200, capped)] * 6
    followed = [Change(1200, 600, True, 0.03, 600, capped)] * 6
    assert _verdicts(_evidence([], changes=above))["locks"] == judge.WRONG
    assert _verdicts(_evidence([], changes=[*below, *followed]))["locks"] == judge.OK


@given(hole=st.sampled_from(CLOCKS[1:-1]), top=st.integers(40, len(CLOCKS)))
def test_a_hole_is_no_cap(hole: int, top: int) -> None:
    reached = {
        mhz: Change(0, mhz, True, 0.03 if mhz <= CLOCKS[top - 1] else None, mhz) for mhz in CLOCKS
    }
    capped = _evidence([], grid=dict(reached))
    expected = judge.OK if top == len(CLOCKS) else judge.NOTE
    assert _verdicts(capped)["every clock"] == expected
    assert judge.facts(capped, 1.7e9).unreached_mhz == ()
    if hole < CLOCKS[top - 1]:
        reached[hole] = Change(0, hole, True, None, hole - 15)
        seen = _evidence([], grid=reached)
        assert _verdicts(seen)["every clock"] == judge.WRONG
        assert judge.facts(seen, 1.7e9).unreached_mhz == (hole,)


def test_one_line_for_each_question_and_the_same_in_json() -> None:
    seen = _evidence(_counted(0.1, 90.0, 8.0))
    card = CardReport(seen, judge.findings(seen), judge.facts(seen, 1.7e9))
    lines = list(screen([card]))
    assert sum(line.startswith("  !!") for line in lines) == len(card.wrong) == 1
    assert lines[-1].startswith("1 assumption wrong")
    shown = to_json([card], simulated=True)
    assert (shown["basis"], shown["wrong"]) == ("simulated", 1)
    assert len(shown["cards"][0]["findings"]) == len(judge.QUESTIONS)
