"""Clock schedules: a real keeper over pretended cards, with time and marks as the test says."""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from keeper_board import Board
from keeper_requests import apply_of

from joulecut_agent.control import mark_schedule
from joulecut_agent.control.clock_schedule import ClockSchedules, clocks_of, refuse_schedule
from joulecut_agent.control.iteration_starts import IterationStarts
from joulecut_agent.control.timed_schedule import SetLatencies
from joulecut_agent.counters import Counters
from joulecut_agent.keeper import protocol as wire
from joulecut_agent.keeper.bounds import Bounds
from joulecut_agent.keeper.client import KeeperClient
from joulecut_agent.keeper.journal import Journal
from joulecut_agent.keeper.keeper import Keeper
from joulecut_agent.keeper.lease import HOLD_S_MAX, STEP_S
from joulecut_agent.keeper.requests import Renew, Step
from joulecut_agent.keeper.settings import Settings
from joulecut_agent.ports.failure import Transient
from joulecut_wire.messages import GpuSnapshot, NodeSnapshot, ScheduleStep, Setting, TimedStep
from joulecut_wire.metrics import CONTROL_STEPS
from joulecut_wire.reports import Mark

A, B = "GPU-a", "GPU-b"
REST = 1410
EDGE = (  # as a second clock for the first forward and the last backward would be
    ScheduleStep("forward", 900, microbatch=1),
    ScheduleStep("backward", REST, microbatch=7),
)


@dataclass
class Cards(Board):
    """Idle GPUs; the next `failures` locks of those that are `blocked` fail."""

    busy: bool = False
    blocked: set[str] = field(default_factory=set)
    failures: int = 99

    def __post_init__(self) -> None:
        self.fail = self._failed

    def _failed(self, call: str, uuid: str) -> Transient | None:
        if call != "lock" or uuid not in self.blocked or not self.failures:
            return None
        self.failures -= 1
        return Transient("busy", "busy")

    @property
    def writes(self) -> int:
        return sum(call.startswith("lock") for call in self.calls)


class Line:
    """Stands where a socket to a keeper does."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.answer = b""

    def settimeout(self, _: float) -> None:
        return

    def send(self, raw: bytes) -> int:
        self.answer = wire.encode_reply(self.keeper.handle(*wire.decode_request(raw)))
        return len(raw)

    def recv(self, _: int) -> bytes:
        return self.answer

    def close(self) -> None:
        return


class Node:
    """Keeper, client and programs of one node; `now_s` is what time it is."""

    def __init__(self, folder: Path) -> None:
        self.now_s, self.folder, self.cards, self.counters = 1000.0, folder, Cards(), Counters()
        self.generation = 0
        self.latencies = SetLatencies()
        self.client = KeeperClient("")
        self.client.watch(lambda: (A, B))
        self.begin_agent()
        self.begin()

    def begin(self, bounds: Bounds | None = None) -> None:
        self.keeper = Keeper(
            Settings(str(self.folder), bounds or Bounds(min_dwell_s=0)), self.cards
        )
        self.client.attach(Line(self.keeper))
        self.client.refresh()

    def begin_agent(self) -> None:
        self.starts = IterationStarts()
        self.schedules = ClockSchedules(
            self.client, self.counters, self.starts, lambda _: self.latencies
        )

    def order(self, *settings: Setting, ttl_s: float = 60.0, job: str = "demo") -> list[str]:
        self.generation += 1
        clocks = {s.uuid: (s.clock_min_mhz, s.clock_max_mhz) for s in settings}
        schedules = {s.uuid: clocks_of(s) for s in settings}
        command = apply_of(1, job, self.generation, ttl_s, clocks, schedules=schedules)
        reasons = [slot.reason for slot in self.client.ask(command).slots]
        if not any(reasons):
            self.schedules.apply(job, self.generation, settings)
        self.client.refresh()
        return reasons

    def step(self, uuid: str, mhz: int, generation: int | None = None, job: str = "demo") -> str:
        number = self.generation if generation is None else generation
        command = Step(job, number, uuid, mhz, HOLD_S_MAX)
        return self.client.ask(command).slots[0].reason

    def mark(
        self, kind: str, microbatch: int = 0, iteration: int = 1, *, at: str = "begin",
        uuid: str = A, job: str = "demo",
    ) -> str:  # fmt: skip
        return self.schedules.on_mark(Mark(1, job, uuid, at, kind, 0, microbatch, iteration, 5))

    def wait(self, wait_s: float, *, agent: bool = True) -> None:
        """Keeper and agent wake when they have something to do."""
        until_s = self.now_s + wait_s
        while self.now_s < until_s:
            due_s = min(self.keeper.due_s(), self.schedules.due_s() if agent else math.inf)
            self.now_s = min(max(due_s, self.now_s + 1e-4), until_s)
            if agent:
                self.schedules.turn()
            self.keeper.tick()
        self.client.refresh()
        self.schedules.follow_leases()

    @property
    def steps(self) -> dict[str, int]:
        return {labels[0]: int(n) for labels, n in self.counters.counts(CONTROL_STEPS.name)}

    def mhz(self, uuid: str = A) -> int:
        return self.cards.locked.get(uuid, (0, 0))[1]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    found: list[Node] = []
    monkeypatch.setattr(time, "monotonic", lambda: found[0].now_s if found else 1000.0)
    found.append(Node(tmp_path))
    return found[0]


def _setting(uuid: str = A, schedule: tuple[ScheduleStep, ...] = EDGE, low_mhz: int = 0) -> Setting:
    return Setting(uuid, REST, low_mhz, None, schedule, 0.5)


def test_every_microbatch_is_the_rest_of_them(node: Node) -> None:
    steps = (
        ScheduleStep("f", 900),
        ScheduleStep("f", 1200, 3),
        ScheduleStep("f", REST, at_end=True),
    )
    assert node.order(_setting(schedule=steps)) == [""]
    for microbatch, then in ((0, 900), (3, 1200), (4, 900)):
        node.now_s += 1.0
        node.mark("f", microbatch)
        assert node.mhz() == then
        node.now_s += 1.0
        node.mark("f", microbatch, at="end")
        assert node.mhz() == REST


def test_a_raise_is_in_force_when_its_operation_begins_and_a_step_down_follows_it(
    node: Node,
) -> None:
    node.latencies = SetLatencies(0.01, 0.03)
    assert node.order(_setting()) == [""]
    for iteration, late_s in enumerate((0.0, 0.02, -0.02, 0.0)):
        node.mark("forward", 1, iteration)
        assert node.mhz() == 900
        node.wait(0.9)
        assert node.mhz() == 900
        node.wait(0.1 + late_s)
        assert node.mhz() == (REST if iteration else 900), "nothing is known of the first one"
        node.mark("backward", 7, iteration)
        assert node.mhz() == REST
        node.wait(2.0)
        assert node.mhz() == REST, "no step down before its mark"


def test_marks_that_stop_before_a_raise_do_not_delay_it(node: Node) -> None:
    assert node.order(_setting()) == [""]
    for mark in (("forward", 1), ("backward", 7)):
        node.mark(*mark)
        node.wait(1.0)
    node.mark("forward", 1, 2)
    node.wait(1.0)
    assert node.mhz() == REST


def test_the_keeper_steps_only_within_the_schedule_of_a_live_lease(node: Node) -> None:
    assert node.order(_setting(), _setting(B, ())) == ["", ""]
    for uuid, mhz, generation, job in (
        (A, 600, 1, "demo"), (A, 1200, 1, "demo"), (A, 0, 1, "demo"), (B, 900, 1, "demo"),
        (A, 900, 0, "demo"), (A, 900, 2, "demo"), (A, 900, 1, "other"), ("GPU-x", 900, 1, "demo"),
    ):  # fmt: skip
        assert (
            node.step(uuid, mhz, generation, job)
            == f"{mhz} MHz is not in a clock schedule in force"
        )
    assert node.cards.locked == {A: (0, REST), B: (0, REST)}
    assert node.step(A, 900) == ""
    assert node.order(Setting(A, 1200)) == [""]
    assert node.mhz() == 1200
    assert node.step(A, 900) == "900 MHz is not in a clock schedule in force"
    node.wait(61.0)
    assert "not in a clock schedule" in node.step(A, 1200)
    assert not node.cards.locked


def test_steps_down_have_a_pace_and_steps_up_never_wait(node: Node) -> None:
    assert node.order(_setting()) == [""]
    assert node.step(A, 900) == ""
    assert node.step(A, 900) == "", "where it is already is no step down"
    assert node.step(A, REST) == ""
    assert node.step(A, 900) == f"two steps down within {STEP_S:g} s"
    assert node.mhz() == REST
    node.now_s += STEP_S
    assert node.step(A, 900) == ""
    assert node.step(A, REST) == ""


@pytest.mark.parametrize(
    ("bounds", "program", "reason"),
    [
        (Bounds(clock_min_mhz=1000), EDGE, "900 MHz is below the site's 1000 MHz"),
        (Bounds(), (ScheduleStep("f", 901),), "901 MHz is not a supported clock"),
        (Bounds(), (ScheduleStep("f", 0),), "0 MHz is not a supported clock"),
        (Bounds(clock_max_mhz=1300), EDGE, "1410 MHz is above the site's 1300 MHz"),
    ],
)
def test_the_lowest_clock_counts_for_the_bounds(
    node: Node, bounds: Bounds, program: tuple[ScheduleStep, ...], reason: str
) -> None:
    node.begin(bounds)
    assert node.order(_setting(schedule=program)) == [reason]
    assert not node.cards.locked


def test_a_schedule_below_its_own_range_is_refused(node: Node) -> None:
    assert node.order(_setting(low_mhz=1200)) == ["900 MHz is outside 1200 to 1410 MHz"]


def test_a_schedule_lowers_from_the_start_as_far_as_pace_is_concerned(node: Node) -> None:
    node.begin(Bounds(min_dwell_s=5.0))
    assert node.order(_setting()) == [""]
    assert "dwell: 5 s" in node.order(_setting())[0]
    assert node.order(Setting(A, REST)) == [""], "the way up never waits"


def test_an_order_that_fails_goes_back_to_the_step_in_force(node: Node) -> None:
    assert node.order(_setting()) == [""]
    assert node.step(A, 900) == ""
    node.cards.blocked = {B}
    assert "reverted" in node.order(Setting(A, 1200), Setting(B, 600))[0]
    assert node.cards.locked == {A: (0, 900)}
    node.generation -= 1
    assert node.step(A, REST) == "", "and the program goes on"
    node.cards.blocked = set()
    assert node.step(A, 900) == f"two steps down within {STEP_S:g} s"
    node.now_s += STEP_S
    assert node.step(A, 900) == ""
    node.generation += 1
    assert node.order(Setting(A, REST)) == [""], "the same clocks as where the program rests"
    assert node.mhz() == REST


def test_a_step_that_fails_leaves_what_was_in_force_or_restores(node: Node) -> None:
    assert node.order(_setting()) == [""]
    node.cards.blocked, node.cards.failures = {A}, 1
    assert "was not set" in node.step(A, 900)
    assert node.mhz() == REST
    assert node.step(A, 900) == ""
    node.cards.failures = 2
    assert "was not set" in node.step(A, REST)
    assert not node.cards.locked, "the way back failed as well: restored"
    assert node.keeper.state.gpu(A).lease is None


def test_silence_of_the_job_is_no_slow_gpu(node: Node) -> None:
    assert node.order(_setting()) == [""]
    node.mark("forward", 1)
    assert node.mhz() == 900
    node.wait(mark_schedule.SILENT_S - 0.1)
    assert node.mhz() == 900
    node.wait(0.2)
    assert node.mhz() == REST
    assert node.steps == {"accepted": 1, "rested": 1}
    node.wait(1.0)
    node.mark("forward", 1, 2)
    assert node.mhz() == 900, "and it goes on when marks do"


@pytest.mark.parametrize(("iteration_s", "patience_s"), [(0.2, 1.0), (3.0, 6.0), (12.0, 24.0)])
def test_two_iterations_without_a_mark_are_silence(
    node: Node, iteration_s: float, patience_s: float
) -> None:
    low = (ScheduleStep("forward", 900, 1), ScheduleStep("backward", 900, 7))
    assert node.order(_setting(schedule=low)) == [""]
    for iteration in range(1, 5):
        node.now_s += iteration_s / 2
        node.mark("backward", 7, iteration)
        node.now_s += iteration_s / 2
        node.mark("forward", 1, iteration)
    assert node.client.ask(Renew(1, "demo", 1, 60.0)).slots[0].accepted
    node.wait(patience_s - 0.05)
    assert node.mhz() == 900
    node.wait(0.1)
    assert node.mhz() == REST


def test_what_an_agent_before_left_low_is_let_rest(node: Node) -> None:
    assert node.order(_setting()) == [""]
    node.mark("forward", 1)
    node.begin_agent()
    node.wait(HOLD_S_MAX)
    assert node.mhz() == REST
    assert node.mark("forward", 1) == ""
    assert node.mhz() == REST, "a mark alone lowers nothing"


def test_without_a_keeper_marks_cost_nothing(node: Node) -> None:
    assert node.order(_setting()) == [""]
    node.client.detach()
    assert node.mark("forward", 1) == ""
    node.schedules.turn()
    assert node.steps == {"refused": 1}


def test_a_keeper_that_died_in_a_step_leaves_the_gpu_to_the_next(node: Node) -> None:
    assert node.order(_setting(), _setting(B)) == ["", ""]
    node.mark("forward", 1)
    node.begin()
    assert not node.cards.locked
    assert (
        "came before, with other content"
        in node.client.ask(apply_of(1, "demo", 1, 60.0, {A: (0, REST)})).slots[0].reason
    ), "the journal knows the program"
    held = Journal(node.folder / "journal", "").last
    assert {uuid: lease.schedule_mhz for uuid, lease in held.items()} == {
        A: (900, REST),
        B: (900, REST),
    }


def _asked(*steps: ScheduleStep, shortest_s: float = 0.5) -> Setting:
    return Setting(A, REST, 0, None, steps, shortest_s)


@pytest.mark.parametrize(
    ("setting", "p95_s", "reason"),
    [
        (_asked(), 9.0, ""),
        (_asked(*EDGE), 0.0, ""),
        (_asked(*EDGE), 0.1, ""),
        (_asked(*EDGE), 0.11, "takes 0.5 s; allowed: 0.55 s; clocks follow within 0.11 s here"),
        (_asked(*EDGE, shortest_s=0.0), 0.0, "is not known"),
        (_asked(*EDGE, shortest_s=math.nan), 0.0, "is not known"),
        (_asked(*EDGE, shortest_s=-1.0), 0.0, "is not known"),
        (_asked(*EDGE, shortest_s=0.05), 0.0, "takes 0.05 s; allowed: 0.1 s"),
        (_asked(ScheduleStep("f", 1500)), 0.0, "above 1410 MHz"),
        (_asked(ScheduleStep("f", 900), ScheduleStep("f", 600)), 0.0, "two steps on one mark"),
        (_asked(*(ScheduleStep("f", n) for n in range(33))), 0.0, "more than 32 clocks"),
        (_asked(*(ScheduleStep("f", 9, n) for n in range(513))), 0.0, "allowed: up to 512"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(setting: Setting, p95_s: float, reason: str) -> None:
    found = refuse_schedule(setting, SetLatencies(0.0, p95_s), 0.0)
    assert (reason in found) if reason else not found


TIMED = Setting(
    A, REST, timed_steps=(TimedStep(0.5, 900), TimedStep(9.0, REST)), iteration_time_s=10.0
)  # fmt: skip


def _iterate(node: Node, numbers: range) -> list[int]:
    """Iterations of 10 s; the clock in the middle of each."""
    seen = []
    for number in numbers:
        node.starts.on_start("demo", A, node.now_s, number, "report")
        node.wait(5.0)
        seen.append(node.mhz())
        node.wait(5.0)
    return seen


def test_timed_steps_are_sent_ahead_and_held_between_starts(node: Node) -> None:
    node.latencies = SetLatencies(0.01, 0.03)
    _iterate(node, range(4))
    assert node.order(TIMED, ttl_s=60.0) == [""]
    assert _iterate(node, range(4, 7)) == [900, 900, 900]
    began_s = node.now_s
    node.starts.on_start("demo", A, began_s, 7, "report")
    node.wait(0.48)
    assert node.mhz() == REST
    node.wait(0.02)
    assert node.mhz() == 900
    node.wait(8.46)
    assert node.mhz() == 900
    node.wait(0.02)
    assert node.mhz() == REST
    assert node.steps == {"accepted": 8}
    (timing,) = node.schedules.timings(lambda _: 0.02)
    assert (timing.job, timing.source, timing.iteration_time_s) == ("demo", "report", 10.0)
    assert (timing.missed_ratio, timing.change_error_s) == (0.0, 0.02)


def test_a_lost_start_rests_and_the_next_job_does_not_follow_the_schedule(node: Node) -> None:
    _iterate(node, range(4))
    assert node.order(TIMED) == [""]
    assert _iterate(node, range(4, 6)) == [900, 900]
    node.wait(5.0)
    assert node.mhz() == REST
    node.wait(5.0)
    assert _iterate(node, range(7, 9)) == [900, 900], "two periods later the next one is good"
    for number in range(4):
        node.starts.on_start("other", A, node.now_s, number, "report")
        node.wait(5.0)
        assert node.mhz() != 900
        node.wait(5.0)


def test_jitter_and_latency_refuse_a_schedule_by_name(node: Node) -> None:
    wide = SetLatencies(0.1, 0.7)
    assert refuse_schedule(TIMED, wide, 0.1) == ""
    assert "allowed: twice 0.8 s" in refuse_schedule(TIMED, wide, 0.2)


UNUSED = Setting(A, REST, unused_clock_mhz=600)


def _read(node: Node, busy: float | None, *, every_s: float = 0.25, for_s: float = 3.0) -> None:
    """Readings of both GPUs; B always works."""
    for number in range(round(for_s / every_s)):
        node.wait(every_s)
        gpus = (GpuSnapshot(A, utilization_gpu_ratio=busy), GpuSnapshot(B, utilization_gpu_ratio=1))
        node.schedules.on_reading(NodeSnapshot(number, node.now_s, gpus))


def test_what_is_not_read_is_not_slowed(node: Node) -> None:
    assert node.order(UNUSED) == [""]
    _read(node, 0.0)
    assert node.mhz() == 600
    node.wait(2.5)
    assert node.mhz() == REST
    _read(node, 0.0)
    assert node.mhz() == 600
    node.wait(HOLD_S_MAX, agent=False)
    assert node.mhz() == REST, "nor without an agent"


def test_a_reading_from_before_the_command_shows_no_work(node: Node) -> None:
    busy = NodeSnapshot(1, node.now_s - 0.1, (GpuSnapshot(A, utilization_gpu_ratio=1.0),))
    assert node.order(UNUSED) == [""]
    node.schedules.on_reading(busy)
    node.wait(0.1)
    assert node.mhz() == 600


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (UNUSED, ""),
        (Setting(A, 600, unused_clock_mhz=600), "not below 600 MHz"),
        (Setting(A, REST, clock_schedule=EDGE, unused_clock_mhz=600), "allowed: one of them"),
    ],
)
def test_a_clock_for_the_unused_gpu_is_below_its_own(setting: Setting, reason: str) -> None:
    found = refuse_schedule(setting, SetLatencies(), 0.0)
    assert (reason in found) if reason else not found
