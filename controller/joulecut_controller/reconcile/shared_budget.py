"""The power budget between the controllers of one store: what jobs need, what they get, which
limits are to be set.

The leader keeps the budget for all GPUs. An agent has one lease a GPU, so that a limit on a GPU of
another controller's job is an order in the table, which that controller carries out. The newest
order of a job counts. Its plan number is given as it is taken: agents refuse an earlier one, of
whichever controller. Until the answer the leader counts every limit that it ordered. Without a
table there are only this controller's jobs, and no order.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from joulecut_controller.election.claims import Claims
from joulecut_controller.election.power_table import PowerRow, PowerTable
from joulecut_controller.power.budget import OWN_STEP_RATIO, Party, Share, rests_on
from joulecut_controller.reconcile.leases import LimitOutcome

T = TypeVar("T")


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

    def __init__(self, claims: Claims, table: PowerTable | None) -> None:
        self._claims, self._table = claims, table
        self.parties: dict[str, Party] = {}
        self.shares: dict[str, Share] = {}
        self.unknown = Share()
        self.pending: dict[str, LimitOrder] = {}
        self.unsettled: set[str] = set()
        self._answers: list[tuple[LimitOrder, LimitOutcome]] = []
        self._rows: dict[str, PowerRow] = {}
        self._since, self._led = 0, False
        self._away: frozenset[str] = frozenset()
        self._said: dict[str, dict[str, str | int]] = {}  # at the next exchange
        self._told: dict[str, object] = {}  # of parties, as said last

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

    def away(self, job: str) -> bool:
        """Whether another controller had the job at the last exchange: it sets its limits."""
        return job in self._away

    def orphaned(self, job: str) -> bool:
        return self._claims.orphaned(job)

    def need(self, own: Mapping[str, Party]) -> None:
        """What this controller's jobs need now; a job that it has not seen yet is left out."""
        if self._table is None:
            self.parties = dict(own)
            return
        for name, party in own.items():
            self.parties[name] = party
            if self._told.get(name) != (news := _news(party)):
                self._told[name] = news
                self._say(name, party=_text(party))
        self._told = {name: news for name, news in self._told.items() if name in own}

    def give(self, shares: Mapping[str, Share]) -> None:
        """What jobs get from now on, by the leader."""
        self.shares = dict(shares)
        for name in self._away & shares.keys():
            if (text := _text(shares[name])) != self._rows[name].share:
                self._say(name, share=text)

    def order(self, job: str, order: LimitOrder) -> None:
        """Limits that the job's controller has to set. Those of an order of the same kind without
        an answer stay part of it.
        """
        row, before = self._rows[job], self.pending.get(job)
        if before and (before.keep, before.above) == (order.keep, order.above):
            order = replace(order, limits_w={**before.limits_w, **order.limits_w})
        if order != before:
            self.pending[job] = order
            self._say(job, number=row.number + 1, ordered=_text(order))

    def pending_w(self) -> dict[str, float]:
        """By GPU, the limits of orders without an answer that will stay."""
        orders = [order for order in self.pending.values() if not order.above]
        return {uuid: limit_w for order in orders for uuid, limit_w in order.limits_w.items()}

    def answers(self) -> Iterator[tuple[LimitOrder, LimitOutcome]]:
        """Orders that were answered since the last call."""
        taken, self._answers = self._answers, []
        yield from taken

    async def exchange(self, *, ends: bool = False) -> None:
        """Tells the others, and hears of them; with the leader's word the budget `ends`. Raises
        Unavailable; what was to be said is kept.
        """
        group = self._claims.group
        if self._table is None or group is None:
            return
        self._away = frozenset(name for name in self._rows if not self._claims.has(name))
        gone: Collection[str] = ()
        if self.leads:
            self._void_own()
            gone = [name for name in self._rows if ends or name not in group.holders]
            self._said = {job: one for job, one in self._said.items() if job not in gone}
        rows = await asyncio.to_thread(self._table.exchange, self._since, self._said, gone)
        self._said = {}
        for name in gone if rows is not None else tuple(self._rows):
            for kept in (self._rows, self.parties, self.pending, self.shares, self._told):
                kept.pop(name, None)
        begins, self._led = self.leads and not self._led, self.leads
        first = {row.job: row for row in rows or () if row.job not in self._rows}
        for row in rows or ():
            self._rows[row.job] = row
            self._since = max(self._since, row.changed)
        # One with an order that stands is the leader's own only once that is void.
        theirs = (n for n, row in first.items() if row.done < row.number or not self._claims.has(n))
        self._away = (self._away & self._rows.keys()).union(theirs)
        for row in tuple(self._rows.values()) if begins else rows or ():
            self._follow(row, begins=begins)

    def _void_own(self) -> None:
        """No order stands for a job that the leader has itself by now: it sets the limits."""
        for name in self._rows.keys() - self._away:
            number = int(self._said.get(name, {}).get("number", self._rows[name].number))
            if self._rows[name].done < number:
                self._say(name, done=number, outcome="")
            self.pending.pop(name, None)

    def _follow(self, row: PowerRow, *, begins: bool) -> None:
        name, own = row.job, self._claims.has(row.job)
        if not self.leads:
            share = _read(row.share, Share)
            if own and share is not None:
                self.shares[name] = share
            return
        party = _read(row.party, Party)
        if party is not None and not (own and name in self._told):
            self.parties[name] = party
        order = self.pending.get(name) or _read(row.ordered, LimitOrder)
        if order is None:
            return
        if row.done < row.number:
            self.pending[name] = order
            self.unsettled.update(order.limits_w if begins else ())
        elif self.pending.pop(name, None) is not None:
            outcome = _read(row.outcome, LimitOutcome) or LimitOutcome()
            self._answers.append((order, outcome))

    async def carry_out(
        self, set_limits: Callable[[LimitOrder, int], Awaitable[LimitOutcome]]
    ) -> None:
        """Sets the limits that were ordered for this controller's jobs. Raises Unavailable."""
        asked = [row.job for row in self._rows.values() if row.done < row.number]
        jobs = [job for job in asked if self._claims.has(job)]
        if not jobs or self._table is None:
            return
        rows, generation = await asyncio.to_thread(self._table.take, jobs)
        orders = {row: _read(row.ordered, LimitOrder) for row in rows}
        known = {row: order for row, order in orders.items() if order and self._claims.has(row.job)}
        outcomes = await asyncio.gather(*(set_limits(one, generation) for one in known.values()))
        for row, outcome in zip(known, outcomes, strict=True):
            self._say(row.job, done=row.number, outcome=_text(outcome))
        await self.exchange()

    def _say(self, job: str, **columns: str | int) -> None:
        self._said.setdefault(job, {}).update(columns)


def _news(party: Party) -> tuple[object, ...]:
    """What others go by, in steps below which a difference is noise."""
    mean = round(math.log(party.mean_w) / OWN_STEP_RATIO) if party.mean_w else None
    needs_w = {uuid: round(limit_w) for uuid, limit_w in party.needs_w.items()}
    return rests_on(party, 1.0), party.uuids, mean, needs_w


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _read(text: str, kind: type[T]) -> T | None:
    """None of what cannot be read."""
    try:
        return msgspec.json.decode(text, type=kind) if text else None
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
