"""Which jobs are timed by their power, and when."""

import itertools
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from joulecut_agent.jobs.power_source import (
    CHECK_S,
    QUIET_S,
    RETRY_S,
    STEP_S,
    TURN_S,
    WINDOW_S,
    PowerSource,
)
from joulecut_agent.jobs.rate_source import Fault, Submission

PERIOD_S = 4.0
LATER_S = 1000.0


@dataclass
class Batch:
    uuid: str
    power_w: list[tuple[float, float]]


@dataclass
class Node:
    """Two GPUs of a Slurm job, on a virtual clock. `watts` are those of each half of a period."""

    now_s: float = 0.0
    watts: tuple[float, float] = (350.0, 150.0)
    clocks: Hashable = 0
    jobs: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"4711": ("GPU-a", "GPU-b")})
    taken: list[Submission] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    streams: list[frozenset[str]] = field(default_factory=list)
    compared: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._taken_s = 0.0
        self.source = PowerSource(
            self, jobs=lambda: self.jobs, clocks=lambda _: self.clocks, subscribe=self._subscribe,
            unsubscribe=lambda _: None, refused=self.faults.append,
            compared=lambda uuid, period_s: self.compared.append((uuid, round(period_s, 2))),
        )  # fmt: skip

    def submit(self, one: Submission | Fault) -> bool:
        assert isinstance(one, Submission)
        self.taken.append(one)
        return True

    def take(self) -> list[Batch]:
        steps = range(round(self._taken_s / STEP_S), round(self.now_s / STEP_S))
        self._taken_s = self.now_s
        at_s = [(step + 0.5) * STEP_S for step in steps]
        power = [(one, self.watts[one % PERIOD_S > PERIOD_S / 2.0]) for one in at_s]
        return [Batch(uuid, power) for uuid in self.streams[-1]]

    def run(self, duration_s: float) -> None:
        for _ in range(round(duration_s / TURN_S)):
            self.now_s += TURN_S
            self.source.turn(self.now_s)

    def _subscribe(self, uuids: Collection[str]) -> "Node":
        self.streams.append(frozenset(uuids))
        self._taken_s = self.now_s
        return self


def test_a_quiet_job_is_reported_with_the_mean_of_its_iterations() -> None:
    node = Node()
    node.run(QUIET_S - TURN_S)
    assert node.streams == []
    node.run(WINDOW_S + 2.0 * TURN_S)
    durations = {round(one.report.duration_s, 2) for one in node.taken}
    assert (durations, {one.report.job for one in node.taken}) == ({PERIOD_S}, {"4711"})
    assert {one.report.uuid for one in node.taken} == {"GPU-a", "GPU-b"}
    ended = sorted({one.ended_s for one in node.taken})
    assert all(abs(b - a - PERIOD_S) < 0.1 for a, b in itertools.pairwise(ended))
    first = max(one.report.iteration for one in node.taken)
    node.taken.clear()
    node.run(60.0)
    assert node.taken
    assert min(one.report.iteration for one in node.taken) == first + 1
    assert not node.faults


def test_another_source_ends_it_and_its_silence_begins_it_again() -> None:
    node = Node()
    node.run(QUIET_S + WINDOW_S / 2.0)
    node.source.heard("GPU-b", 1.0, node.now_s)
    node.run(QUIET_S - 2.0 * TURN_S)
    assert not node.taken
    node.run(WINDOW_S + 5.0 * TURN_S)
    assert node.taken


def test_no_block_reaches_over_a_change_of_clocks() -> None:
    node = Node()
    node.run(QUIET_S + WINDOW_S / 2.0)
    node.clocks = 1
    node.run(WINDOW_S - 2.0 * TURN_S)
    assert not node.taken
    node.run(5.0 * TURN_S)
    assert node.taken


def test_power_without_a_period_is_refused_with_a_line_and_tried_again_later() -> None:
    node = Node(watts=(300.0, 300.0))
    node.run(QUIET_S + WINDOW_S + 3.0 * TURN_S)
    assert not node.taken
    (fault,) = node.faults
    assert "the power is constant" in fault.text
    node.watts = (350.0, 150.0)
    node.run(RETRY_S - 5.0 * TURN_S)
    assert not node.taken
    node.run(WINDOW_S + 10.0 * TURN_S)
    assert node.taken


def test_the_next_job_on_the_gpus_is_another_one() -> None:
    node = Node()
    node.run(QUIET_S + WINDOW_S / 2.0)
    node.jobs = {"4712": ("GPU-a",)}
    node.run(QUIET_S + WINDOW_S / 2.0)
    assert not node.taken
    node.run(WINDOW_S)
    assert {(one.report.job, one.report.uuid) for one in node.taken} == {("4712", "GPU-a")}


def test_a_job_that_another_source_reports_for_is_compared_once_an_hour() -> None:
    node = Node()
    for _ in range(round((CHECK_S + QUIET_S + 3.0 * WINDOW_S) / 10.0)):
        node.source.heard("GPU-a", 1.0, node.now_s)
        node.run(10.0)
        if node.now_s < CHECK_S:
            assert node.compared in ([], [("GPU-a", PERIOD_S)])
    assert node.compared == [("GPU-a", PERIOD_S)] * 2
    assert not node.taken
    assert not node.faults
    node.run(2.0 * QUIET_S + WINDOW_S)
    assert node.taken, "its silence does not wait for the next hour"
