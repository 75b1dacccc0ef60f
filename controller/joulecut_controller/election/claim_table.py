"""The claims of a PostgreSQL store, and what its controllers show each other.

Each reading is one transaction behind the writers' lock: two controllers never take the same job,
and the epoch rises with the taking. A controller whose session has ended is refused there, as in
every write; so it never learns an epoch that another began, and commands nothing with it.
"""

from collections.abc import Callable, Mapping

from sqlalchemy import Connection, func, select

from joulecut_controller.election.claims import Group, Wish, divided
from joulecut_controller.store.database import DatabaseStore
from joulecut_controller.store.postgres import LOCKS
from joulecut_controller.store.schema import CLAIMS, COUNTERS, PARTS, REACH, RECORDS
from joulecut_wire.errors import Unavailable

HOLDS = "hold"  # topic of the records that hold jobs
MOST = "/most"  # in place of a job's name in the table `reach`: the row has the limit of jobs
Living = Callable[[Connection], tuple[Mapping[int, int], int]]


class ClaimTable:
    """Of one store, for the controllers that share its jobs."""

    def __init__(self, store: DatabaseStore, living: Living | None = None) -> None:
        """`living` stands for the server's own list of sessions."""
        self._store, self._living = store, living or _living

    def share(self, number: int, wish: Wish | None = None) -> Group:
        """The group after what controller `number` lists, gives and takes; None: it only looks.
        Raises Unavailable, also where its session has ended.
        """
        with self._store.writing() as connection:
            return _shared(connection, self._living(connection), number, wish)

    def show(self, number: int, content: str) -> tuple[tuple[float, str], ...]:
        """Keeps what controller `number` shows to the others. Returns what those that live show:
        its age in seconds by the database's clock, and the content. Raises Unavailable.
        """
        now, this = func.extract("epoch", func.clock_timestamp()), PARTS.c.holder == number
        with self._store.writing(beside_others=True) as connection:
            live = self._living(connection)[0].values()
            gone = select(PARTS.c.holder).where(PARTS.c.holder.not_in(live))
            gone = gone.with_for_update(skip_locked=True)
            connection.execute(PARTS.delete().where(this | PARTS.c.holder.in_(gone)))
            row = {"holder": number, "at_unix_s": now, "content": content}
            connection.execute(PARTS.insert().values(row))
            others = select(now - PARTS.c.at_unix_s, PARTS.c.content).where(~this)
            rows = connection.execute(others.order_by(PARTS.c.holder)).all()
        return tuple((float(age_s), shown) for age_s, shown in rows)


def _living(connection: Connection) -> tuple[dict[int, int], int]:
    """The numbers of controllers by session, and the session with the leader lock; 0: none has."""
    rows = connection.execute(select(LOCKS)).all()
    return (
        {row.pid: row.number for row in rows if row.number is not None},
        next((row.pid for row in rows if row.number is None), 0),
    )


def _shared(
    connection: Connection, living: tuple[Mapping[int, int], int], number: int, wish: Wish | None
) -> Group:
    numbers, leading = living
    live = frozenset(numbers.values())
    if number not in live:
        raise Unavailable("the database has ended this controller's session")
    # A leader without a number is of a version before, and commands all jobs.
    before, leader = leading and leading not in numbers, numbers.get(leading, 0)
    rows = connection.execute(select(CLAIMS.c.job, CLAIMS.c.holder)).all()
    holders: dict[str, int] = {row.job: row.holder for row in rows}
    counted = connection.execute(select(COUNTERS.c.name, COUNTERS.c.value)).all()
    counters = {row.name: row.value for row in counted}
    if wish and wish.jobs is not None:
        # The leader lists jobs. What another has ends with its word: it may see what others do not.
        own = {number, *(set(holders.values()) - live if leader == number else ())}
        if gone := sorted(job for job in holders.keys() - wish.jobs if holders[job] in own):
            connection.execute(CLAIMS.delete().where(CLAIMS.c.job.in_(gone)))
            holders = {job: holder for job, holder in holders.items() if job not in gone}
        if leader == number:
            if new := sorted(wish.jobs - holders.keys()):
                connection.execute(CLAIMS.insert(), [{"job": job, "holder": 0} for job in new])
            holders |= dict.fromkeys(new, 0)
    if wish:
        seen = {*wish.reporting, *((job, "") for job in wish.barred)}
        _note(connection, live, number, seen | ({(MOST, str(wish.most))} if wish.most else set()))
    reach = [tuple(row) for row in connection.execute(select(REACH))]
    most = {of: int(count) for of, name, count in reach if name == MOST and of in live}
    reach = [row for row in reach if row[1] != MOST]
    barred = frozenset((of, name) for of, name, gpu in reach if not gpu)
    wanted = divided(holders, () if before else live, barred, most)
    moved = dict[str, int]()
    if wish:
        for job, holder in holders.items():
            takes = holder not in live and wanted[job] == number
            gives = holder == number != wanted[job] and job in wish.given
            if takes or gives:
                moved[job] = wanted[job]
        for job, holder in sorted(moved.items()):
            connection.execute(CLAIMS.update().where(CLAIMS.c.job == job).values(holder=holder))
        epoch = counters.get("epoch", 0)
        # A job that is new was commanded by none before.
        taken_over = any(holders[job] for job, to in moved.items() if to == number)
        if wish.above is not None or taken_over:
            epoch = max(epoch, wish.above or 0) + 1
        _count(connection, counters, "epoch", epoch)
    newest = select(func.max(RECORDS.c.id)).where(RECORDS.c.topic == HOLDS)
    return Group(
        number,
        counters.get("epoch", 0),
        leader,
        live,
        holders | moved,
        wanted,
        connection.execute(newest).scalar_one() or 0,
        barred,
        frozenset((job, gpu) for of, job, gpu in reach if gpu and of in live - {number}),
        most,
    )


def _note(
    connection: Connection, live: frozenset[int], number: int, seen: set[tuple[str, str]]
) -> None:
    """Keeps what controller `number` reaches, and nothing of one that is gone."""
    this, of = REACH.c.holder == number, select(REACH.c.job, REACH.c.gpu)
    if {tuple(row) for row in connection.execute(of.where(this))} != seen:
        connection.execute(REACH.delete().where(this | REACH.c.holder.not_in(live)))
        rows = [{"holder": number, "job": job, "gpu": gpu} for job, gpu in sorted(seen)]
        if rows:
            connection.execute(REACH.insert(), rows)


def _count(connection: Connection, counters: dict[str, int], name: str, value: int) -> None:
    this = COUNTERS.c.name == name
    if counters.get(name, 0) == value:
        return
    if name in counters:
        connection.execute(COUNTERS.update().where(this).values(value=value))
    else:
        connection.execute(COUNTERS.insert().values(name=name, value=value))
    counters[name] = value
