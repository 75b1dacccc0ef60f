"""The power budget of all controllers of one store: demands, shares and orders of power limits.

The leader keeps the budget for all GPUs. It sends each limit as an order to the controller of the
GPU's job, because an agent has one lease for each GPU; the leader itself sets limits of GPUs
without a job. The newest order of a job replaces older ones. The orders of a step become visible in
one transaction. An order gets its plan number when its controller takes it, so agents refuse an
order that was taken earlier and arrives later. The leader counts an ordered limit until it is
answered. A single controller is a group of one, with the table in memory.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec
import numpy as np

from joulecut_controller.election.claims import Claims
from joulecut_controller.election.power_table import OwnTable, PowerRow, PowerTable
from joulecut_controller.power.budget import OWN_STEP_RATIO, Demand, Share, rests_on
from joulecut_controller.reconcile.leases import LimitOutcome

T = TypeVar("T")
NO_JOB = ""


@dataclass(frozen=True, slots=True)
class LimitOrder:
    """Power limits by GPU, and how they are set: as `Leases.limit_power` takes them."""

    limits_w: Mapping[str, float]
    keep: bool
    above: bool
    reason: str


class SharedBudget:
    """Parties and shares of jobs; `unknown` is the share of a job that has none yet. `pending` are
    the orders without an answer, `unsettled` the GPUs of those that a leader before has left.
    """

    def __init__(self, claims: Claims, table: PowerTable | OwnTable) -> None:
        self._claims, self._table = claims, table
        self.demands: dict[str, Demand] = {}
        self.shares: dict[str, Share] = {}
        self.unknown = Share()
        self.pending: dict[str, LimitOrder] = {}
        self.unsettled: set[str] = set()
        self._answers: list[tuple[LimitOrder, LimitOutcome]] = []
        self._rows: dict[str, PowerRow] = {}
        self._since, self._led = 0, False
        self._outgoing: dict[str, dict[str, str | int]] = {}  # columns by job, not written yet
        self._published: dict[str, object] = {}  # by job: the demand as written last

    @property
    def leads(self) -> bool:
        """Whether this controller keeps the budget."""
        return self._claims.leads

    @property
    def active(self) -> bool:
        """Whether the table has rows."""
        return bool(self._rows)

    def share(self, job: str) -> Share:
        return self.shares.get(job, self.unknown)

    def orphaned(self, job: str) -> bool:
        """Whether no controller is there to carry out an order."""
        return job != NO_JOB and self._claims.orphaned(job)

    def _own(self, job: str) -> bool:
        return self.leads if job == NO_JOB else self._claims.has(job)

    def need(self, own: Mapping[str, Demand]) -> None:
        """Publishes the demands of this controller's jobs, without jobs it has not observed."""
        self.demands |= own
        for name, demand in own.items():
            if self._published.get(name) != (news := _news(demand)):
                self._published[name] = news
                self._queue(name, party=_text(demand))
        self._published = {name: news for name, news in self._published.items() if name in own}

    def give(self, shares: Mapping[str, Share]) -> None:
        """Publishes the shares of all jobs; for the leader."""
        self.shares = dict(shares)
        for name, share in shares.items():
            row = self._rows.get(name)
            if row and (text := _text(share)) != row.share:
                self._queue(name, share=text)

    def order(self, order: LimitOrder, job_of: Mapping[str, str]) -> None:
        """Orders limits. A pending order of the same kind is merged into the new one."""
        by_job: dict[str, dict[str, float]] = defaultdict(dict)
        for uuid, limit_w in order.limits_w.items():
            by_job[job_of.get(uuid, NO_JOB)][uuid] = limit_w
        for job, limits_w in by_job.items():
            before = self.pending.get(job)
            same = before and (before.keep, before.above) == (order.keep, order.above)
            kept_w = before.limits_w if before and same else {}
            self._put(job, replace(order, limits_w={**kept_w, **limits_w}))

    def narrow(self, job_of: Mapping[str, str]) -> None:
        """Removes GPUs that left a job from the job's pending order."""
        for job, order in tuple(self.pending.items()):
            left = {u: w for u, w in order.limits_w.items() if job_of.get(u, NO_JOB) == job}
            self._put(job, replace(order, limits_w=left))

    def _put(self, job: str, order: LimitOrder) -> None:
        if order != self.pending.get(job):
            self.pending[job] = order
            number = self._rows[job].number if job in self._rows else 0
            self._queue(job, number=number + 1, ordered=_text(order))

    def pending_w(self) -> dict[str, float]:
        """Limits of pending orders by GPU, in watts, without limits that end with a lease."""
        orders = [order for order in self.pending.values() if not order.above]
        return {uuid: limit_w for order in orders for uuid, limit_w in order.limits_w.items()}

    def answers(self) -> Iterator[tuple[LimitOrder, LimitOutcome]]:
        """Orders that were answered since the last call."""
        taken, self._answers = self._answers, []
        yield from taken

    async def exchange(self, jobs: Collection[str] | None = None) -> None:
        """Writes the queued columns and reads changed rows. The leader deletes rows of jobs that
        are not in `jobs`. Raises Unavailable; the queue is then kept for the next call.
        """
        gone = [] if jobs is None or not self.leads else [*(self._rows.keys() - jobs)]
        said = {job: columns for job, columns in self._outgoing.items() if job not in gone}
        rows = await asyncio.to_thread(self._table.exchange, self._since, said, gone)
        self._outgoing = {}
        for name in gone if rows is not None else tuple(self._rows):
            for kept in (self._rows, self.demands, self.pending, self.shares, self._published):
                kept.pop(name, None)
        begins, self._led = self.leads and not self._led, self.leads
        for row in rows or ():
            self._rows[row.job] = row
            self._since = max(self._since, row.changed)
        for row in tuple(self._rows.values()) if begins else rows or ():
            self._follow(row, begins=begins)

    def _follow(self, row: PowerRow, *, begins: bool) -> None:
        name = row.job
        share = _read(row.share, Share)
        if share is not None and (begins or (self._own(name) and not self.leads)):
            self.shares[name] = share
        if not self.leads:
            return
        demand = _read(row.party, Demand)
        if demand is not None and name not in self._published:
            self.demands[name] = demand
        order = self.pending.get(name) or _read(row.ordered, LimitOrder)
        if order is not None and row.done < row.number:
            self.pending[name] = order
            self.unsettled.update(order.limits_w if begins else ())
        elif self.pending.pop(name, None) is not None and order is not None:
            outcome = _read(row.outcome, LimitOutcome) or LimitOutcome()
            self._answers.append((order, outcome))

    async def carry_out(
        self, set_limits: Callable[[LimitOrder, int], Awaitable[LimitOutcome]]
    ) -> None:
        """Carries out the orders for this controller's jobs. Raises Unavailable."""
        await self.exchange()
        jobs = [one.job for one in self._rows.values() if one.done < one.number]
        if not (jobs := [job for job in jobs if self._own(job)]):
            return
        rows, generation = await asyncio.to_thread(self._table.take, jobs)
        orders = {row: _read(row.ordered, LimitOrder) for row in rows if self._own(row.job)}
        known = {row: order for row, order in orders.items() if order is not None}
        outcomes = await asyncio.gather(*(set_limits(one, generation) for one in known.values()))
        for row, outcome in zip(known, outcomes, strict=True):
            self._queue(row.job, done=row.number, outcome=_text(outcome))
        await self.exchange()

    def _queue(self, job: str, **columns: str | int) -> None:
        self._outgoing.setdefault(job, {}).update(columns)


def _news(demand: Demand) -> tuple[object, ...]:
    """The demand rounded to steps below which a change is noise; other values are published."""
    mean = round(math.log(demand.mean_w) / OWN_STEP_RATIO) if demand.mean_w else None
    needs_w = {uuid: round(limit_w) for uuid, limit_w in demand.needs_w.items()}
    return rests_on(demand, 1.0), demand.uuids, mean, needs_w


def _text(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=np.generic.item).decode()  # sums are NumPy's


def _read(text: str, kind: type[T]) -> T | None:
    """None of what cannot be read."""
    try:
        return msgspec.json.decode(text, type=kind) if text else None
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
