"""Somebody else's lock is not a default clock, whoever set it and whenever."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.observe.external_clock_lock import (
    READINGS,
    SITE_LOCK,
    SLACK_RATIO,
    ExternalClockLocks,
)
from joulecut_controller.observe.iteration_stats import IterationStats, Measured
from joulecut_controller.ports import ArrivedReport
from joulecut_controller.view import GpuView
from joulecut_wire.messages import (
    POWER_PROFILE,
    GpuDescription,
    GpuSnapshot,
    IterationReport,
    Lease,
    OperationReport,
)

FREE_MHZ, LOCKED_MHZ = 1410, 1200
UUIDS = ("a", "b")
STAGES = (("a",), ("b",))


def view(uuid: str, snapshot: GpuSnapshot) -> GpuView:
    clocks = (900, LOCKED_MHZ, FREE_MHZ)
    description = GpuDescription(
        uuid, UUIDS.index(uuid), "sim", clocks, power_limit_default_w=400.0
    )
    return GpuView(description, "n:1", "n", snapshot, 0.0)


class Job:
    """Two GPUs, an iteration every 0.1 s that takes longer under a lock; looked at each second."""

    def __init__(self) -> None:
        self.stats = IterationStats(lag_s=0.2)
        self.now_s = self.ended_s = 100.0
        self.iteration, self.energy_j = 0, 0.0
        self.foreign_mhz = FREE_MHZ  # of GPU a
        self.words: dict[str, object] = {}  # of its snapshot
        self.lease_mhz = 0

    def looks(self, count: int) -> Measured:
        for _ in range(count):
            self.now_s += 1.0
            self.energy_j += 200.0
            measured, _ = self.stats.fold(STAGES, self._reports(), self._gpus(), self.now_s)
        return measured

    @property
    def duration_s(self) -> float:
        return 0.1 * FREE_MHZ / min(self.foreign_mhz, self.lease_mhz or FREE_MHZ)

    def _reports(self) -> list[ArrivedReport]:
        made = []
        while self.ended_s + self.duration_s <= self.now_s:
            self.ended_s += self.duration_s
            operations = (OperationReport("forward", 4, 0.4 * self.duration_s),)
            made += [
                ArrivedReport(
                    IterationReport("job", u, s, self.iteration, self.duration_s, operations),
                    self.ended_s,
                )
                for s, u in enumerate(UUIDS)
            ]
            self.iteration += 1
        return made

    def _gpus(self) -> dict[str, GpuView]:
        held = self.lease_mhz
        lease = Lease("job", 1, 1, 0, held, 9.0) if held else None
        clock = min(self.foreign_mhz, held or FREE_MHZ)
        a = GpuSnapshot("a", energy_j=self.energy_j, clock_sm_mhz=clock, lease=lease)
        a = replace(a, **self.words)
        b = GpuSnapshot("b", energy_j=self.energy_j, clock_sm_mhz=FREE_MHZ)
        return {"a": view("a", a), "b": view("b", b)}


def test_a_room_that_takes_clocks_slowly_is_no_lock() -> None:
    """A step of the boost clock each half minute, far beyond what a lock may hide in."""
    job = Job()
    for mhz in range(FREE_MHZ, LOCKED_MHZ, -15):
        job.foreign_mhz = mhz
        assert job.looks(30).external_lock == ""


def test_a_lock_that_comes_later_leaves_the_baseline_as_it_was() -> None:
    job = Job()
    before = job.looks(20).baseline
    assert before.time_mean_s == pytest.approx(0.1)
    job.foreign_mhz = LOCKED_MHZ
    during = job.looks(30)
    assert during.baseline.time_mean_s == pytest.approx(0.1), "no iteration under the lock counts"
    assert during.current.time_mean_s == pytest.approx(0.1 * FREE_MHZ / LOCKED_MHZ, rel=1e-3)
    assert not during.at_default
    assert during.external_lock == "GPU n/0 is locked at 1200 MHz by another writer"
    job.foreign_mhz = FREE_MHZ
    after = job.looks(30)
    assert after.at_default
    assert after.external_lock == ""
    assert after.baseline.time_mean_s == pytest.approx(0.1)


def test_a_vendors_power_profile_is_a_state_of_the_card_and_no_lock() -> None:
    """Its lower clock is the default that clocks are planned on, whenever it came."""
    job = Job()
    job.foreign_mhz, job.words = LOCKED_MHZ, {"event_reasons": (f"{POWER_PROFILE}max_q",)}
    from_the_start = job.looks(30)
    assert from_the_start.external_lock == ""
    assert from_the_start.baseline.time_mean_s == pytest.approx(0.1 * FREE_MHZ / LOCKED_MHZ)
    later = Job()
    later.looks(20)
    later.foreign_mhz, later.words = LOCKED_MHZ, job.words
    assert later.looks(30).external_lock == ""


def test_a_lock_that_stood_before_us_gives_no_baseline_and_says_why() -> None:
    """The agent tells it; the clock alone could be the site's own default."""
    job = Job()
    job.foreign_mhz, job.words = LOCKED_MHZ, {"slow_reason": SITE_LOCK}
    during = job.looks(30)
    assert during.baseline is None
    assert "is locked at 1200 MHz" in during.external_lock
    job.foreign_mhz, job.words = FREE_MHZ, {}
    after = job.looks(20)
    assert after.baseline.time_mean_s == pytest.approx(0.1)


def test_a_site_default_that_its_agent_knows_is_a_default_clock() -> None:
    job = Job()
    job.foreign_mhz = LOCKED_MHZ
    measured = job.looks(20)
    assert measured.at_default
    assert measured.baseline is not None
    assert measured.external_lock == ""


def test_a_default_that_turns_out_to_be_a_lock_takes_its_baseline_with_it() -> None:
    job = Job()
    job.foreign_mhz = LOCKED_MHZ
    assert job.looks(20).baseline is not None
    job.foreign_mhz = FREE_MHZ
    measured = job.looks(READINGS + 1)
    assert measured.baseline is None
    measured = job.looks(20)
    assert measured.baseline.time_mean_s == pytest.approx(0.1)


def test_an_agent_that_stands_back_is_believed_unless_the_gpu_runs_free() -> None:
    job = Job()
    job.words = {"backoff_s": 60.0}
    assert job.looks(20).baseline is not None, "a reset by Slurm leaves default clocks"
    job = Job()
    job.words, job.foreign_mhz = {"backoff_s": 60.0}, LOCKED_MHZ
    assert job.looks(20).baseline is None


@pytest.mark.parametrize(
    "words",
    [
        {"event_reasons": ("sw_power_cap",)},
        {"event_reasons": ("hw_thermal",)},
        {"slow_reason": "power_profile"},
        {"power_average_w": 396.0, "power_limit_enforced_w": 400.0},
        {"event_reasons": ("idle",)},
        {"utilization_gpu_ratio": 0.2},
    ],
)
def test_a_clock_that_something_else_lowers_is_nobodys_lock(words: dict[str, object]) -> None:
    job = Job()
    job.looks(10)
    job.foreign_mhz, job.words = LOCKED_MHZ, words
    measured = job.looks(20)
    assert measured.external_lock == ""
    assert measured.at_default


@pytest.mark.parametrize("first", [True, False])
def test_our_own_power_limit_is_no_lock_and_its_end_takes_no_baseline(*, first: bool) -> None:
    """The draw is below the limit for moments, and the driver's reason flickers."""
    job = Job()
    if not first:
        job.looks(20)
    job.foreign_mhz = LOCKED_MHZ
    job.words = {"power_limit_enforced_w": 300.0, "power_limit_kept_w": 300.0}
    limited = job.looks(20)
    assert limited.external_lock == ""
    job.foreign_mhz, job.words = FREE_MHZ, {}
    free = job.looks(20)
    assert free.external_lock == ""
    assert limited.baseline is not None
    assert free.baseline is not None


def test_one_odd_reading_starts_no_new_window() -> None:
    job = Job()
    before = job.looks(10)
    job.words = {"clock_sm_mhz": LOCKED_MHZ}
    during = job.looks(1)
    job.words = {}
    after = job.looks(10)
    assert during.external_lock == after.external_lock == ""
    assert after.since_s == before.since_s


@given(
    st.lists(
        st.tuples(st.integers(300, 1410), st.booleans(), st.sampled_from(["", SITE_LOCK])),
        max_size=60,
    )
)
def test_it_holds_only_what_is_below_what_was_seen_free(
    readings: list[tuple[int, bool, str]],
) -> None:
    """Whatever is shown: a GPU is taken for held only at a clock that was seen, and below what
    it ran at freely, unless its agent says so.
    """
    locks, seen = ExternalClockLocks(), set()
    for second, (mhz, leased, slow) in enumerate(readings):
        lease = Lease("job", 1, 1, 0, mhz, 9.0) if leased else None
        shown = GpuSnapshot("a", clock_sm_mhz=mhz, lease=lease, slow_reason=slow)
        seen.add(mhz)
        locks.update({"a": view("a", shown)}, {"a": mhz if leased else 0}, float(second))
        held = locks.held_mhz.get("a")
        if leased:
            assert held is None
        if held is not None:
            assert held in seen
            assert locks.doubt
            assert held < FREE_MHZ * (1.0 - SLACK_RATIO)


def test_a_clock_that_was_just_coming_back_is_taken_for_nothing() -> None:
    """A new leader meets GPUs whose lease of the old one has just run out."""
    locks, rose = ExternalClockLocks(), []
    for second, clock_mhz in enumerate((LOCKED_MHZ, FREE_MHZ, FREE_MHZ, FREE_MHZ, FREE_MHZ)):
        shown = {"a": view("a", GpuSnapshot("a", clock_sm_mhz=clock_mhz))}
        locks.update(shown, {"a": 0}, float(second))
        rose.append(locks.rose)
    assert not any(rose)
    assert not locks.held_mhz
    assert not locks.doubt
