"""Leases of one controller: applied, renewed and released.

Executes plans that passed the guard; decides nothing. On any refusal the whole job goes back to
default clocks: half a plan is a slow stage for nothing. A lease whose agent does not answer is no
longer renewed and runs out there.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from joulecut_controller.plan.plan import Action, Plan
from joulecut_controller.ports import Fleet
from joulecut_controller.reconcile.pacing import renewal_s
from joulecut_controller.view import BUDGET_JOB, GpuView
from joulecut_wire.messages import Command, Result, Setting

LIMITS_KEPT = 16  # power limits are set once an interval, and readings are younger
# Of one job: a call takes two milliseconds of the event loop, and a thousand begun together miss
# their deadlines.
CALLS_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class Place:
    """Where a GPU is reached."""

    address: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Holding:
    """The plan of one job that its GPUs hold under leases, and the agent of each of them.

    `generations` are those of agents that took a power limit after the plan.
    """

    plan: Plan
    address_of: Mapping[str, str]  # by GPU
    generations: Mapping[str, int] = field(default_factory=dict)

    def generation(self, address: str) -> int:
        """The generation that the leases at an agent carry."""
        return self.generations.get(address, self.plan.generation)

    @property
    def places(self) -> list[Place]:
        return [Place(address, uuid) for uuid, address in self.address_of.items()]

    @property
    def locks(self) -> dict[str, int]:
        """The clock of each GPU; 0 beside a power limit alone."""
        held = self.address_of
        return {one.uuid: one.clock_mhz or 0 for one in self.plan.actions if one.uuid in held}

    @property
    def limits_w(self) -> dict[str, float]:
        """The plan's own power limits, by GPU."""
        return {one.uuid: one.power_limit_w for one in self.plan.actions if one.power_limit_w}

    def setting(self, uuid: str) -> Setting:
        """The setting of one GPU."""
        action = next(one for one in self.plan.actions if one.uuid == uuid)
        return setting_of(self.plan, action)


def setting_of(plan: Plan, action: Action) -> Setting:
    """One GPU's part of a plan as its agent takes it."""
    limit_w = action.power_limit_w
    setting = Setting(
        action.uuid,
        clock_max_mhz=action.clock_mhz or 0,
        power_limit_w=limit_w,
        unused_clock_mhz=action.unused_mhz,
    )
    if not action.steps or plan.forecast is None:
        return setting
    return replace(
        setting,
        timed_steps=action.steps,
        iteration_time_s=plan.forecast.iteration_time_s,
        shortest_step_s=plan.shortest_step_s,
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a command; with `refused` empty all of it was done."""

    settings: int = 0
    refused: tuple[str, ...] = ()

    @property
    def first_refusal(self) -> str:
        return self.refused[0] if self.refused else ""


@dataclass(frozen=True, slots=True)
class LimitOutcome:
    """Power limits by GPU: taken, refused with a reason, or without an answer (`unanswered`),
    when they may be in force or not.
    """

    taken: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)
    unanswered: Mapping[str, str] = field(default_factory=dict)


class Leases:
    """All leases of this controller's term `epoch`."""

    def __init__(self, fleet: Fleet, epoch: int) -> None:
        self._fleet = fleet
        self._epoch = epoch
        self._holdings: dict[str, Holding] = {}
        self._moving: set[str] = set()
        self._above_w: dict[str, dict[str, float]] = {}  # by job: limits above kept ones
        self._limit_generations: dict[
            str, deque[int]
        ] = {}  # generations of a job's newest power limits
        self._lost = ""

    @property
    def lost(self) -> str:
        """Why this term is over; empty while it is not."""
        return self._lost

    @property
    def jobs(self) -> Set[str]:
        """Those whose GPUs hold something."""
        return self._holdings.keys()

    def of(self, job: str) -> Holding | None:
        return self._holdings.get(job)

    def owns(self, job: str, generation: int) -> bool:
        """Whether a reading of this lease, a second old or sooner than our answer, shows ours."""
        holding = self._holdings.get(job)
        return holding is not None and generation in (
            holding.plan.generation,
            *holding.generations.values(),
            *self._limit_generations.get(job, ()),
        )

    def complete(self, plan: Plan) -> None:
        """The plan that a job's clocks are of, with the figures that took longer."""
        holding = self._holdings.get(plan.job)
        if holding is not None and holding.plan.generation == plan.generation:
            self._holdings[plan.job] = replace(holding, plan=plan)

    def hand_over(self, job: str) -> None:
        """Another controller goes on with these leases: they stay, and are not renewed here."""
        self._holdings.pop(job, None)
        self._above_w.pop(job, None)
        self._limit_generations.pop(job, None)

    def end(self, why: str) -> None:
        """The term is over: leases are no longer renewed and run out."""
        self._lost = why
        self._holdings.clear()

    async def apply(self, plan: Plan, gpus: Mapping[str, GpuView], ttl_s: float) -> Outcome:
        """Applies the plan's clocks: raises on all nodes first, then the rest.

        A GPU raised too late makes its job slow; one lowered too late costs a few joules. After a
        refusal the whole job is at default clocks.
        """
        places = {
            action.uuid: Place(gpus[action.uuid].address, action.uuid) for action in plan.actions
        }
        locked = [action for action in plan.actions if action.leased]
        raised = [action for action in locked if action.verb == "raise"]
        others = [action for action in locked if action.verb != "raise"]
        cleared = [places[action.uuid] for action in plan.actions if action.verb == "clear"]
        self._moving.add(plan.job)
        try:
            refused = await self._apply(plan, raised, places, ttl_s)
            refused += await self._clear(plan.job, cleared, plan.reason)
            if not refused:
                refused += await self._apply(plan, others, places, ttl_s)
            if refused:
                await self._clear(plan.job, places.values(), f"put back: {refused[0]}")
                self._holdings.pop(plan.job, None)
                return Outcome(len(plan.actions), refused)
            self._holdings.pop(plan.job, None)
            if locked:
                held = {action.uuid: places[action.uuid].address for action in locked}
                self._holdings[plan.job] = Holding(plan, held)
            return Outcome(len(locked) + len(cleared))
        finally:
            self._moving.discard(plan.job)

    async def release(self, job: str, reason: str) -> Outcome:
        """Default clocks for all that is held for a job."""
        holding = self._holdings.get(job)
        self.hand_over(job)
        return await self.clear(job, holding.places if holding else (), reason)

    async def clear(self, job: str, places: Sequence[Place], reason: str) -> Outcome:
        """Default clocks for GPUs whose leases this controller does not hold."""
        return Outcome(len(places), await self._clear(job, places, reason))

    async def limit_power(
        self,
        limits_w: Mapping[Place, float],
        *,
        generation: int,
        ttl_s: float,
        keep: bool,
        reason: str,
        above: bool = False,
    ) -> LimitOutcome:
        """Sets power limits; clocks that a job holds on these GPUs stay as they are.

        An agent has one lease per GPU and renews those of a job together, so all that the job
        holds at that agent is applied again. With `keep` the limits outlive their leases; those
        that stand `above` them do not, and are for jobs whose clocks are held alone.
        """
        job_of: dict[Place, str] = {}
        beside: dict[tuple[str, str], list[Place]] = {}
        for job, holding in self._holdings.items():
            for place in holding.places:
                job_of[place] = job
                beside.setdefault((place.address, job), []).append(place)
        plans = [holding.plan for holding in self._holdings.values()]
        planned = {action.uuid for plan in plans for action in plan.actions}
        commands: dict[tuple[str, str], dict[Place, Setting]] = {}
        for place in limits_w:
            if above and place.uuid not in planned:
                continue
            key = (place.address, job_of.get(place, BUDGET_JOB))
            if key in beside and key in commands:
                continue  # with another GPU of this job here
            commands.setdefault(key, {}).update(
                (one, self._limited(one, key[1], limits_w.get(one), keep=keep, above=above))
                for one in beside.get(key, (place,))
            )
        outcomes = await asyncio.gather(
            *(
                self._limit(
                    address,
                    Command(self._epoch, job, generation, ttl_s, tuple(settings.values()), reason),
                )
                for (address, job), settings in commands.items()
            )
        )
        for (_, job), settings in commands.items():
            asked = {place.uuid: limits_w[place] for place in settings if place in limits_w}
            known = self._above_w.get(job, {}).items()
            self._above_w[job] = {uuid: w for uuid, w in known if uuid not in asked}
            if above:
                self._above_w[job] |= asked
        return LimitOutcome(
            frozenset().union(*(outcome.taken for outcome in outcomes)),
            {uuid: why for outcome in outcomes for uuid, why in outcome.refused.items()},
            {uuid: why for outcome in outcomes for uuid, why in outcome.unanswered.items()},
        )

    def _limited(
        self, place: Place, job: str, limit_w: float | None, *, keep: bool, above: bool
    ) -> Setting:
        holding = self._holdings.get(job)
        held = holding.setting(place.uuid) if holding else Setting(place.uuid, clock_max_mhz=0)
        if limit_w is None:
            return self._with_above(job, held)
        return replace(held, power_limit_w=limit_w, keep_power_limit=keep, above_kept_limit=above)

    def _with_above(self, job: str, setting: Setting) -> Setting:
        """With the limit that stands above a kept one."""
        limit_w = self._above_w.get(job, {}).get(setting.uuid)
        if limit_w is None:
            return setting
        return replace(setting, power_limit_w=limit_w, above_kept_limit=True)

    async def _limit(self, address: str, command: Command) -> LimitOutcome:
        job, settings = command.job, command.settings
        self._limit_generations.setdefault(job, deque(maxlen=LIMITS_KEPT)).append(
            command.generation
        )
        self._moving.add(job)
        try:
            results = await self._fleet.apply(address, command)
        finally:
            self._moving.discard(job)
        limited = [setting.uuid for setting in settings if setting.power_limit_w is not None]
        why = next((result for result in results if not result.accepted), None)
        if why is not None and not why.uuid:
            return LimitOutcome(unanswered=dict.fromkeys(limited, f"{address}: {why.reason}"))
        if why is not None:
            reasons = {result.uuid: f"{address}: {result.reason}" for result in results}
            return LimitOutcome(refused={u: reasons.get(u, why.reason) for u in limited})
        if holding := self._holdings.get(job):
            generations = {**holding.generations, address: command.generation}
            self._holdings[job] = replace(holding, generations=generations)
        return LimitOutcome(taken=frozenset(limited))

    async def renew(self, job: str, ttl_s: float) -> Outcome:
        """The heartbeat of everything held for a job. Nothing is asked while its clocks move."""
        holding = self._holdings.get(job)
        if holding is None or job in self._moving:
            return Outcome()
        room = asyncio.Semaphore(CALLS_AT_ONCE)

        async def ask(address: str) -> tuple[Result, ...]:
            async with room:
                if self._holdings.get(job) is not holding or job in self._moving:
                    return ()
                generation = holding.generation(address)
                return await self._fleet.renew(address, self._epoch, job, generation, ttl_s)

        addresses = sorted(set(holding.address_of.values()))
        answers = await asyncio.gather(*(ask(address) for address in addresses))
        return Outcome(len(holding.address_of), _refusals(addresses, answers))

    async def keep(
        self, ttl_s: Callable[[], float], beat: Callable[[str], Awaitable[bool]]
    ) -> None:
        """Renews everything held, by `beat`, which returns whether all of a job is renewed. Each
        job has times of its own: agents of all jobs are not asked in one moment, and one that
        answers late delays no other job. Until it is cancelled.
        """
        kept: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                kept = {job: task for job, task in kept.items() if not task.done()}
                for job in self.jobs - kept.keys():
                    task = self._keep(job, ttl_s, beat)
                    kept[job] = group.create_task(task, name=f"leases of {job}")
                await asyncio.sleep(renewal_s(ttl_s()) / 2.0)

    async def _keep(
        self, job: str, ttl_s: Callable[[], float], beat: Callable[[str], Awaitable[bool]]
    ) -> None:
        """The time that agents take to answer is part of the interval, up to half of it; after a
        failure the next renewal comes as soon.
        """
        wait_s = renewal_s(ttl_s()) / 2.0
        while True:
            await asyncio.sleep(wait_s)
            if job not in self._holdings:
                return
            every_s, begun_s = renewal_s(ttl_s()), time.monotonic()
            renewed = await beat(job)
            took_s = time.monotonic() - begun_s
            wait_s = max(every_s - took_s, every_s / 2.0) if renewed else every_s / 2.0

    async def _apply(
        self, plan: Plan, actions: Sequence[Action], places: Mapping[str, Place], ttl_s: float
    ) -> tuple[str, ...]:
        by_node: dict[str, list[Setting]] = {}
        for action in actions:
            setting = self._with_above(plan.job, setting_of(plan, action))
            by_node.setdefault(places[action.uuid].address, []).append(setting)
        answers = await asyncio.gather(
            *(
                self._fleet.apply(
                    address,
                    Command(
                        epoch=self._epoch,
                        job=plan.job,
                        generation=plan.generation,
                        ttl_s=ttl_s,
                        settings=tuple(settings),
                        reason=plan.reason,
                    ),
                )
                for address, settings in by_node.items()
            )
        )
        return _refusals(tuple(by_node), answers)

    async def _clear(self, job: str, places: Iterable[Place], reason: str) -> tuple[str, ...]:
        by_node: dict[str, list[str]] = {}
        for place in places:
            by_node.setdefault(place.address, []).append(place.uuid)
        answers = await asyncio.gather(
            *(
                self._fleet.clear(address, self._epoch, job, sorted(uuids), reason)
                for address, uuids in by_node.items()
            )
        )
        return _refusals(tuple(by_node), answers)


def _refusals(addresses: Sequence[str], answers: Sequence[tuple[Result, ...]]) -> tuple[str, ...]:
    return tuple(
        f"{address}{' ' + result.uuid if result.uuid else ''}: {result.reason}"
        for address, results in zip(addresses, answers, strict=True)
        for result in results
        if not result.accepted
    )
