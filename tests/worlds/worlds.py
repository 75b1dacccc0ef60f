"""A cluster in one process and on a virtual clock, behind the controller's `Fleet` port.

The plant is the simulator's (it shares nothing with the controller's model); the agents are
a few lines of lease book-keeping that records every command. Nothing here sleeps.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from at_once import AtOnce, studied

from joulecut_controller.board import Board, JobBoard
from joulecut_controller.election.claims import Claims
from joulecut_controller.election.fenced_fleet import FencedFleet
from joulecut_controller.election.power_table import PowerTable
from joulecut_controller.plan.guard import Check
from joulecut_controller.plan.plan import Forecast
from joulecut_controller.plan.solver_cache import Prepare
from joulecut_controller.policy.policy import ClockPolicy, JobPolicy, Mode, Policy, Slo
from joulecut_controller.ports import ArrivedReport, Fleet, FleetState, Rates, Store
from joulecut_controller.reconcile.frontiers import Frontier
from joulecut_controller.reconcile.pacing import Pacing
from joulecut_controller.reconcile.planning_step import Complete, SolverFunctions
from joulecut_controller.reconcile.reconciler import Reconciler
from joulecut_controller.view import GpuView, NodeView
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Granularity, Kind, Pipeline, Profile
from joulecut_engine.money import Prices
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.problem import Problem, Solution
from joulecut_engine.optimize.solver import Solver
from joulecut_engine.optimize.solver import frontier as solved_frontier
from joulecut_sim.execution import Execution
from joulecut_sim.plant import Iteration, Noise, Plant
from joulecut_sim.profile import rows
from joulecut_sim.skus import Sku, find
from joulecut_wire.errors import BadInput
from joulecut_wire.messages import (
    Allocation,
    Command,
    GpuDescription,
    GpuSnapshot,
    IterationReport,
    IterationTiming,
    Lease,
    OperationReport,
    Result,
    TimedStep,
)

TTL_MAX_S = 60.0


@dataclass
class Agent:
    """One node's agent: leases by GPU, and what may be switched on to go wrong."""

    address: str
    node: str
    uuids: tuple[str, ...]
    epoch_seen: int = 0
    connected: bool = True
    refuse: str = ""  # every Apply is refused with this reason
    controllable: bool = True
    reason: str = "MIG is on"  # where it is not
    leases: dict[str, tuple[Lease, float]] = field(default_factory=dict)  # with its end
    stopped: str = ""
    drift: dict[str, str] = field(default_factory=dict)
    stands_back: set[str] = field(default_factory=set)
    owners: dict[str, Allocation] = field(default_factory=dict)
    answers: bool = True  # False: commands are carried out, and their answers are lost
    keeps: bool = False  # whether it keeps power limits when their lease ends
    limits_w: dict[str, float] = field(default_factory=dict)  # set; the card's own where none is
    kept: dict[str, float] = field(default_factory=dict)
    claimed: tuple[str, ...] = ()  # GPUs that it shows and another agent owns
    lowers_unused: bool = True  # an old one passes over the clock of an unused GPU

    def end(self, uuid: str) -> None:
        """A lease ends: clocks are reset, and so is a power limit that is not kept."""
        above = self.stands_above(uuid)
        self.leases.pop(uuid, None)
        if above:
            self.limits_w[uuid] = self.kept[uuid]
        elif uuid not in self.kept:
            self.limits_w.pop(uuid, None)

    def stands_above(self, uuid: str) -> bool:
        """Whether the limit in force is a lease's, above a kept one."""
        held = self.leases.get(uuid)
        limit_w = held[0].power_limit_w if held else None
        return uuid in self.kept and limit_w is not None and limit_w == self.limits_w.get(uuid)


@dataclass(frozen=True)
class Call:
    """One command that reached an agent."""

    op: str
    address: str
    job: str
    generation: int = 0
    clocks_mhz: tuple[tuple[str, int], ...] = ()
    epoch: int = 0
    limits_w: tuple[tuple[str, float | None], ...] = ()


class World:
    """One job on `stages` GPUs over two nodes. Implements `ports.Fleet`."""

    def __init__(
        self,
        *,
        job: str = "demo",
        stages: int = 4,
        microbatches: int = 24,
        card: str = "a100-sxm",
        noise: Noise | None = None,
        seed: int = 1,
        scale: float = 0.045,
        timed: bool = False,
        prefix: str = "",
    ) -> None:
        """With `timed` agents know when iterations begin, and time clock changes from that.
        `prefix`: of its nodes and GPUs, beside those of other jobs.
        """
        self.job, self.stages = job, stages
        self.sku: Sku = find(card, "card")
        self.pipeline = Pipeline("1f1b", stages, microbatches)
        self.scale = scale
        self.timed, self.start_jitter_s, self.missed_ratio = timed, 0.002, 0.0
        self.steps: dict[str, tuple[TimedStep, ...]] = {}
        self.plant = Plant(
            [self.sku] * stages, microbatches, time_scale=self.scale, noise=noise, seed=seed
        )
        half = (stages + 1) // 2
        names = [f"GPU-{prefix}{stage}" for stage in range(stages)]
        nodes = ((f"{prefix}n1", names[:half]), (f"{prefix}n2", names[half:]))
        self.agents = {f"{n}:1": Agent(f"{n}:1", n, tuple(uuids)) for n, uuids in nodes}
        self.uuids = tuple(names)
        self.stage_of = {uuid: stage for stage, uuid in enumerate(names)}
        self.now_s = 1000.0
        self.running = True
        self.unused_mhz: dict[str, int] = {}  # clocks until the first work
        self.behind = False  # whether readings were made before the newest command
        self.peer_s = 0.0
        self.slow_ratio = 1.0  # what the job really takes over what the plant says
        self.hidden_ratio = 1.0  # the same, but only below default clocks and told by no report
        self.calls: list[Call] = []
        self.history: list[tuple[float, float, dict[str, int]]] = []  # ended, duration, clocks
        self._energy = dict.fromkeys(names, 0.0)
        self._reports: list[ArrivedReport] = []
        self._iteration = 0
        self._current: Iteration | None = None
        self._duration_s = 0.0
        self._began_s = self._ends_s = self.now_s
        self._clocks: dict[str, int] = {}

    # -- the operator's side ---------------------------------------------------------------

    def profile(self, lowest_mhz: int = 0) -> Profile:
        options: dict[tuple[int, Kind], list[ClockOption]] = {}
        for stage, kind, clock, time_s, energy_j in rows(
            self.sku, self.stages, scale=self.scale, noise=0.0, seed=1
        ):
            if clock >= lowest_mhz:
                options.setdefault((stage, kind), []).append(ClockOption(clock, time_s, energy_j))
        return Profile({key: tuple(made) for key, made in options.items()}, "simulated")

    def policy(
        self, mode: Mode = "enforce", slo: Slo | None = None, digest: str = "1", **changes: object
    ) -> Policy:
        job = JobPolicy(
            name=self.job,
            mode=mode,
            slo=slo or Slo(max_slowdown=0.02),
            clocks=ClockPolicy(min_mhz=900, min_dwell_s=5.0),
            pipeline=self.pipeline,
            profile=self.profile(),
            blocking_power_w=self.sku.blocking_power_w,
        )
        job = replace(job, **changes)
        return Policy(mode="recommend", jobs=(job,), source="world", digest=digest)

    # -- time ------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Lets time pass: iterations end, leases run out."""
        until_s = self.now_s + seconds
        if self.running:
            self._end_unused()
        while self.running and self._ends_s <= until_s:
            self._to(self._ends_s)
            self._finish()
            self._begin()
        self._to(until_s)

    def clocks_mhz(self) -> dict[str, int]:
        """What the GPUs run at: their lease's clock, or the default."""
        held = {
            u: lease.clock_max_mhz
            for a in self.agents.values()
            for u, (lease, _) in a.leases.items()
            if lease.clock_max_mhz
        }
        held |= {uuid: mhz for uuid, mhz in self.unused_mhz.items() if uuid in held}
        return {uuid: held.get(uuid, self.sku.clock_max_mhz) for uuid in self.uuids}

    def _end_unused(self) -> None:
        """Agents end the leases of unused GPUs at their first work, by themselves."""
        for agent in self.agents.values():
            for uuid in self.unused_mhz.keys() & agent.leases.keys() & set(self.uuids):
                agent.end(uuid)
        self.unused_mhz = {u: mhz for u, mhz in self.unused_mhz.items() if u not in self.uuids}

    def add_idle_node(self, node: str, count: int) -> Agent:
        """A node whose GPUs have no job."""
        agent = Agent(f"{node}:1", node, tuple(f"GPU-{node}-{n}" for n in range(count)))
        self.agents[agent.address] = agent
        self._energy |= dict.fromkeys(agent.uuids, 0.0)
        return agent

    def begin_energy(self, uuid: str) -> None:
        """The driver was loaded again."""
        self._energy[uuid] = 0.0

    def limits_w(self) -> dict[str, float]:
        """The power limit in force on every GPU."""
        return {
            uuid: agent.limits_w.get(uuid, self.sku.power_limit_w)
            for agent in self.agents.values()
            for uuid in agent.uuids
        }

    def counted_w(self) -> float:
        """What counts against a budget: the limits that stay when leases end, or the power drawn
        where that is more.
        """
        return max(self.stays_w(), self.power_w())

    def stays_w(self) -> float:
        """The limits in force that stay when leases end."""
        limits_w = self.limits_w()
        for agent in self.agents.values():
            limits_w |= {u: agent.kept[u] for u in agent.uuids if agent.stands_above(u)}
        return sum(limits_w.values())

    def power_w(self) -> float:
        """What all GPUs draw now."""
        total_w = 0.0
        for uuid, limit_w in self.limits_w().items():
            power_w = self.sku.idle_power_w
            if uuid in self.uuids and self._current is not None and self.running:
                energy_j = self._current.stages[self.uuids.index(uuid)].energy_j
                power_w = energy_j / self._duration_s
            total_w += min(power_w, limit_w)
        return total_w

    def at_default(self) -> bool:
        return set(self.clocks_mhz().values()) == {self.sku.clock_max_mhz}

    def recent_s(self, count: int = 30) -> float:
        """Mean duration of the newest iterations."""
        newest = [duration_s for _, duration_s, _ in self.history[-count:]]
        return sum(newest) / len(newest)

    def sent(self, *ops: str) -> list[Call]:
        return [call for call in self.calls if not ops or call.op in ops]

    def _to(self, when_s: float) -> None:
        if self._current is not None and self.running:
            share = (when_s - self.now_s) / self._duration_s
            for uuid, stage in zip(self.uuids, self._current.stages, strict=True):
                self._energy[uuid] += stage.energy_j * share
        else:
            for uuid in self.uuids:
                self._energy[uuid] += self.sku.idle_power_w * (when_s - self.now_s)
        self.now_s = when_s
        for agent in self.agents.values():
            for uuid in [u for u, held in agent.leases.items() if held[1] <= when_s]:
                agent.end(uuid)

    def _begin(self) -> None:
        clocks = self.clocks_mhz()
        self._clocks = clocks
        limits_w = self.limits_w()
        if any(map(self._steps_of, self.uuids)):
            limits = tuple(limits_w[u] for u in self.uuids)
            run = Execution(self.plant, limits_w=limits)
            run.advance(math.inf, self._clock)
            self._current = run.iteration()
        else:
            self._current = self.plant.iterate(
                [clocks[u] for u in self.uuids], limits_w=[limits_w[u] for u in self.uuids]
            )
        own_s = self._current.own_s * self.slow_ratio
        if not self.at_default():
            own_s *= self.hidden_ratio
        self._duration_s = max(own_s, self.peer_s)
        self._began_s, self._ends_s = self.now_s, self.now_s + self._duration_s

    def _steps_of(self, uuid: str) -> tuple[TimedStep, ...]:
        """The clock changes of an iteration, as long as their lease is held."""
        held = any(uuid in agent.leases for agent in self.agents.values())
        return self.steps.get(uuid, ()) if held else ()

    def _clock(self, stage: int, at_s: float) -> tuple[float, float]:
        """The clock of a GPU so long after the start of an iteration, and until when it stays."""
        uuid = self.uuids[stage]
        steps = [step for step in self._steps_of(uuid) if isinstance(step, TimedStep)]
        if not steps:
            return self._clocks[uuid], math.inf
        begun = [step for step in steps if step.offset_s <= at_s]
        next_s = min((step.offset_s for step in steps if step.offset_s > at_s), default=math.inf)
        return (begun[-1] if begun else steps[-1]).clock_max_mhz, next_s

    def _timing(self, uuid: str) -> IterationTiming | None:
        if not self.timed or uuid not in self.uuids or len(self.history) < 3:
            return None
        period_s = self.history[-1][1]
        figures = (self.start_jitter_s, 60.0 / period_s, self.missed_ratio)
        return IterationTiming(self.job, uuid, "report", period_s, *figures)

    def _finish(self) -> None:
        if self._current is None:
            return
        self.history.append((self.now_s, self._duration_s, self._clocks))
        for uuid, run in zip(self.uuids, self._current.stages, strict=True):
            count = self.pipeline.microbatches * self.pipeline.chunks
            operations = tuple(
                OperationReport(kind, count, busy_s * self.slow_ratio)
                for kind, busy_s in run.busy_s.items()
            )
            report = IterationReport(
                self.job,
                uuid,
                self.stage_of[uuid],
                self._iteration,
                self._duration_s,
                operations,
                self.peer_s or None,
            )
            self._reports.append(ArrivedReport(report, self.now_s))
        self._iteration += 1

    # -- the fleet port --------------------------------------------------------------------

    def observe(self, now_s: float, addresses: object = ()) -> FleetState:
        nodes, gpus = [], []
        for agent in self.agents.values():
            known = NodeView(
                agent.address, agent.node, agent.connected, agent.epoch_seen, TTL_MAX_S, "1",
                stopped=agent.stopped, keeps_power_limits=agent.keeps, claimed=agent.claimed,
                limits_above_kept=agent.keeps,
                timed_steps_max=64 if self.timed else 0,
                lowers_unused=agent.lowers_unused,
            )  # fmt: skip
            nodes.append(known)
            for index, uuid in enumerate(agent.uuids):
                description = GpuDescription(
                    uuid,
                    index,
                    self.sku.model,
                    self.sku.clocks_mhz,
                    controllable=agent.controllable,
                    reason="" if agent.controllable else agent.reason,
                    min_dwell_s=1.0,
                    power_limit_default_w=self.sku.power_limit_w,
                    power_limit_min_w=self.sku.power_limit_min_w,
                    power_limit_max_w=self.sku.power_limit_max_w,
                    power_controllable=agent.controllable and agent.keeps,
                    set_latency_p95_s=0.03,
                    set_latency_spread_s=0.02,
                )
                snapshot = self._snapshot(agent, uuid) if agent.connected else None
                age_s = 0.0 if agent.connected else float("inf")
                owner = agent.owners.get(uuid)
                timing = self._timing(uuid)
                gpus.append(
                    GpuView(
                        description,
                        agent.address,
                        agent.node,
                        snapshot,
                        age_s,
                        owner,
                        timing,
                        behind=self.behind,
                    )
                )
        return FleetState(tuple(nodes), tuple(gpus))

    def _snapshot(self, agent: Agent, uuid: str) -> GpuSnapshot:
        held = agent.leases.get(uuid)
        lease = replace(held[0], expires_in_s=held[1] - self.now_s) if held else None
        limit_w = self.limits_w()[uuid]
        return GpuSnapshot(
            uuid,
            energy_j=self._energy[uuid],
            clock_sm_mhz=self._shown_mhz(uuid),
            utilization_gpu_ratio=float(uuid in self.uuids and self.running),
            power_limit_enforced_w=limit_w if agent.keeps else None,
            power_limit_kept_w=agent.kept.get(uuid, 0.0),
            lease=lease,
            drift=agent.drift.get(uuid, ""),
            backoff_s=60.0 if uuid in agent.stands_back else 0.0,
        )

    def _shown_mhz(self, uuid: str) -> int:
        """A power limit leaves no more than the clock of the operation that draws least."""
        if uuid not in self.uuids:
            return self.sku.clock_min_mhz
        clock_mhz = self.clocks_mhz()[uuid]
        if self.limits_w()[uuid] < self.sku.power_limit_w and self._current is not None:
            stage = self._current.stages[self.uuids.index(uuid)]
            return min(clock_mhz, stage.clock_cap_mhz)
        return clock_mhz

    def give(self, job: str, *uuids: str, source: str = "kubernetes", **labels: str) -> None:
        """GPUs go to a job: a pod on each node, or a Slurm job; all of them where none is named.
        Whoever had them loses its lease, as agents see to it.
        """
        for agent in self.agents.values():
            for uuid in set(uuids or self.uuids) & set(agent.uuids):
                pod = f"{job}-{agent.node}" if source == "kubernetes" else ""
                namespace = "train" if pod else ""
                agent.owners[uuid] = Allocation(uuid, job, namespace, pod, source, labels)
                agent.end(uuid)

    def take_away(self) -> None:
        """Nobody holds any GPU."""
        for agent in self.agents.values():
            agent.owners.clear()
            agent.leases.clear()

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        taken, self._reports = tuple(self._reports), []
        return taken

    async def apply(self, address: str, command: Command) -> tuple[Result, ...]:
        agent = self.agents[address]
        clocks = tuple((s.uuid, s.clock_max_mhz) for s in command.settings)
        self.calls.append(
            Call(
                "apply",
                address,
                command.job,
                command.generation,
                clocks,
                command.epoch,
                tuple((s.uuid, s.power_limit_w) for s in command.settings),
            )
        )
        reason = self._refused(agent, command.epoch) or agent.refuse
        if reason:
            return tuple(Result(s.uuid, accepted=False, reason=reason) for s in command.settings)
        for setting in command.settings:
            low_mhz = setting.unused_clock_mhz if agent.lowers_unused else 0
            lowest = min((step.clock_max_mhz for step in setting.timed_steps), default=low_mhz)
            lease = Lease(
                command.job,
                command.epoch,
                command.generation,
                0,
                setting.clock_max_mhz,
                0.0,
                clock_lowest_mhz=lowest,
                power_limit_w=setting.power_limit_w,
            )
            self.steps[setting.uuid] = setting.timed_steps
            self.unused_mhz[setting.uuid] = low_mhz
            if not low_mhz:
                del self.unused_mhz[setting.uuid]
            held = setting.uuid in agent.leases
            before_w = agent.leases[setting.uuid][0].power_limit_w if held else None
            agent.leases[setting.uuid] = (lease, self.now_s + command.ttl_s)
            if setting.power_limit_w is None:
                if setting.uuid in agent.kept and before_w is not None:
                    agent.limits_w[setting.uuid] = agent.kept[setting.uuid]
                elif before_w is not None:
                    agent.limits_w.pop(setting.uuid, None)
            elif not (setting.above_kept_limit and setting.power_limit_w == before_w):
                agent.limits_w[setting.uuid] = setting.power_limit_w
                if not setting.above_kept_limit:
                    agent.kept.pop(setting.uuid, None)
                if setting.keep_power_limit:
                    agent.kept[setting.uuid] = setting.power_limit_w
        if not agent.answers:
            return (Result("", accepted=False, reason="no answer (DEADLINE_EXCEEDED)"),)
        return tuple(Result(s.uuid, accepted=True) for s in command.settings)

    async def renew(
        self, address: str, epoch: int, job: str, generation: int, ttl_s: float
    ) -> tuple[Result, ...]:
        agent = self.agents[address]
        self.calls.append(Call("renew", address, job, generation, epoch=epoch))
        reason = self._refused(agent, epoch)
        mine = [u for u, (lease, _) in agent.leases.items() if lease.job == job]
        if reason or not mine:
            return (Result("", accepted=False, reason=reason or "no lease"),)
        for uuid in mine:
            agent.leases[uuid] = (agent.leases[uuid][0], self.now_s + ttl_s)
        return tuple(Result(uuid, accepted=True) for uuid in mine)

    async def clear(
        self, address: str, epoch: int, job: str, uuids: Sequence[str], reason: str
    ) -> tuple[Result, ...]:
        agent = self.agents[address]
        self.calls.append(
            Call("clear", address, job, clocks_mhz=tuple((u, 0) for u in uuids), epoch=epoch)
        )
        refused = self._refused(agent, epoch)
        if refused:
            return (Result("", accepted=False, reason=refused),)
        for uuid in uuids or agent.uuids:
            agent.end(uuid)
        return tuple(Result(uuid, accepted=True) for uuid in uuids)

    def _refused(self, agent: Agent, epoch: int) -> str:
        if not agent.connected:
            return "no answer (UNAVAILABLE)"
        if epoch < agent.epoch_seen:
            return f"epoch {epoch} is older than {agent.epoch_seen}"
        agent.epoch_seen = epoch
        return ""


class HeldSource:
    """A policy source in memory; `broken` makes the next load fail."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.broken = ""
        self._changed = False

    def put(self, policy: Policy) -> None:
        self.policy, self._changed = policy, True

    def damage(self, what: str) -> None:
        self.broken, self._changed = what, True

    def changed(self) -> bool:
        return self._changed

    def load(self) -> Policy:
        self._changed = False
        if self.broken:
            raise BadInput("policy.yaml:3: jobs[0]", self.broken, "something else")
        return self.policy


def as_made(_prepare: Prepare, made: Forecast, *_: object) -> Forecast:
    """Without the prices of other granularities: they take a quarter of a long story."""
    return made


def few_points(
    problem: Problem, points: int, granularity: Granularity, *, prices: Prices | None
) -> tuple[Solution, ...]:
    """A frontier that is coarse: a fine one takes most of a story."""
    return solved_frontier(problem, min(points, 8), granularity, prices=prices)


def ends(
    problem: Problem, _points: int, granularity: Granularity, *, prices: Prices | None
) -> tuple[Solution, ...]:
    """Both ends of a frontier, where a story asks only whether there is one."""
    return solved_frontier(problem, 2, granularity, prices=prices)


class Controller:
    """A controller on a world's clock."""

    def __init__(
        self,
        world: World,
        store: Store,
        policy: Policy,
        *,
        interval_s: float = 1.0,
        frontier: Frontier = lambda problem, points, granularity, *, prices: (),
        complete: Complete = as_made,
        unready: Callable[[], str] = lambda: "",
        learner: OnlineEstimator | None = None,
        prepare: Prepare = Solver,
        judge: Check = check,
        planners: Executor | None = None,
        rates: Rates | None = None,
        reports: Sequence[ArrivedReport] = (),
        claims: Claims | None = None,
        fleet: Fleet | None = None,
        power_table: PowerTable | None = None,
    ) -> None:
        """`claims`, `fleet` and `power_table` are those of one of several controllers."""
        self.world, self.store, self.interval_s = world, store, interval_s
        self.source = HeldSource(policy)
        if claims is None:
            seen = max(agent.epoch_seen for agent in world.agents.values())
            claims = Claims(store.next_epoch(seen))
        self.reconciler = Reconciler(
            fleet=fleet or FencedFleet(world, lambda: True, claims.first),
            store=store,
            source=self.source,
            policy=policy,
            learner=learner or OnlineEstimator({}),
            solver=SolverFunctions(prepare, judge, frontier, complete),
            planners=planners or AtOnce(),
            background=AtOnce(),
            claims=claims,
            pacing=Pacing(interval_s=interval_s, watch_s=0.1),
            now_s=lambda: world.now_s,
            unix_s=lambda: 1.8e9 + world.now_s,
            unready=unready,
            rates=rates,
            reports=reports,
            power_table=power_table,
        )
        self.boards: list[Board] = []

    @property
    def job(self) -> JobBoard:
        return self.boards[-1].jobs[0]

    def run(self, passes: int, until: object = None) -> int:
        """So many passes; fewer where `until()` holds earlier. Answers how many it took."""

        async def go() -> int:
            asyncio.get_running_loop().set_default_executor(AtOnce())
            for done in range(passes):
                self.world.advance(self.interval_s)
                await self.reconciler.beat_all()
                self.boards.append(await self.reconciler.run_pass())
                await studied()
                if callable(until) and until():
                    return done + 1
            return passes

        return asyncio.run(go())

    def stop(self) -> None:
        asyncio.run(self.reconciler.stop("the controller stops"))

    def events(self, kind: str) -> list[str]:
        """Texts of one kind of event, oldest first."""
        return [e.text for e in reversed(self.store.events(limit=1000)) if e.kind == kind]

    def plans(self) -> list[int]:
        """Generations decided so far, each once, in order."""
        seen: list[int] = []
        for board in self.boards:
            for job in board.jobs:
                if job.decision and job.decision.actions and job.decision.generation not in seen:
                    seen.append(job.decision.generation)
        return seen
