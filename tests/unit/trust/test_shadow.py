"""The verdict on enforcing: each thing that speaks against it is said, and none is forgotten."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.trust.shadow import (
    AGE_S_MAX,
    TIME_ERROR_MAX,
    Observed,
    Promise,
    Promised,
    Score,
    ShadowState,
    from_json,
    scored,
    to_json,
    verdict,
)

NOW_S = 1.8e9
TIMES, POWERS = {"forward": 0.02, "backward": 0.04}, {"forward": 300.0, "backward": 330.0}


def promised(uuid: str, clock_mhz: int) -> Promised:
    return Promised(uuid, clock_mhz, TIMES, POWERS)


PROMISE = Promise(
    job="gpt3",
    shape="s",
    generation=7,
    made_at_unix_s=NOW_S,
    iteration_time_s=2.02,
    energy_j=4000.0,
    default_time_s=2.0,
    default_energy_j=4400.0,
    microbatches=24,
    blocking_power_w=85.0,
    lowered=(promised("a", 1200), promised("b", 1230)),
    default=(promised("a", 1410), promised("b", 1410)),
)
STANDING = ShadowState(PROMISE, baseline_s=2.01, baseline_j=4410.0, slack=0.004)


def score(uuid: str, clock_mhz: int, off: float = 0.005, age_s: float = 60.0) -> Score:
    return Score("gpt3", "s", 7, uuid, clock_mhz, clock_mhz < 1410, off, off, NOW_S - age_s)


CHECKED = (score("a", 1200), score("b", 1230))


def test_all_right_is_advisable() -> None:
    found = verdict(STANDING, CHECKED, NOW_S)
    assert found.yes
    assert found.text == (
        "advisable: 2 scores, predictions checked at 2 of 2 clocks; time error P95 0.5 %; energy "
        "P95 0.5 %; iteration time prediction error 0.5 %; energy prediction error 0.2 %; "
        "baseline steady; SLO slack 0.4 %; ranks reported by the job"
    )


@pytest.mark.parametrize(
    ("state", "scores", "word"),
    [
        (replace(STANDING, promise=None), CHECKED, "nothing was recommended"),
        (STANDING, (), "checked at 0 of 2 clocks"),
        (STANDING, (score("a", 1410), score("b", 1410)), "checked at 0 of 2 clocks"),
        (STANDING, (score("a", 1200, 0.04), score("b", 1230)), "time error P95 4.0 %"),
        (replace(STANDING, baseline_s=None), CHECKED, "baseline not steady"),
        (replace(STANDING, baseline_s=2.2), CHECKED, "prediction error 9.1 %"),
        (replace(STANDING, baseline_j=4900.0), CHECKED, "energy prediction error 10.2 %"),
        (replace(STANDING, slack=-0.01), CHECKED, "SLO slack -1.0 %"),
        (replace(STANDING, doubt="GPU n/0: not controllable"), CHECKED, "not controllable"),
        (STANDING, tuple(replace(one, shape="other") for one in CHECKED), "0 of 2"),
        (STANDING, tuple(replace(one, at_unix_s=NOW_S - AGE_S_MAX - 1) for one in CHECKED), "0 of"),
    ],
)
def test_whatever_speaks_against_is_said(
    state: ShadowState, scores: tuple[Score, ...], word: str
) -> None:
    found = verdict(state, scores, NOW_S)
    assert not found.yes
    assert found.text.startswith("not yet: ")
    assert word in found.text


def test_a_clock_nearly_seen_counts_and_the_newest_score_is_taken() -> None:
    near = (score("a", 1200 - 30, 0.5, age_s=600.0), score("a", 1200 - 30), score("b", 1230))
    assert verdict(STANDING, near, NOW_S).yes
    far = (score("a", 1050), score("b", 1050))
    assert not verdict(STANDING, far, NOW_S).yes


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_a_score_is_what_was_off(slower: float, hungrier: float) -> None:
    """Measured by making the promise true, and then not quite."""
    busy_s = {kind: time_s * slower for kind, time_s in TIMES.items()}
    work_s = 24 * sum(TIMES.values())
    work_j = 24 * sum(TIMES[kind] * POWERS[kind] for kind in TIMES)
    iteration_s = 2.0 * work_s
    power_w = (work_j + 85.0 * (iteration_s - work_s)) / iteration_s
    seen = Observed("a", 1200, busy_s, iteration_s, power_w * hungrier)
    found = scored(PROMISE, PROMISE.lowered[0], seen, NOW_S)
    assert found is not None
    assert found.lowered
    assert found.time_ratio == pytest.approx(1.0 / slower - 1.0)
    assert found.energy_ratio == pytest.approx(1.0 / hungrier - 1.0)


def test_other_kinds_of_work_are_not_scored() -> None:
    seen = Observed("a", 1200, {"forward": 0.02}, 2.0, 200.0)
    assert scored(PROMISE, PROMISE.lowered[0], seen, NOW_S) is None


@given(st.floats(allow_nan=False, allow_infinity=False), st.none() | st.floats(-1, 1))
def test_records_come_back_as_they_were(off: float, energy: float | None) -> None:
    one = replace(CHECKED[0], time_ratio=off, energy_ratio=energy)
    assert from_json(to_json(one)) == one
    assert from_json(to_json(PROMISE)) == PROMISE


def test_records_of_others_are_refused_and_newer_keys_left_out() -> None:
    newer = json.loads(to_json(PROMISE)) | {"colour": "red"}
    assert from_json(json.dumps(newer)) == PROMISE
    for broken in (
        "[]",
        "{}",
        '{"what": "score"}',
        '{"what": "promise", "lowered": 3}',
        "nonsense",
        to_json(CHECKED[0]).replace('"clock_mhz":', '"clock_mhz":1' + 400 * "0"),
        to_json(PROMISE).replace('"energy_j":', '"energy_j":"much",'),
        json.dumps(json.loads(to_json(PROMISE)) | {"default_time_s": "much"}),
        json.dumps(json.loads(to_json(CHECKED[0])) | {"time_ratio": None}),
    ):
        with pytest.raises(ValueError, match="no shadow record"):
            from_json(broken)
    with pytest.raises(ValueError, match="JSON"):
        to_json(replace(CHECKED[0], time_ratio=math.nan))


def test_the_limit_itself_is_still_fine() -> None:
    edge = (score("a", 1200, TIME_ERROR_MAX), score("b", 1230, -TIME_ERROR_MAX))
    assert verdict(STANDING, edge, NOW_S).yes
