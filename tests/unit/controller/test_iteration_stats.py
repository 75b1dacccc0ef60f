"""What the ledger counts, and what it must not."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.observe.baseline import Recalled
from joulecut_controller.observe.iteration_stats import PENDING_MAX, Fresh, IterationStats, Measured
from joulecut_controller.observe.measurement_window import (
    ITERATIONS_KEPT,
    KINDS_MAX,
    RECENT,
)
from joulecut_controller.ports import ArrivedReport
from joulecut_controller.view import GpuView
from joulecut_wire.errors import Unavailable
from joulecut_wire.messages import (
    GpuDescription,
    GpuSnapshot,
    IterationReport,
    Lease,
    OperationReport,
)

UUIDS = ("a", "b")
STAGES = (("a",), ("b",))
LAG_S = 0.2


class Job:
    """A job with a stage a GPU that is looked at every `interval_s`."""

    def __init__(
        self, *, interval_s: float = 1.0, duration_s: float = 0.1, uuids: Iterable[str] = UUIDS
    ) -> None:
        self.uuids = tuple(uuids)
        self.stats = IterationStats(lag_s=LAG_S)
        self.interval_s, self.duration_s = interval_s, duration_s
        self.now_s, self.iteration, self.ended_s = 100.0, 0, 100.0
        self.locks = dict.fromkeys(self.uuids, 0)
        self.shown_mhz: dict[str, int] = {}  # in place of the lock or the default clock
        self.energy_j = dict.fromkeys(self.uuids, 0.0)
        self.power_w = 200.0
        self.peer_s: float | None = None
        self.silent: set[str] = set()
        self.busy_ratio: dict[str, float] = {}  # of GPUs at another pace than usual

    def reports(self) -> list[ArrivedReport]:
        made = []
        while self.ended_s + self.duration_s <= self.now_s:
            self.ended_s += self.duration_s
            made += [
                ArrivedReport(
                    IterationReport(
                        "job",
                        uuid,
                        stage,
                        self.iteration,
                        self.duration_s,
                        (
                            OperationReport(
                                "forward", 4, 0.4 * self.duration_s * self.busy_ratio.get(uuid, 1.0)
                            ),
                        ),
                        self.peer_s,
                    ),
                    self.ended_s,
                )
                for stage, uuid in enumerate(self.uuids)
                if uuid not in self.silent
            ]
            self.iteration += 1
        return made

    def gpus(self) -> dict[str, GpuView]:
        made = {}
        for index, uuid in enumerate(self.uuids):
            lock = self.locks[uuid]
            lease = Lease("job", 1, 1, 0, lock, 9.0) if lock else None
            snapshot = GpuSnapshot(
                uuid,
                energy_j=self.energy_j[uuid],
                clock_sm_mhz=self.shown_mhz.get(uuid, lock or 1410),
                lease=lease,
            )
            description = GpuDescription(uuid, index, "sim", (900, 1200, 1410))
            made[uuid] = GpuView(description, "n:1", "n", snapshot, 0.0)
        return made

    def looks(self, count: int, *, loads: bool = True) -> Measured:
        return self.fresh_looks(count, loads=loads)[0]

    def fresh_looks(self, count: int, *, loads: bool = True) -> tuple[Measured, Fresh]:
        stages = tuple((uuid,) for uuid in self.uuids)
        for _ in range(count):
            self.now_s += self.interval_s
            for uuid in self.uuids:
                self.energy_j[uuid] += self.power_w * self.interval_s
            found = self.stats.fold(stages, self.reports(), self.gpus(), self.now_s, loads=loads)
        return found


def test_a_mean_that_reaches_back_over_a_change_of_clocks_counts_for_neither() -> None:
    job = Job(interval_s=5.0)
    changed_s = job.now_s + 60.0
    ended = 0
    for number in range(1, 13):
        job.now_s += 10.0
        if job.now_s == changed_s:
            job.locks = dict.fromkeys(UUIDS, 1200)
            job.stats.changed(job.locks, changed_s - 2.0)
        reports = [
            ArrivedReport(IterationReport("job", uuid, stage, number, 0.1), job.now_s, span_s=10.0)
            for stage, uuid in enumerate(UUIDS)
        ]
        _, fresh = job.stats.fold(STAGES, reports, job.gpus(), job.now_s)
        if fresh.chunk is not None:
            ended += fresh.chunk.ran
            assert not fresh.chunk.begun_s - LAG_S < changed_s - 2.0 < fresh.chunk.at_s
    assert ended >= 4


def test_one_missing_counter_means_no_sum() -> None:
    job = Job()
    original = job.gpus

    def without_b() -> dict[str, GpuView]:
        made = original()
        seen = made["b"]
        made["b"] = GpuView(seen.description, "n:1", "n", GpuSnapshot("b"), 0.0)
        return made

    job.gpus = without_b
    measured = job.looks(15)
    assert measured.current.energy_j is None


@given(
    change_after=st.integers(1, 12),
    before_s=st.floats(0.05, 0.4),
    after_s=st.floats(0.05, 0.4),
    own_hand=st.booleans(),
)
def test_no_window_mixes_two_sets_of_clocks(
    change_after: int, before_s: float, after_s: float, own_hand: bool
) -> None:
    """Whatever the phase of looks and iterations, each window holds one pace only."""
    job = Job(duration_s=before_s)
    job.looks(change_after)
    job.locks = dict.fromkeys(UUIDS, 1200)
    job.duration_s = after_s
    if own_hand:
        job.stats.changed(job.locks, job.now_s)
    measured = job.looks(8)
    for window, pace_s in ((measured.baseline, before_s), (measured.current, after_s)):
        if window is not None:
            assert abs(window.time_mean_s - pace_s) < 1e-9
            assert window.time_sd_s < 1e-9


def test_lost_datagrams_cost_their_reports_and_nothing_else() -> None:
    job = Job()
    job.silent = {"b"}
    measured = job.looks(20)
    assert abs(measured.current.time_mean_s - 0.1) < 1e-9


def test_a_stale_gpu_holds_everything_back() -> None:
    """Without a snapshot nobody knows under which clocks an iteration ran."""
    job = Job()
    original = job.gpus

    def unseen() -> dict[str, GpuView]:
        made = original()
        made["b"] = GpuView(made["b"].description, "n:1", "n", None, float("inf"))
        return made

    job.gpus = unseen
    measured = job.looks(10)
    assert measured.current is None
    assert measured.baseline is None


def test_a_store_that_fails_when_a_job_begins_costs_that_look_alone() -> None:
    def recall(_: str) -> Recalled | None:
        if failing:
            raise Unavailable("the store is away")
        return None

    job, failing = Job(), True
    job.stats = IterationStats(lag_s=LAG_S, recall=recall)
    for _ in range(2):
        with pytest.raises(Unavailable):
            job.looks(1)
    failing = False
    assert job.looks(20).baseline is not None


def test_memory_is_bounded() -> None:
    job = Job(interval_s=60.0, duration_s=0.04)
    measured = job.looks(3)
    track = job.stats._track
    assert track.window.iterations <= ITERATIONS_KEPT
    assert len(track.pending) <= PENDING_MAX
    assert len(track.open) <= 16
    assert measured.current.iterations <= RECENT


def test_a_jobs_own_words_are_bounded_too() -> None:
    """Names of kinds are the job's: one that counts them up must not fill the controller."""
    job = Job()
    job.looks(5)
    for number in range(job.iteration, job.iteration + 500):
        job.now_s += 1.0
        reported = [
            ArrivedReport(
                IterationReport(
                    "job",
                    uuid,
                    stage,
                    number,
                    job.duration_s,
                    (OperationReport(f"step {number}", 4, 0.4),),
                ),
                job.now_s,
            )
            for stage, uuid in enumerate(UUIDS)
        ]
        measured, _ = job.stats.fold(STAGES, reported, job.gpus(), job.now_s)
    assert all(len(load.busy_s) <= KINDS_MAX for load in measured.loads)
    assert all("forward" in load.busy_s for load in measured.loads), "known before, still counted"


def test_a_repeated_iteration_takes_no_more_memory() -> None:
    job = Job()
    job.peer_s = 0.2
    job.looks(3)
    job.silent = {"b"}
    job.now_s += 1.0
    repeated = job.reports()[-1:] * 10_000
    job.stats.fold(STAGES, repeated, job.gpus(), job.now_s)
    [open_one] = [
        one for one in job.stats._track.open.values() if one.number == repeated[0].report.iteration
    ]
    assert open_one.peers_s == {"a": 0.2}


def test_a_gpu_that_recovers_just_before_default_clocks_is_found_there() -> None:
    """Two windows show it, and neither of them alone."""
    job = Job()
    job.looks(10)
    for mhz, ratio in ((1200, 1.0), (1200, 0.8), (0, 0.8)):
        job.locks, job.busy_ratio = dict.fromkeys(UUIDS, mhz), {"b": ratio}
        job.stats.changed(job.locks, job.now_s)
        found = [job.fresh_looks(1)[1].gpu_shift for _ in range(3)]
        assert any(found) == (mhz == 0)


def test_a_gpu_that_recovers_while_clocks_change_is_found_though_its_own_was_not_lowered() -> None:
    """The GPU that others wait for had its default clock, and gets a lower one as it recovers."""
    job = Job(uuids="abcd")
    job.looks(10)
    found = []
    for d_mhz, ratio in ((0, 1.15), (1350, 1.0)):
        job.locks, job.busy_ratio = dict.fromkeys("abc", 1100) | {"d": d_mhz}, {"d": ratio}
        job.stats.changed(job.locks, job.now_s)
        found = [job.fresh_looks(1)[1].gpu_shift for _ in range(6)]
    assert [shift.uuids for shift in found if shift] == [("d",)]


def test_the_default_clock_is_the_one_that_the_job_runs_at() -> None:
    job = Job()
    job.looks(5)
    assert job.looks(1).default_clock_mhz == 1410.0
    job.shown_mhz = dict.fromkeys(UUIDS, 1365)  # warm
    measured = job.looks(20)
    assert measured.default_clock_mhz == 1365.0
    assert measured.default_clock_ratio == pytest.approx(1365 / 1410)
