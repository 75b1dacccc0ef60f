"""Operator commands (pause, resume, restore), executed at once: hold, GPUs, audit log.

No step undoes a command: a decision made meanwhile stops at the hold. Agents that do not answer are
reported; their leases run out.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from joulecut_controller.orders import ALL, Done, Hold, HoldKind, Order
from joulecut_controller.reconcile.context import JobServices
from joulecut_controller.reconcile.job_controller import JobController
from joulecut_controller.reconcile.leases import Outcome, Place
from joulecut_controller.view import GpuView
from joulecut_wire.errors import JoulecutError
from joulecut_wire.messages import NO_KEEPER

NAMES_SHOWN = 20  # in a sentence about what there is instead


@dataclass(slots=True)
class Commands:
    """Executes commands of one leadership term, and never while a plan of the job is applied.

    `executed` is called with the job of each command, or "" for several. `adopt` gives a node the
    GPUs in conflict that it shows, and returns them. A job that another controller commands (those
    on some GPUs: `elsewhere_on`) is released by that one, which follows the holds in the store, as
    this one does by `follow_holds`.
    """

    services: JobServices
    jobs: Mapping[str, JobController]
    executed: Callable[[str], None]
    adopt: Callable[[str], Sequence[str]]
    elsewhere_on: Callable[[set[str]], set[str]]
    follow_holds: Callable[[], Awaitable[None]]
    _acting: dict[str, asyncio.Lock] = field(default_factory=dict)

    def acting(self, job: str) -> asyncio.Lock:
        """Held while the clocks of a job are decided on and changed; of ALL: power limits."""
        for gone in [name for name in self._acting if name not in self.jobs and name != job]:
            if not self._acting[gone].locked():
                del self._acting[gone]
        return self._acting.setdefault(job, asyncio.Lock())

    async def execute(self, order: Order) -> Done:
        """Executes a command. Never raises a JoulecutError."""
        lost = self.services.leases.lost
        if lost:
            return Done(f"this controller does not lead: {lost}", "standby")
        refusal = self._unknown(order)
        if refusal:
            return Done(refusal, "unknown")
        try:
            if order.op == "adopt":
                done = self._settle(order.node)
            else:
                if self.services.claims.group and order.op == "resume":
                    await self.follow_holds()  # of a moment ago, by another controller
                done = self._resume(order) if order.op == "resume" else await self._stop(order)
            if done.refused:
                return done
            self.services.audit.note(
                "hold",
                order.job,
                f"{order.op} by {order.by}: {done.sentence}",
                op=order.op,
                by=order.by,
                reason=order.reason,
                node=order.node,
                jobs=done.jobs,
                unanswered=done.unanswered,
            )
        except JoulecutError as error:
            held = "" if order.op == "resume" else "the hold lasts until this process ends; "
            return Done(f"{held}the store did not take it: {error}", "failed")
        finally:
            self.executed(order.job)
        return done

    def _unknown(self, order: Order) -> str:
        """Why the command names no job or node; empty where it does."""
        held = {hold.job for hold in self.services.holds.all}
        known = order.job in self.jobs or self.services.claims.elsewhere(order.job)
        known = known or (order.op == "resume" and order.job in held)
        if order.job and not known:
            there = _some(self.jobs)
            return f"no job {order.job!r:.100} in the policy; there are: {there}"
        if order.node:
            nodes = {name for node in self._nodes() for name in node}
            if order.node not in nodes:
                return f"no node {order.node!r:.100}; there are: {_some(nodes)}"
        return ""

    def _nodes(self) -> list[tuple[str, ...]]:
        """The names of every agent: its node, where known, and its address."""
        nodes = self.services.fleet.observe(self.services.now_s()).nodes
        return [tuple(filter(None, (node.node, node.address))) for node in nodes]

    # -- orders ----------------------------------------------------------------------------

    def _resume(self, order: Order) -> Done:
        """Ends holds: all kinds for one job; for all jobs, those set by operators."""
        if order.job:
            above = self.services.holds.of(ALL)
            ended = self.services.holds.lift(order.job, ("pause", "restore", "breaker"))
            if not ended and above:
                text = f"{order.job} is held with all jobs: {above[0].sentence}"
                return Done(text, "conflict")
            said = f"the hold of {order.job} ended" if ended else f"{order.job} was not held"
            if ended and above:
                said = f"{order.job} stays held, as all jobs are: {above[0].sentence}"
            return Done(said, jobs=(order.job,))
        ended = tuple(
            hold
            for job in (ALL, *{hold.job for hold in self.services.holds.all})
            for hold in self.services.holds.lift(job, ("pause", "restore"))
        )
        left = [f"{hold.job} ({hold.sentence})" for hold in self.services.holds.all]
        said = f"{len(ended)} hold{'s' if len(ended) != 1 else ''} ended"
        if left:
            said += f"; still held: {_some(left)}"
        return Done(said, jobs=tuple(sorted({hold.job for hold in ended} - {ALL})))

    def _settle(self, node: str) -> Done:
        """The GPUs that this node shows beside another are its own."""
        if not self.services.claims.leads:
            text = "the controller whose joulecut_controller_leader is 1 decides who owns GPUs"
            return Done(text, "conflict")
        uuids = self.adopt(node)
        if not uuids:
            return Done(f"{node} shows no GPU that another node shows as well", "conflict")
        return Done(f"{_some(uuids)}: of node {node} from now on", gpus=len(uuids))

    async def _stop(self, order: Order) -> Done:
        """Sets the hold, then releases the GPUs; a restore clears every lease on them."""
        jobs, error = self._jobs_of(order), ""
        held = jobs if order.job or order.node else (ALL,)
        kind: HoldKind = "restore" if order.op == "restore" else "pause"
        for job in held:
            try:
                self.services.holds.place(
                    Hold(job, kind, order.reason, order.by, self.services.unix_s())
                )
            except JoulecutError as failure:  # it holds; the GPUs come first
                error = str(failure)
        if self.services.claims.elsewhere(order.job):
            said = f"{order.job} is held; the controller that commands it resets its GPUs"
            return Done(error or said, "failed" if error else "", jobs)
        own = tuple(job for job in jobs if job in self.jobs)
        absent = len(self._asked(order, own, keeper=False)) if order.op == "restore" else 0
        async with AsyncExitStack() as acting:
            for job in (ALL, *own):  # in order of names, as every command takes them
                await acting.enter_async_context(self.acting(job))
            outcome = await self._release(order, own)
        count, unanswered = outcome.settings, outcome.refused
        if error:
            text = f"{_named(order)} held and released, but a restart would forget it: {error}"
            return Done(text, "failed", jobs, count, unanswered)
        which = f"{_named(order)} {'paused' if kind == 'pause' else 'restored and paused'}"
        said = f"{which}: {count} GPU{'s' if count != 1 else ''} asked to reset to default clocks"
        if absent:
            said += f"; {absent} without a keeper, so that nothing of ours sets their clocks"
        if unanswered:
            said += f"; not reset, a lease there runs out: {_some(unanswered)}"
        return Done(said, jobs=jobs, gpus=count, unanswered=unanswered)

    def _jobs_of(self, order: Order) -> tuple[str, ...]:
        if order.job:
            return (order.job,)
        if not order.node:
            return tuple(sorted(self.jobs))
        here = {gpu.uuid for gpu in self._gpus() if order.node in (gpu.node, gpu.address)}
        own = {job for job in self.jobs if here & self._uuids(job)}
        return tuple(sorted(own | self.elsewhere_on(here)))

    def _uuids(self, job: str) -> set[str]:
        """The GPUs of a job: those held for it, and those it was last seen on."""
        holding, observed = self.services.leases.of(job), self.jobs[job].observed
        seen = observed.observation.job.placement.uuids if observed else ()
        return set(holding.address_of if holding else ()).union(seen)

    def _gpus(self) -> tuple[GpuView, ...]:
        return self.services.fleet.observe(self.services.now_s()).gpus

    async def _release(self, order: Order, jobs: tuple[str, ...]) -> Outcome:
        """Our own leases first; a restore then clears every other lease on the GPUs."""
        reason = f"{order.op} by {order.by}" + (f": {order.reason}" if order.reason else "")
        places = [Place(gpu.address, gpu.uuid) for gpu in self._asked(order, jobs, keeper=True)]
        retired = await asyncio.gather(*(self.jobs[job].release_all(reason) for job in jobs))
        if order.op == "pause":
            unanswered = tuple(agent for one in retired for agent in one.refused)
            return Outcome(sum(one.settings for one in retired), unanswered)
        return await self.services.leases.clear("", places, reason)

    def _asked(self, order: Order, jobs: tuple[str, ...], *, keeper: bool) -> list[GpuView]:
        """The GPUs that a restore means; `keeper`: those of agents that are configured with one."""
        uuids = set[str]().union(*(self._uuids(job) for job in jobs))
        everything = not order.job and not order.node
        return [
            gpu
            for gpu in self._gpus()
            if everything or gpu.uuid in uuids or order.node in (gpu.node, gpu.address)
            if (gpu.description.reason != NO_KEEPER) == keeper
        ]


def _named(order: Order) -> str:
    if order.job:
        return order.job
    return f"every job on {order.node}" if order.node else "every job"


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    shown = ", ".join(listed[:NAMES_SHOWN]) or "none"
    more = len(listed) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
