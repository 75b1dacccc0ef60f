"""When hold-outs begin and end, pass by pass, whatever comes between."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from job_states import job_state
from windows import is_drawn
from worlds import World

from joulecut_controller.chunk import Chunk, Timed
from joulecut_controller.observe.iteration_stats import Fresh
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.plan import Forecast, Plan
from joulecut_controller.plan.planning_input import PlanningInput
from joulecut_controller.plan.veto import Veto
from joulecut_controller.policy.policy import Verify
from joulecut_controller.ports import Event, Record
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.reconcile.trust_inputs import StoredBook, job_step
from joulecut_controller.trust.default_windows import DefaultWindows, HoldoutsShown
from joulecut_controller.trust.switchback import WARM_UP_S, SwitchbackSchedule
from joulecut_controller.trust.window import MeasuredWindow, from_json, to_json
from joulecut_controller.view import GpuView, View, Window
from joulecut_wire.errors import Unavailable

NOON_UNIX_S = 1_767_268_800.0
WORLD = World(stages=2, microbatches=4)
PASS_S = 5.0
LEAKAGE_PER_CELSIUS = 0.0015
SLOT_S = 60.0 + WARM_UP_S
ITERATION_S = 1.0


class Memory:
    """A store of events and records alone; `full` makes it take nothing."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.windows: list[MeasuredWindow] = []
        self.full = False

    def record(self, *events: Event) -> None:
        if self.full:
            raise Unavailable("the disk is full")
        self.texts += [event.text for event in events]

    def events(self, *, job: str = "", limit: int = 100) -> tuple[Event, ...]:
        return ()

    def keep_record(self, record: Record, kept_s: float | None = None) -> None:
        if self.full:
            raise Unavailable("the disk is full")
        self.windows.append(from_json(record.content))

    def records(self, topic: str, **_: object) -> tuple[Record, ...]:
        return tuple(
            Record(window.ended_unix_s, topic, window.job, to_json(window))
            for window in self.windows[-200:]
        )


@dataclass
class Bench:
    """One job that does as it is told at once, and what the controller would see of it."""

    share: float = 0.25
    verify: Verify | None = None  # else of that share, in slots of SLOT_S
    job: str = "demo"
    memory: Memory = field(default_factory=Memory)
    now_s: float = 1000.0
    ahead_s: float = NOON_UNIX_S  # of the wall clock, over the monotonic one
    paused: str = ""
    straggling: bool = False
    held: bool = False
    since_s: float = 1000.0
    turns: list[tuple[float, float]] = field(default_factory=list)  # begun, ended; monotonic
    power_w: float = 0.0
    celsius: float = 60.0
    windows: DefaultWindows = field(init=False)

    def __post_init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Another controller on the same store."""
        store: object = self.memory
        audit = AuditLog(store, lambda: self.unix_s)
        self.windows = DefaultWindows(StoredBook(store, audit), self.job)
        verify = self.verify or Verify(self.share, SLOT_S - WARM_UP_S)
        policy = WORLD.policy(verify=verify).jobs[0]
        self._policy = replace(policy, name=self.job)
        self._switch(held=False)

    @property
    def unix_s(self) -> float:
        return self.now_s + self.ahead_s

    @property
    def rotation(self) -> SwitchbackSchedule:
        return SwitchbackSchedule(self.job, self.share, SLOT_S)

    def shown(self) -> HoldoutsShown | None:
        return self.windows.holdouts(self.unix_s)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        ends_s = self.now_s + seconds
        while self.now_s < ends_s and not until():
            self.step()

    def step(self) -> str:
        self.now_s += PASS_S
        self.celsius = 66.0 if self.held else 60.0
        self.power_w = len(WORLD.uuids) * (320.0 if self.held else 280.0)
        inputs, observation = self._seen()
        applied = None if self.held or self.paused else _plan(self.job)
        seen = job_step(
            inputs,
            observation,
            unix_s=self.unix_s,
            applied=applied,
            suspected="",
        )
        word = self.windows.step(seen)
        if bool(word) != self.held:
            self._switch(held=bool(word))
        return word

    def _switch(self, *, held: bool) -> None:
        if held and not self.held:
            self.turns.append((self.now_s, float("inf")))
        if self.held and not held:
            self.turns[-1] = (self.turns[-1][0], self.now_s)
        self.held, self.since_s = held, self.now_s

    def _seen(self) -> tuple[PlanningInput, JobObservation]:
        locks = dict.fromkeys(WORLD.uuids, 0 if self.held or self.paused else 1200)
        view = View(self.now_s, gpus=self._gpus())
        ended_s, chunk = self.now_s - 0.2, None
        count = min(int(PASS_S), int(ended_s - 0.4 - self.since_s))  # iterations of 1 s
        if count > 0:
            begun_s, times = ended_s - count, (Timed(0.0),) * count
            energy_j = count * self.power_w
            chunk = Chunk(ended_s, (), times, begun_s, count, 0, energy_j, count)
        job = job_state(
            policy=self._policy,
            stages=tuple((uuid,) for uuid in WORLD.uuids),
            baseline=Window(64, ITERATION_S, 0.01, 640.0, 640.0),
            current_iterations=64,
            peer_iteration_time_s=ITERATION_S if self.straggling else None,
            locks=locks,
            at_default=not any(locks.values()),
            settled=self.now_s - self.since_s > 3 * PASS_S,
            since_s=self.since_s,
        )
        inputs = PlanningInput(
            view=view,
            job=job,
            mode="enforce",
            baseline_progress="64 of 30 iterations",
            running=locks,
            measured_applied=True,
            stale_s=15.0,
            vetoes=(Veto("command", self.paused),) if self.paused else (),
        )
        return inputs, JobObservation(job, Fresh(chunk), "shape")

    def _gpus(self) -> dict[str, GpuView]:
        state = WORLD.observe(self.now_s)
        seen = {}
        for gpu in state.gpus:
            assert gpu.snapshot is not None
            shown = replace(gpu.snapshot, temperature_celsius=round(self.celsius))
            seen[gpu.uuid] = replace(gpu, snapshot=shown)
        return seen


def _plan(job: str) -> Plan:
    forecast = Forecast(1.02, 560.0, 1.0, 640.0, 550.0, 0.01)
    return Plan(job, 7, 0, "enforce", "gpu", (), "saves", NOON_UNIX_S, forecast=forecast)


def starts(bench: Bench, since_s: float = 0.0) -> list[int]:
    """The slots in which turns began."""
    return [
        bench.rotation.slot(begun_s + bench.ahead_s)
        for begun_s, _ in bench.turns
        if begun_s >= since_s
    ]


def test_hold_outs_begin_where_they_were_drawn_and_last_a_slot() -> None:
    bench = Bench()
    bench.run(60 * SLOT_S)
    assert len(bench.turns) >= 13
    assert all(is_drawn(bench.rotation, slot) for slot in starts(bench))
    for begun_s, ended_s in bench.turns[:-1]:
        assert abs(ended_s - begun_s - SLOT_S) <= PASS_S
    default = [window for window in bench.memory.windows if window.arm == "default"]
    assert len(default) in (len(bench.turns), len(bench.turns) - 1)
    assert {round(window.energy_j) for window in default} == {640}
    assert {round(w.energy_j) for w in bench.memory.windows if w.arm == "plan"} == {560}


def test_a_warm_up_that_the_site_knows_makes_a_first_interval_come_in_minutes() -> None:
    bench = Bench(verify=Verify(0.33, 45.0, warm_up_s=15.0))
    bench.run(1500.0)
    shown = bench.shown()
    assert shown.window_s == 45.0
    assert shown.saving.holdouts >= 3
    assert shown.saving.saved_ratio is not None
    usual = Bench()
    usual.run(1500.0)
    assert (again := usual.shown()) is not None
    assert again.saving is None or again.saving.saved_ratio is None


def test_two_drawn_slots_in_a_row_are_one_stretch_and_two_windows() -> None:
    bench = Bench(share=0.5)
    bench.run(80 * SLOT_S)
    lengths = {round((ended_s - begun_s) / SLOT_S) for begun_s, ended_s in bench.turns[:-1]}
    assert lengths == {1, 2}  # no plan comes back for a moment between them
    default = [window for window in bench.memory.windows if window.arm == "default"]
    slots = {bench.rotation.slot(w.begun_unix_s + 1.0) for w in default}
    assert len(slots) == len(default)
    held_s = sum(ended_s - begun_s for begun_s, ended_s in bench.turns[:-1])
    assert abs(held_s / (bench.turns[-1][0] - bench.turns[0][0]) - 0.5) < 0.06


@settings(max_examples=6)
@given(st.integers(0, 10_000), st.floats(0.1, 0.5), st.floats(0.05, 0.5))
def test_whatever_comes_between_there_is_one_a_cycle_at_most_and_the_share_is_kept(
    seed: int, share: float, trouble: float
) -> None:
    chance = random.Random(seed)
    bench = Bench(share=share)
    while bench.now_s < 1000.0 + 7 * SLOT_S / share:
        bench.paused = "somebody said so" if chance.random() < trouble else ""
        bench.straggling = chance.random() < trouble / 4
        bench.run(chance.choice([10.0, 40.0, 200.0]))
    cycles = [bench.rotation.cycle(slot) for slot in starts(bench)]
    assert len(cycles) == len(set(cycles))
    held_s = sum(min(ended, bench.now_s) - begun for begun, ended in bench.turns)
    assert held_s <= (share + 1.5 * SLOT_S / (bench.now_s - 1000.0)) * (bench.now_s - 1000.0) + (
        len(bench.turns) * PASS_S
    )
    assert all(window.iterations >= 20 for window in bench.memory.windows)


def test_one_that_could_not_begin_is_made_up_for_in_its_cycle() -> None:
    bench = Bench(share=0.1)
    drawn = bench.rotation.slot(bench.rotation.next_unix_s(bench.unix_s))
    if bench.rotation.cycle(drawn + 1) != bench.rotation.cycle(drawn):
        drawn = bench.rotation.slot(bench.rotation.next_unix_s(bench.unix_s + 15 * SLOT_S))
    begins_s = bench.rotation.begins_unix_s(drawn) - bench.ahead_s
    bench.run(begins_s - 20.0 - bench.now_s)
    bench.paused = "somebody said so"
    bench.run(60.0)
    bench.paused = ""
    bench.since_s = bench.now_s
    bench.run(2 * SLOT_S)
    assert starts(bench, begins_s) == [drawn + 1]


def test_a_wall_clock_that_is_set_neither_stretches_nor_breaks_a_hold_out() -> None:
    for jump_s in (-7200.0, 7200.0):
        bench = Bench()
        bench.run(40 * SLOT_S, until=lambda bench=bench: bench.held)
        bench.run(20.0)
        bench.ahead_s += jump_s
        bench.run(2 * SLOT_S, until=lambda bench=bench: not bench.held)
        begun_s, ended_s = bench.turns[0]
        assert abs(ended_s - begun_s - SLOT_S) <= PASS_S
        bench.run(20 * SLOT_S)
        assert len(bench.turns) >= 3


def test_a_store_that_takes_nothing_prevents_hold_outs_and_raises_nothing() -> None:
    bench = Bench()
    bench.memory.full = True
    bench.run(20 * SLOT_S)
    assert bench.turns == []
    bench.memory.full = False
    bench.run(20 * SLOT_S, until=lambda: bench.held)
    bench.memory.full = True
    bench.run(2 * SLOT_S)
    assert not bench.held, "what was measured is lost, and the plan is back"


def test_measured_and_promised_joules_are_of_the_same_time_and_waiting_is_in_neither() -> None:
    bench = Bench()
    bench.run(40 * SLOT_S, until=lambda: len(bench.turns) > 4 and not bench.held)
    bench.run(10.0)
    before = bench.windows.account()
    assert before.measured_j is not None
    assert before.promised_j <= before.predicted_j
    bench.straggling = True
    bench.run(60.0)  # the window that was open ends, and is kept
    waiting = bench.windows.account()
    bench.run(20 * SLOT_S)
    assert bench.windows.account() == waiting
