"""What a reading proves about a GPU's clocks, and to whom they are ascribed."""

import pytest
from draws import SAFE
from hypothesis import example, given
from hypothesis import strategies as st

from joulecut_agent.keeper.evidence import (
    APART_S,
    NO_EVIDENCE,
    READINGS,
    SETTLE_S,
    Reading,
    Verdict,
    none_until_settled,
    verdict,
)

TOP_MHZ, HELD_MHZ, EARLIER_MHZ = 1980, 1200, 1500
WRITTEN_MHZ = (EARLIER_MHZ, HELD_MHZ, TOP_MHZ)
HELD = (HELD_MHZ, HELD_MHZ)
NONE = (0, 0)
CAP = ("sw_power_cap",)


@pytest.mark.parametrize(
    ("reading", "leased_mhz", "whose"),
    [
        (Reading(HELD_MHZ, 1.0), HELD, Verdict.UNCLEAR),
        (Reading(HELD_MHZ + 15, 1.0), HELD, Verdict.UNCLEAR),  # one step of the list
        (Reading(HELD_MHZ - 15, 1.0), HELD, Verdict.UNCLEAR),
        (Reading(1000, 1.0), (900, HELD_MHZ), Verdict.UNCLEAR),  # a clock schedule
        (Reading(EARLIER_MHZ, 1.0), HELD, Verdict.OURS),
        (Reading(EARLIER_MHZ, 1.0, CAP), HELD, Verdict.OURS),
        (Reading(1350, 0.0, ("idle",)), HELD, Verdict.OTHER),  # idle, above a lock of ours
        (Reading(900, 1.0), HELD, Verdict.OTHER),
        (Reading(900, 1.0, CAP), HELD, Verdict.UNCLEAR),
        (Reading(900, 1.0, ("power_profile",)), HELD, Verdict.UNCLEAR),
        (Reading(900, 0.1), HELD, Verdict.UNCLEAR),
        (Reading(TOP_MHZ - 45, 1.0), HELD, Verdict.FREE),
        (Reading(HELD_MHZ, 1.0), NONE, Verdict.OURS),
        (Reading(HELD_MHZ, 1.0, CAP), NONE, Verdict.HIDDEN),
        (Reading(900, 1.0, CAP), NONE, Verdict.HIDDEN),
        (Reading(EARLIER_MHZ + 15, 1.0, CAP), NONE, Verdict.UNCLEAR),  # above each lock of ours
        (Reading(HELD_MHZ, 1.0, ("idle",)), NONE, Verdict.UNCLEAR),
        (Reading(900, 1.0), NONE, Verdict.OTHER),
        (Reading(TOP_MHZ, 1.0), NONE, Verdict.FREE),  # beside it a lock and none look the same
        (Reading(TOP_MHZ, 0.0), NONE, Verdict.UNCLEAR),
        (Reading(210, 0.0), NONE, Verdict.UNCLEAR),
    ],
)
def test_whose_clocks_a_reading_shows(
    reading: Reading, leased_mhz: tuple[int, int], whose: Verdict
) -> None:
    assert verdict(reading, WRITTEN_MHZ, TOP_MHZ, leased_mhz) is whose


readings = st.builds(
    Reading,
    st.integers(200, TOP_MHZ),
    st.floats(0, 1),
    st.lists(st.sampled_from(["idle", *CAP]), max_size=2).map(tuple),
)


@example(Reading(1920, 0.0), [], HELD)  # above its lease, near the default clock, idle
@SAFE
@given(readings, st.lists(st.integers(200, TOP_MHZ)), st.sampled_from([NONE, HELD]))
def test_a_clock_that_was_written_is_never_another_writers(
    reading: Reading, written_mhz: list[int], leased_mhz: tuple[int, int]
) -> None:
    known_mhz = [*written_mhz, reading.clock_mhz]
    assert verdict(reading, known_mhz, TOP_MHZ, leased_mhz) is not Verdict.OTHER


@example([(1.0, Verdict.OURS), (0.0, Verdict.FREE), (1.0, Verdict.OURS), (1.0, Verdict.OURS)])
@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from(Verdict)), max_size=20))
def test_equal_readings_in_a_row_prove_and_nothing_else(
    seen: list[tuple[float, Verdict]],
) -> None:
    """Whatever proves is the last of equal readings, of which READINGS are APART_S apart."""
    evidence, now_s, counted, before = NO_EVIDENCE, 0.0, list[float](), None
    for gap_s, one in seen:
        now_s += gap_s
        if one is not before:
            counted = []
        if now_s >= evidence.next_s:
            counted.append(now_s)
        evidence, before = evidence.after(one, now_s, APART_S), one
        if evidence.proves is not Verdict.UNCLEAR:
            assert evidence.proves is one
            assert len(counted) >= READINGS
            assert counted[-1] - counted[0] >= (READINGS - 1) * APART_S - 1e-6


def test_no_reading_counts_while_a_write_settles() -> None:
    settling = none_until_settled(5.0)
    assert settling.after(Verdict.OTHER, 5.0 + SETTLE_S - 0.01, APART_S) == settling
    assert settling.after(Verdict.OTHER, 5.0 + SETTLE_S, APART_S).verdict is Verdict.OTHER
