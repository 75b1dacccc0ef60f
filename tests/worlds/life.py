"""A job's life: phases of varying work on GPUs that change, with the truth of every iteration.

A `Phase` says what the job does, `Surroundings` what happens to its GPUs. Beside each iteration the
world keeps what the same work, with the same luck, would have taken and drawn at default clocks
then. The plant is the simulator's; its iterations are played here, so that one costs 0.2 ms.
"""

import functools
import itertools
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from possible import search
from pyarrow import parquet
from unprofiled import UnprofiledWorld
from worlds import Agent, Controller

from joulecut_controller.known_jobs import NAME, encoded
from joulecut_controller.policy.policy import (
    TOLERANCE_RATIO,
    Policy,
    Slo,
    SlurmJobMatch,
    Verify,
)
from joulecut_controller.ports import ArrivedReport
from joulecut_controller.store.database import open_store
from joulecut_engine.estimate.other_jobs import KnownJob
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Profile
from joulecut_sim.gpt3 import INSTRUCTIONS, Instruction
from joulecut_sim.plant import Iteration, Noise, Plant, StageRun, Step, program
from joulecut_wire.messages import (
    Allocation,
    GpuSnapshot,
    IterationReport,
    OperationReport,
    PipelineShape,
)

Knows = Literal["profile", "profile-rate", "operations", "rate"]
Floats = NDArray[np.float64]

WINDOW = 10  # iterations
OVER_RATIO = 0.01  # beyond the budget: a window that broke it
# Layers seldom divide evenly: what a stage's training takes relative to the simulator's stage.
TRAINING_WORK = (1.0, 0.94, 0.98, 0.92, 0.97, 0.95, 0.99, 1.0)
# Evaluation has no loss to take back and other layers on its critical path: a stage that is light
# in training is not light here, so that a plan which is free there costs time here.
EVALUATION_WORK = (0.97, 1.0, 0.98, 1.0, 0.99, 1.0, 0.97, 0.9)
EVALUATION_POWER = 0.85  # of the same operation in training: smaller activations are written
STRAGGLERS = Path(__file__).resolve().parents[3] / "shared" / "data" / "stragglers"


# Cards whose own power limit holds training below their highest clock.
CAPPED = ("a40", "h100-sxm", "h200", "b200", "b300", "gb200", "mi300x")


@dataclass(frozen=True, slots=True)
class Phase:
    """`iterations` or `lasts_s` of one kind of work. In a pause nothing runs or is reported.

    `wait_s` is added to each iteration, without any work in it. `restarts`: a new job of the same
    name begins here. `replaced`: a node leaves here, and another one comes.
    """

    name: str
    kind: Literal["train", "evaluate", "pause"] = "train"
    iterations: int = 0
    lasts_s: float = math.inf
    microbatches: int = 0  # 0: the job's
    wait_s: float = 0.0
    restarts: bool = False
    replaced: str = ""  # address of an agent


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What happens to work and GPUs, whatever the phase. Ratios.

    `hot_*` are reached after `HOT_S` seconds and left again after as many: what work takes longer,
    what GPUs draw more, and by how much the highest clock falls. `recorded` are factors on the
    time of each operation (iterations, steps of the plant).
    """

    spread: float = 0.0  # of an iteration's work, standard deviation
    memory: float = 0.0  # of one iteration's length in the next, AR(1)
    hot_pace: float = 0.0
    hot_power: float = 0.0
    hot_clock: float = 0.0
    throttle_share: float = 0.0  # of iterations at which one GPU begins to throttle
    throttle_ratio: float = 0.9  # of its clock
    throttle_iterations: int = 8
    cap_w: float = 0.0  # an external power limit, 0: none
    capped: tuple[int, ...] = ()  # stages
    replaced_ratio: float = 1.04  # time on a node that replaced another
    slow_ratio: float = 1.0  # time on the GPUs of SLOW_STAGE, until SLOW_S
    recorded: Floats | None = None


HOT_S = 1800.0
SLOW_STAGE, SLOW_S = 3, 600.0


@dataclass(frozen=True, slots=True)
class Lived:
    """One iteration or pause as it was, and as it would have been at default clocks."""

    ended_s: float
    phase: int  # counted from the start
    name: str
    kind: str
    duration_s: float
    energy_j: float
    default_s: float
    default_j: float
    clocks_mhz: tuple[int, ...]  # in force
    at_default: bool
    microbatches: int


def work_of(work: Sequence[float], stage: int, stages: int) -> float:
    """The last stage of any pipeline has the last figure."""
    return work[-1 if stage == stages - 1 else stage % len(work)]


class LifePlant(Plant):
    """The simulator's stages with uneven layers."""

    def time_s(self, stage: int, instruction: Instruction, clock_mhz: float) -> float:
        ratio = work_of(TRAINING_WORK, stage, self.stages)
        return super().time_s(stage, instruction, clock_mhz) * ratio


class CappedPlant(LifePlant):
    """As if the power limits of `limited` stages were the cards' own."""

    limit_w, limited = 0.0, tuple[int, ...]()

    def time_s(self, stage: int, instruction: Instruction, clock_mhz: float) -> float:
        return super().time_s(stage, instruction, self._held_mhz(stage, instruction, clock_mhz))

    def power_w(self, stage: int, instruction: Instruction, clock_mhz: float) -> float:
        return super().power_w(stage, instruction, self._held_mhz(stage, instruction, clock_mhz))

    def _held_mhz(self, stage: int, instruction: Instruction, clock_mhz: float) -> float:
        free_w = functools.partial(super().power_w, stage, instruction)
        if stage not in self.limited or free_w(clock_mhz) <= self.limit_w:
            return clock_mhz
        clocks = (mhz for mhz in reversed(self.skus[stage].clocks_mhz) if mhz < clock_mhz)
        return next(mhz for mhz in clocks if free_w(mhz) <= self.limit_w)


class _Order:
    """The steps of one iteration, ready to be played."""

    def __init__(self, stages: int, microbatches: int, kind: str) -> None:
        self.steps: tuple[Step, ...] = program("1f1b", stages, microbatches)
        if kind == "evaluate":
            self.steps = _forwards(stages, microbatches)
        self._links = [(step.stage, step.needs) for step in self.steps]
        self._column = np.array(
            [2 * step.stage + INSTRUCTIONS.index(step.instruction) for step in self.steps]
        )
        self.columns = 2 * stages

    def play(self, seconds: Floats, luck: Floats) -> tuple[float, Floats]:
        """Seconds of the whole, and busy ones (stages x kinds); `seconds` by the same columns."""
        durations = seconds[self._column] * luck
        busy = np.bincount(self._column, weights=durations, minlength=self.columns)
        free = [0.0] * (self.columns // 2)
        ends: list[float] = []
        for (stage, needs), duration_s in zip(self._links, durations.tolist(), strict=True):
            begin = free[stage]
            if needs >= 0 and ends[needs] > begin:
                begin = ends[needs]
            free[stage] = begin + duration_s
            ends.append(free[stage])
        return max(free), busy


def _forwards(stages: int, microbatches: int) -> tuple[Step, ...]:
    """All forwards; each waits for the same microbatch of the stage before."""
    return tuple(
        Step(stage, microbatch, "forward", microbatches * (stage - 1) + microbatch if stage else -1)
        for stage in range(stages)
        for microbatch in range(microbatches)
    )


@functools.cache
def _order(stages: int, microbatches: int, kind: str) -> _Order:
    return _Order(stages, microbatches, kind)


@functools.cache
def oracle(
    card: str, stages: int, microbatches: int, budget: float, limit_w: float = 0.0,
    limited: tuple[int, ...] = (),
) -> float:  # fmt: skip
    """What one fixed clock per GPU saves at most in the nominal job: training without noise, on the
    capped cards where stages are limited."""
    nominal = UnprofiledWorld(card=card, stages=stages, microbatches=microbatches)
    still = Noise(operation=0.0, gpu_time=0.0, gpu_power=0.0)
    plant = CappedPlant(nominal.plant.skus, microbatches, time_scale=nominal.scale, noise=still)
    plant.limit_w, plant.limited = limit_w, limited
    return search(plant, max(budget, TOLERANCE_RATIO)).saved_ratio


class LifeWorld(UnprofiledWorld):
    """`lived` is the truth, oldest first. Phases repeat from the start when all are over."""

    def __init__(
        self,
        life: Sequence[Phase],
        surroundings: Surroundings = Surroundings(),
        *,
        knows: Knows = "operations",
        budget: float = 0.05,
        iteration_s: float = 1.0,
        stages: int = 8,
        microbatches: int = 24,
        card: str = "a100-sxm",
        seed: int = 1,
        holdout: float = 0.0,
        shaped: bool = False,
        slurm: bool = False,
    ) -> None:
        """`shaped`: the job reports its pipeline, and the policy gives none. `slurm`: each run is
        a Slurm job with an id of its own.
        """
        super().__init__(stages=stages, microbatches=microbatches, card=card, seed=seed)
        self.knows, self.budget, self.holdout = knows, budget, holdout
        self._capped = card in CAPPED or bool(surroundings.cap_w)
        self.iteration_s, self.shaped, self.slurm = iteration_s, shaped, slurm
        self.detailed = knows in ("profile", "operations")
        self.surroundings, self.start_s = surroundings, self.now_s
        self.lived: list[Lived] = []
        nominal = LifePlant([self.sku] * stages, microbatches, noise=Noise(0.0, 0.0, 0.0))
        whole_s = nominal.iterate([self.sku.clock_max_mhz] * stages).own_s
        self.scale = iteration_s / whole_s
        self.plant = LifePlant(self.plant.skus, microbatches, time_scale=self.scale, seed=seed)
        self._luck = np.random.default_rng([seed, 29])
        self._chance = random.Random(f"life {seed}")
        self._cells: dict[tuple[int, int, float], tuple[list[float], list[float], int]] = {}
        self._slow = [1.0] * stages
        self._throttled: dict[int, int] = {}  # iterations left, by stage
        self._phases: Iterator[tuple[int, Phase]] = enumerate(itertools.cycle(life))
        self._number, self._phase = -1, Phase("")
        self._phase_ends_s, self._left = 0.0, 0
        self._runs, self._wave = 0, 0.0
        self._default: tuple[float, float] = 0.0, 0.0

    # -- the operator's side ---------------------------------------------------------------

    def profile(self, lowest_mhz: int = 0) -> Profile:
        swept: Profile = super().profile(lowest_mhz)
        options: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
        for (stage, kind), menu in swept.options.items():
            ratio = work_of(TRAINING_WORK, stage, self.stages)
            options[stage, kind] = tuple(
                ClockOption(one.clock_mhz, one.time_s * ratio, one.energy_j * ratio) for one in menu
            )
        return Profile(options, swept.source)

    def asked(self) -> Policy:
        changes: dict[str, object] = {"verify": Verify(self.holdout)}
        if not self.knows.startswith("profile"):
            changes["profile"] = None
        if self.shaped:
            changes["pipeline"] = None
        if self.slurm:
            changes["slurm"] = SlurmJobMatch(job_name=self.job)
        return self.policy(slo=Slo(max_slowdown=self.budget), **changes)

    # -- time ------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._enter()
        phase = self._phase
        asked = self.clocks_mhz()
        self._clocks = asked
        if phase.kind == "pause":
            self._rest(max(self._phase_ends_s - self.now_s, 1e-3))
            return
        self._throttle()
        made = self.surroundings
        count = phase.microbatches or self.pipeline.microbatches
        order = _order(self.stages, count, phase.kind)
        luck = np.maximum(0.5, self._luck.normal(1.0, self.plant.noise.operation, len(order.steps)))
        luck *= self._length()
        if made.recorded is not None:
            luck = luck * made.recorded[len(self.lived) % len(made.recorded)]
        own = tuple(asked[uuid] for uuid in self.uuids)
        top = (self.sku.clock_max_mhz,) * self.stages
        self._current = self._play(order, own, luck)
        usual = self._current if own == top else self._play(order, top, luck)
        self._default = usual.duration_s, usual.energy_j
        self._span(self._current.duration_s)

    def _length(self) -> float:
        """Of this iteration's work, relative."""
        made = self.surroundings
        free = math.sqrt(1.0 - made.memory**2) * made.spread
        self._wave = made.memory * self._wave + free * self._luck.normal()
        return max(0.5, 1.0 + self._wave)

    def _span(self, duration_s: float) -> None:
        self._duration_s = duration_s
        self._began_s, self._ends_s = self.now_s, self.now_s + duration_s

    def _rest(self, duration_s: float) -> None:
        """A pause: processes hold their GPUs, and nothing runs on them."""
        watts = [self.plant.waiting_w(stage) for stage in range(self.stages)]
        runs = tuple(StageRun({}, w * duration_s, self.sku.clock_max_mhz) for w in watts)
        self._current = Iteration(duration_s, duration_s, runs)
        self._default = duration_s, self._current.energy_j
        self._span(duration_s)

    def _play(self, order: _Order, clocks: tuple[int, ...], luck: Floats) -> Iteration:
        """One iteration with this luck at these clocks, in the surroundings of now."""
        heat, made, phase = self._heat(), self.surroundings, self._phase
        evaluates = phase.kind == "evaluate"
        seconds, watts = np.empty(order.columns), np.empty(order.columns)
        shown = []
        for stage, asked_mhz in enumerate(clocks):
            throttle = made.throttle_ratio if stage in self._throttled else 1.0
            times, powers, reached_mhz = self._cell(stage, asked_mhz, throttle)
            pace = self._slow[stage] * (1.0 + made.hot_pace * heat)
            if stage == SLOW_STAGE and self.now_s - self.start_s < SLOW_S:
                pace *= made.slow_ratio
            power = (1.0 + made.hot_power * heat) * (EVALUATION_POWER if evaluates else 1.0)
            if evaluates:
                pace *= work_of(EVALUATION_WORK, stage, self.stages)
                pace /= work_of(TRAINING_WORK, stage, self.stages)
            for kind in range(2):
                seconds[2 * stage + kind] = times[kind] * pace
                watts[2 * stage + kind] = powers[kind] * power
            shown.append(reached_mhz)
        own_s, busy = order.play(seconds, luck)
        duration_s = own_s + phase.wait_s
        runs = []
        for stage in range(self.stages):
            part = slice(2 * stage, 2 * stage + 2)
            working_s = float(busy[part].sum())
            energy_j = float((busy[part] * watts[part]).sum())
            waiting_w = self.plant.waiting_w(stage) * (1.0 + made.hot_power * heat)
            energy_j += waiting_w * (duration_s - working_s)
            by_kind = zip(INSTRUCTIONS, busy[part].tolist(), strict=True)
            runs.append(StageRun({k: s for k, s in by_kind if s}, energy_j, shown[stage]))
        return Iteration(own_s, duration_s, tuple(runs))

    def _cell(
        self, stage: int, asked_mhz: int, throttle: float
    ) -> tuple[list[float], list[float], int]:
        """Seconds and watts by kind, and the clock that is shown."""
        falls = self.surroundings.hot_clock * self._heat()
        top_mhz = self.plant.cap_mhz(stage) * (1.0 - round(falls, 3))
        mhz = min(asked_mhz, top_mhz) * throttle
        key = stage, asked_mhz, mhz
        if key not in self._cells:
            limit_w = self._limit_w(stage)
            held = [self.plant.limited_mhz(stage, kind, mhz, limit_w) for kind in INSTRUCTIONS]
            times = [
                self.plant.time_s(stage, kind, one)
                for kind, one in zip(INSTRUCTIONS, held, strict=True)
            ]
            powers = [
                self.plant.power_w(stage, kind, one)
                for kind, one in zip(INSTRUCTIONS, held, strict=True)
            ]
            self._cells[key] = times, powers, int(max(held))
        return self._cells[key]

    def _heat(self) -> float:
        """How much of the day's heat there is now, 0 to 1."""
        return max(0.0, math.sin((self.now_s - self.start_s) / HOT_S * math.pi / 2.0))

    def _limit_w(self, stage: int) -> float:
        made = self.surroundings
        return made.cap_w if stage in made.capped else self.sku.power_limit_w

    def _throttle(self) -> None:
        self._throttled = {stage: left - 1 for stage, left in self._throttled.items() if left > 1}
        if self._chance.random() < self.surroundings.throttle_share:
            stage = self._chance.randrange(self.stages)
            self._throttled[stage] = self.surroundings.throttle_iterations

    def _enter(self) -> None:
        """The next phase, where this one is over."""
        if self._left > 0 or (self._number >= 0 and self.now_s < self._phase_ends_s - 1e-6):
            return
        self._number, self._phase = next(self._phases)
        phase = self._phase
        self._left = phase.iterations
        # Phases that last a time end within a fifth of it: no schedule of ours meets them.
        lasts_s = (
            phase.lasts_s if phase.restarts else phase.lasts_s * self._chance.uniform(0.8, 1.2)
        )
        self._phase_ends_s = self.now_s + lasts_s if not phase.iterations else 0.0
        if phase.replaced:
            self._replace(phase.replaced)
        if phase.restarts:
            self._iteration, self._runs = 0, self._runs + 1
            if self.slurm:
                self._allocate()

    def _allocate(self) -> None:
        """A new Slurm job has the GPUs; leases of the one before end with it."""
        number = str(4000 + self._runs)
        labels = {"slurm_job_id": number, "slurm_job_name": self.job}
        for agent in self.agents.values():
            for uuid in agent.uuids:
                agent.owners[uuid] = Allocation(uuid, number, source="slurm", labels=labels)
                agent.end(uuid)
        self._clocks = self.clocks_mhz()

    def _replace(self, address: str) -> None:
        """The node is lost, and another one with slower GPUs takes its stages."""
        old = self.agents[address]
        old.connected = False
        for uuid in old.uuids:
            old.end(uuid)
        names = {uuid: f"{uuid}-new" for uuid in old.uuids}
        self.agents["n9:1"] = Agent("n9:1", "n9", tuple(names.values()))
        for uuid in old.uuids:
            self._slow[self.stage_of[uuid]] *= self.surroundings.replaced_ratio
        self.uuids = tuple(names.get(uuid, uuid) for uuid in self.uuids)
        self.stage_of = {uuid: stage for stage, uuid in enumerate(self.uuids)} | {
            uuid: self.stage_of[uuid] for uuid in old.uuids
        }
        self._energy |= dict.fromkeys(names.values(), 0.0)

    def _finish(self) -> None:
        run = self._current
        if run is None:
            return
        phase, default_mhz = self._phase, self.sku.clock_max_mhz
        self.history.append((self.now_s, self._duration_s, self._clocks))
        clocks = tuple(self._clocks[uuid] for uuid in self.uuids)
        self.lived.append(
            Lived(
                self.now_s - self.start_s,
                self._number,
                phase.name,
                phase.kind,
                self._duration_s,
                run.energy_j,
                *self._default,
                clocks,
                set(clocks) == {default_mhz},
                phase.microbatches or self.pipeline.microbatches,
            )
        )
        self._left -= bool(self._left)
        if phase.kind == "pause":
            return
        count = phase.microbatches or self.pipeline.microbatches
        shape = PipelineShape("1f1b", self.stages, count) if self.shaped else None
        for uuid, stage in zip(self.uuids, run.stages, strict=True):
            operations = tuple(OperationReport(k, count, s) for k, s in stage.busy_s.items())
            report = IterationReport(
                self.job, uuid, self.stage_of[uuid], self._iteration, self._duration_s, operations
            )
            self._reports.append(ArrivedReport(replace(report, shape=shape), self.now_s))
        self._iteration += 1

    # -- the fleet port --------------------------------------------------------------------

    def _snapshot(self, agent: Agent, uuid: str) -> GpuSnapshot:
        shown = super()._snapshot(agent, uuid)
        if uuid not in self.uuids or self._current is None:
            return shown
        stage = self.uuids.index(uuid)
        pauses = self._phase.kind == "pause"
        limit_w = self._limit_w(stage)
        throttle = self.surroundings.throttle_ratio if stage in self._throttled else 1.0
        return replace(
            shown,
            clock_sm_mhz=self._cell(stage, self.clocks_mhz()[uuid], throttle)[2],
            utilization_gpu_ratio=0.0 if pauses else 1.0,
            power_average_w=self._current.stages[stage].energy_j / self._duration_s,
            power_limit_enforced_w=limit_w if self._capped else None,
        )


# -- the verdict ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one run. Ratios; `saved` and `slowdown` are of the last half. `share_60` is the share of
    the best from the 60th to the 80th iteration, with as many microbatches as they had.

    `over` are windows of ten iterations more than a point over the budget, `over_row` the longest
    row of such. `phases` has the mean slowdown in the work of each name, `until_plan` by phase the
    iterations until ten in a row ran below default clocks within the budget (None: never).
    `at_default` and `known` are shares of the time after the first clock was lowered, the latter of
    that in which a measured figure stands. `counter` is what the product counts as saved over what
    was; None where too little was.
    """

    oracle: float
    saved: float
    slowdown: float
    share_60: float
    slowdown_all: float
    over: int
    over_row: int
    phases: dict[str, float]
    until_plan: tuple[tuple[str, int | None], ...]
    at_default: float
    trips: int
    generations: int
    counter: float | None
    known: float
    cpu_s: float

    @property
    def share(self) -> float:
        return self.saved / self.oracle


def saved_of(lived: Sequence[Lived]) -> float:
    """Of all that was lived but pauses, against the same at default clocks."""
    ran = [one for one in lived if one.kind != "pause"]
    return 1.0 - sum(one.energy_j for one in ran) / sum(one.default_j for one in ran)


def slowdown_of(lived: Sequence[Lived]) -> float:
    ran = [one for one in lived if one.kind != "pause"]
    return sum(one.duration_s for one in ran) / sum(one.default_s for one in ran) - 1.0


def since(lived: Sequence[Lived], part: float) -> list[Lived]:
    """What was lived after this part of the time."""
    from_s = part * lived[-1].ended_s
    return [one for one in lived if one.ended_s > from_s]


def windows_over(lived: Sequence[Lived], budget: float) -> tuple[int, int]:
    """How many windows broke the budget, and the most in a row."""
    ran = [one for one in lived if one.kind != "pause"]
    count = row = longest = 0
    for at in range(0, len(ran) - WINDOW + 1, WINDOW):
        late = slowdown_of(ran[at : at + WINDOW]) > budget + OVER_RATIO
        count, row = count + late, row + 1 if late else 0
        longest = max(longest, row)
    return count, longest


def until_plan(lived: Sequence[Lived], budget: float) -> tuple[tuple[str, int | None], ...]:
    found: list[tuple[str, int | None]] = []
    for _, group in itertools.groupby(lived, key=lambda one: one.phase):
        ran = list(group)
        if ran[0].kind == "pause" or len(ran) < WINDOW:
            continue
        good = (
            at
            for at in range(len(ran) - WINDOW + 1)
            if not any(one.at_default for one in ran[at : at + WINDOW])
            and slowdown_of(ran[at : at + WINDOW]) <= budget + OVER_RATIO
        )
        found.append((ran[0].name, next(good, None)))
    return tuple(found)


def at_default_ratio(lived: Sequence[Lived]) -> float:
    """Share of the time after the first clock was lowered; 1 where none was."""
    ran = [one for one in lived if one.kind != "pause"]
    begun = next((at for at, one in enumerate(ran) if not one.at_default), None)
    if begun is None:
        return 1.0
    whole_s = sum(one.duration_s for one in ran[begun:])
    return sum(one.duration_s for one in ran[begun:] if one.at_default) / whole_s


def live(world: LifeWorld, minutes: float, known: Sequence[KnownJob] = ()) -> Verdict:
    """The world under a controller for so long, whose store has these jobs."""
    began_s = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/controller.db")
        if known:
            store.keep_learnt(NAME, encoded(known))
        controller = Controller(world, store, world.asked())
        controller.run(int(60 * minutes))
        store.close()
    spent_s = time.process_time() - began_s
    return verdict(world, controller, spent_s)


def verdict(world: LifeWorld, controller: Controller, cpu_s: float = 0.0) -> Verdict:
    lived, budget = world.lived, world.budget
    jobs = [board.jobs[0] for board in controller.boards if board.jobs]
    held = [job for job in jobs if job.applied is not None]
    truly_j = sum(one.default_j - one.energy_j for one in lived)
    worth = abs(truly_j) > 0.005 * sum(one.default_j for one in lived)
    measured_j = jobs[-1].account.measured_j if jobs else None
    last, names = since(lived, 0.5), {one.name for one in lived if one.kind != "pause"}
    early = lived[60:80]

    def best(microbatches: int) -> float:
        held = world.surroundings.cap_w, world.surroundings.capped
        return oracle(world.sku.name, world.stages, microbatches, budget, *held)

    nominal = best(world.pipeline.microbatches)
    return Verdict(
        nominal,
        saved_of(last),
        slowdown_of(last),
        saved_of(early) / best(early[0].microbatches) if early else 0.0,
        slowdown_of(lived),
        *windows_over(lived, budget),
        {name: slowdown_of([one for one in lived if one.name == name]) for name in sorted(names)},
        until_plan(lived, budget),
        at_default_ratio(lived),
        max((job.trips for job in jobs), default=0),
        len(controller.plans()),
        measured_j / truly_j if worth and measured_j is not None else None,
        (held[-1].account.known_ratio or 0.0) if held else 0.0,
        cpu_s,
    )


# -- lives ---------------------------------------------------------------------------------

Make = Callable[..., LifeWorld]
TRAIN = (Phase("train"),)


def lives() -> dict[str, Make]:
    """By name; each takes the keywords of `LifeWorld`. Without public data its life is absent."""
    made: dict[str, Make] = {
        "steady": functools.partial(LifeWorld, TRAIN),
        # Lengths drawn apart, and batches of similar length that come together.
        "random": functools.partial(LifeWorld, TRAIN, Surroundings(spread=0.12)),
        "random-waves": functools.partial(LifeWorld, TRAIN, Surroundings(spread=0.12, memory=0.5)),
        "evaluation": functools.partial(
            LifeWorld,
            (Phase("train", lasts_s=240.0), Phase("evaluate", "evaluate", lasts_s=60.0)),
        ),
        "stalls": _stalls,
        "checkpoints": functools.partial(
            LifeWorld, (Phase("train", iterations=49), Phase("save", iterations=1, wait_s=15.0))
        ),
        "checkpoint-gaps": functools.partial(
            LifeWorld, (Phase("train", iterations=50), Phase("save", "pause", lasts_s=20.0))
        ),
        "microbatches": functools.partial(
            LifeWorld,
            (
                Phase("8 microbatches", lasts_s=400.0, microbatches=8),
                Phase("16 microbatches", lasts_s=400.0, microbatches=16),
                Phase("24 microbatches"),
            ),
            shaped=True,
        ),
        "short-runs": functools.partial(
            LifeWorld, (Phase("run", iterations=20, restarts=True), PAUSE)
        ),
        "short-jobs": functools.partial(
            LifeWorld, (Phase("run", iterations=20, restarts=True), PAUSE), slurm=True
        ),
        "hot-day": functools.partial(
            LifeWorld, TRAIN, Surroundings(hot_pace=0.05, hot_power=0.08, hot_clock=0.05)
        ),
        "replaced": functools.partial(
            LifeWorld,
            (
                Phase("before", lasts_s=600.0),
                Phase("lost", "pause", lasts_s=60.0, replaced="n2:1"),
                Phase("after"),
            ),
        ),
        # The others wait for one GPU, and then do not have to any more.
        "recovers": functools.partial(LifeWorld, TRAIN, Surroundings(slow_ratio=1.15)),
        "throttling": functools.partial(LifeWorld, TRAIN, Surroundings(throttle_share=0.01)),
        "capped": functools.partial(LifeWorld, TRAIN, Surroundings(cap_w=360.0, capped=(0, 5))),
        # The card's own limit holds every stage below its highest clock, or the site's does.
        **{f"capped-{card}": functools.partial(LifeWorld, TRAIN, card=card) for card in CAPPED},
        "limited-h200": functools.partial(
            LifeWorld, TRAIN, Surroundings(cap_w=500.0, capped=tuple(range(8))), card="h200"
        ),
    }
    if (STRAGGLERS / "trace-SE.parquet").exists():
        made["production"] = _production
    return made


PAUSE = Phase("between", "pause", lasts_s=12.0)


def _stalls(*, iteration_s: float = 1.0, **world: object) -> LifeWorld:
    life = (
        Phase("train", lasts_s=300.0),
        Phase("stalled", lasts_s=180.0, wait_s=0.12 * iteration_s),
    )
    return LifeWorld(life, iteration_s=iteration_s, **world)


def _production(*, seed: int = 1, **world: object) -> LifeWorld:
    """Two stages of eight microbatches, as they were recorded."""
    factors = _recorded()
    begun = seed * 37 % len(factors)
    around = Surroundings(recorded=np.roll(factors, -begun, axis=0))
    shape = {"stages": 2, "microbatches": 8}
    return LifeWorld(TRAIN, around, seed=seed, **(world | shape))


@functools.cache
def _recorded() -> Floats:
    """Time of each operation over the mean of its stage and kind (pipelines x steps, steps of the
    plant), pipeline after pipeline.
    """
    table = parquet.read_table(STRAGGLERS / "trace-SE.parquet")
    columns = {name: table[name].to_numpy() for name in table.column_names}
    one = {
        name: values[np.isin(columns["optype"], ["forward-compute", "backward-compute"])]
        for name, values in columns.items()
    }
    order = _order(2, 8, "train")
    place = np.zeros((2, 2, 8), dtype=np.int64)
    for at, step in enumerate(order.steps):
        place[INSTRUCTIONS.index(step.instruction), step.stage, step.microbatch] = at
    backward = (one["optype"] == "backward-compute").astype(np.int64)
    _, step_of = np.unique(one["step"], return_inverse=True)
    steps, pipelines = step_of.max() + 1, int(one["dp_rank"].max()) + 1
    row = one["dp_rank"].astype(np.int64) * steps + step_of
    column = place[backward, one["stage"], one["mb_id"]]
    seconds, count = (np.zeros((steps * pipelines, len(order.steps))) for _ in range(2))
    np.add.at(seconds, (row, column), one["duration"])
    np.add.at(count, (row, column), 1.0)
    seconds = seconds[(count > 0).all(axis=1)] / count[(count > 0).all(axis=1)]
    for kind, stage in itertools.product(range(2), range(2)):
        mine = place[kind, stage]
        seconds[:, mine] /= seconds[:, mine].mean()
    return seconds
