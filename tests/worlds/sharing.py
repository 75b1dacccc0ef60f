"""Several jobs under one controller and one power budget, each with GPUs of its own.

Beside what the jobs do, what others would do with the same watts: equal power limits, and the best
fixed clock per GPU by mean power. Simulated; the plant is the simulator's.
"""

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace

from worlds import Agent, Controller, World, few_points

from joulecut_controller.policy.policy import Policy, Slo
from joulecut_controller.ports import ArrivedReport, FleetState
from joulecut_controller.store.database import open_store
from joulecut_engine.graph import build
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.budget import Bidder, Offer, allocate
from joulecut_engine.optimize.formulation import priced
from joulecut_engine.optimize.solver import frontier
from joulecut_sim.plant import INSTRUCTIONS, Noise, Plant
from joulecut_wire.messages import Command, Result

CARDS = ("a100-sxm", "a40", "h100-sxm")
SHAPES = ((4, 8), (4, 12), (4, 24))
ITERATION_S = 0.5
POINTS = 24  # of a frontier
LOWEST_MHZ = 900  # as in the policy of a world
OVER_RATIO = 0.01  # of a budget: a second that broke it
GONE_S = 120  # without a controller


@dataclass(frozen=True, slots=True)
class Steady:
    """A job at one setting, without jitter."""

    rate_hz: float
    power_w: float


class Sharing:
    """Implements `ports.Fleet` over several worlds."""

    def __init__(self, worlds: Sequence[World]) -> None:
        self.worlds = tuple(worlds)
        for world in self.worlds:
            for agent in world.agents.values():
                agent.keeps = True
        self.now_s = self.worlds[0].now_s

    @property
    def agents(self) -> dict[str, Agent]:
        return {a: agent for world in self.worlds for a, agent in world.agents.items()}

    def advance(self, seconds: float) -> None:
        for world in self.worlds:
            world.advance(seconds)
        self.now_s += seconds

    def energy_j(self) -> float:
        return sum(sum(world._energy.values()) for world in self.worlds)

    def limits_w(self) -> dict[str, float]:
        return {u: w for world in self.worlds for u, w in world.limits_w().items()}

    def policy(self, budget_w: float, max_slowdown: float = 0.0) -> Policy:
        own = [world.policy(slo=Slo(max_slowdown=max_slowdown)) for world in self.worlds]
        gpus = [
            replace(one.jobs[0], blocking_power_w=world.sku.blocking_power_w)
            for one, world in zip(own, self.worlds, strict=True)
        ]
        return replace(
            own[0], jobs=tuple(gpus), power_budget_w=budget_w, digest=f"budget {budget_w}"
        )

    # -- the fleet port --------------------------------------------------------------------

    def observe(self, now_s: float, addresses: object = ()) -> FleetState:
        states = [world.observe(now_s) for world in self.worlds]
        nodes = tuple(node for state in states for node in state.nodes)
        return FleetState(nodes, tuple(gpu for state in states for gpu in state.gpus))

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        return tuple(one for world in self.worlds for one in world.take_reports())

    def _at(self, address: str) -> World:
        return next(world for world in self.worlds if address in world.agents)

    async def apply(self, address: str, command: Command) -> tuple[Result, ...]:
        return await self._at(address).apply(address, command)

    async def renew(
        self, address: str, epoch: int, job: str, generation: int, ttl_s: float
    ) -> tuple[Result, ...]:
        return await self._at(address).renew(address, epoch, job, generation, ttl_s)

    async def clear(
        self, address: str, epoch: int, job: str, uuids: Sequence[str], reason: str
    ) -> tuple[Result, ...]:
        return await self._at(address).clear(address, epoch, job, uuids, reason)


def drawn(
    seed: int,
    count: int,
    cards: Sequence[str] = CARDS,
    shapes: Sequence[tuple[int, int]] = SHAPES,
) -> Sharing:
    """`count` jobs of drawn card and shape."""
    dice = random.Random(f"sharing {seed}")
    worlds = []
    for number in range(count):
        card, (stages, microbatches) = dice.choice(cards), dice.choice(shapes)
        still = Plant([World(card=card, stages=1, microbatches=1).sku] * stages, microbatches)
        whole_s = still.iterate([sku.clock_max_mhz for sku in still.skus]).own_s
        scale = ITERATION_S * dice.uniform(0.8, 1.25) / whole_s
        name = f"job-{number}"
        worlds.append(
            World(
                job=name,
                stages=stages,
                microbatches=microbatches,
                card=card,
                seed=100 * seed + number,
                scale=scale,
                prefix=f"{number}-",
            )
        )
    return Sharing(worlds)


def still(world: World) -> Plant:
    """The same GPUs without jitter of operations."""
    plant = Plant(
        world.plant.skus, world.plant.microbatches, time_scale=world.scale, noise=Noise(0.0)
    )
    plant.time_ratio, plant.power_ratio = world.plant.time_ratio, world.plant.power_ratio
    return plant


def at(plant: Plant, clocks: Sequence[int], limits_w: Sequence[float] | None = None) -> Steady:
    run = plant.iterate(clocks, limits_w=limits_w)
    return Steady(1.0 / run.duration_s, run.energy_j / run.duration_s)


def at_default(world: World) -> Steady:
    return at(still(world), [world.sku.clock_max_mhz] * world.stages)


def equal_limits(sharing: Sharing, budget_w: float) -> list[Steady]:
    """The budget by GPU in equal parts; what a card cannot take goes to the others."""
    cards = [w.sku for w in sharing.worlds for _ in w.uuids]
    most_w = [card.power_limit_w for card in cards]
    low_w, high_w = 0.0, max(most_w)
    for _ in range(60):
        level_w = (low_w + high_w) / 2.0
        fits = sum(min(level_w, w) for w in most_w) <= budget_w
        low_w, high_w = (level_w, high_w) if fits else (low_w, level_w)
    return [
        at(
            still(world),
            [world.sku.clock_max_mhz] * world.stages,
            [min(low_w, world.sku.power_limit_w)] * world.stages,
        )
        for world in sharing.worlds
    ]


def best_fixed(sharing: Sharing, budget_w: float) -> list[Steady]:
    """One clock per GPU, with perfect knowledge, by mean power."""
    bidders = []
    for world in sharing.worlds:
        plant = still(world)
        graph = build(world.pipeline)
        menus = {
            (stage, kind): tuple(
                ClockOption(mhz, s, s * plant.power_w(stage, kind, mhz))
                for mhz in world.sku.clocks_mhz
                if mhz >= LOWEST_MHZ
                for s in (plant.time_s(stage, kind, mhz),)
            )
            for stage in range(world.stages)
            for kind in INSTRUCTIONS
        }
        watts = [plant.waiting_w(stage) for stage in range(world.stages)]
        problem = priced(graph, [menus[o.stage, o.kind] for o in graph.operations], watts)
        settings = [(world.sku.clock_max_mhz,) * world.stages]
        settings += [(mhz,) * world.stages for mhz in world.sku.clocks_mhz]
        for plan in frontier(problem, POINTS, "gpu"):
            mhz = {o.stage: c.clock_mhz for o, c in zip(graph.operations, plan.clocks, strict=True)}
            settings.append(tuple(mhz[stage] for stage in range(world.stages)))
        offers = [at(plant, clocks) for clocks in settings]
        bidders.append(Bidder(world.job, tuple(Offer(one.power_w, one.rate_hz) for one in offers)))
    return [Steady(o.rate_hz, o.power_w) for o in allocate(bidders, budget_w).offers]


@dataclass(frozen=True, slots=True)
class Shared:
    """Sums of relative throughputs; `used` of the budget, over the last half."""

    own: float
    equal: float
    best: float
    used: float
    over: int
    gone: int


def throughput(sharing: Sharing, done: Sequence[Steady]) -> float:
    each = zip(done, sharing.worlds, strict=True)
    return sum(one.rate_hz / at_default(world).rate_hz for one, world in each)


def share(sharing: Sharing, budget_ratio: float, minutes: float) -> Shared:
    """The set of jobs under a controller for so long."""
    budget_w = budget_ratio * sum(at_default(world).power_w for world in sharing.worlds)
    equal = throughput(sharing, equal_limits(sharing, budget_w))
    best = throughput(sharing, best_fixed(sharing, budget_w))
    drawn_w: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/controller.db")
        controller = Controller(sharing, store, sharing.policy(budget_w), frontier=few_points)
        before_j = sharing.energy_j()
        for _ in range(round(60 * minutes)):
            controller.run(1)
            now_j = sharing.energy_j()
            drawn_w.append(now_j - before_j)
            before_j = now_j
        half = len(drawn_w) // 2
        from_s = sharing.now_s - half
        rates = []
        for world in sharing.worlds:
            ended = [at for at, _, _ in world.history if at > from_s]
            rates.append(Steady((len(ended) - 1) / (ended[-1] - ended[0]), 0.0))
        own, used = throughput(sharing, rates), sum(drawn_w[-half:]) / half / budget_w
        gone_w = []
        for _ in range(GONE_S):
            sharing.advance(1.0)
            now_j = sharing.energy_j()
            gone_w.append(now_j - before_j)
            before_j = now_j
        store.close()
    above_w = (1.0 + OVER_RATIO) * budget_w
    over, gone = (sum(w > above_w for w in each) for each in (drawn_w[60:], gone_w))
    return Shared(own, equal, best, used, over, gone)
