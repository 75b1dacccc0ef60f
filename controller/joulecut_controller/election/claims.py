"""Which jobs each controller of a shared store commands.

A claim is a row: a job and the number of its holder. It is alive while the holder's session with
the database is, so nothing is renewed. A job without a living holder goes to the controller with
the fewest, in a new epoch of the whole group; the others follow that epoch. A job of a living one
moves only where two differ by more than one job, where its holder is barred (it does not reach the
agents of the job), or where its holder has more than it can keep. The holder sends nothing more for
it, leaves its leases as they are, and passes the claim on. Pure.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product


def divided(
    holders: Mapping[str, int],
    live: Collection[int],
    barred: Collection[tuple[int, str]] = frozenset(),
    most: Mapping[int, int] | None = None,
) -> dict[str, int]:
    """The controller of the `live` that is to have each job; 0 for none. One with an entry in
    `most` has up to so many. One that is `barred` from a job has it only where all are.
    """
    shares: dict[int, list[str]] = {number: [] for number in sorted(live)}
    most = {number: (most or {}).get(number, len(holders)) for number in shares}
    may = {job: [one for one in shares if (one, job) not in barred] or [*shares] for job in holders}
    orphans: list[str] = []
    for job, holder in sorted(holders.items()):
        stays = holder in may[job] and len(shares[holder]) < most[holder]
        (shares[holder] if stays else orphans).append(job)
    for job in orphans:
        able = [shares[one] for one in may[job] if len(shares[one]) < most[one]]
        if able:
            min(able, key=len).append(job)
    while _moves(shares, may, most):
        pass
    given = {job: number for number, jobs in shares.items() for job in jobs}
    return dict.fromkeys(holders, 0) | given


def _moves(
    shares: dict[int, list[str]], may: Mapping[str, Collection[int]], most: Mapping[int, int]
) -> bool:
    """Moves one job towards even shares; False where none helps."""
    fewest = sorted(shares, key=lambda number: len(shares[number]))
    able = [number for number in fewest if len(shares[number]) < most[number]]
    for full, least in product(reversed(fewest), able):
        if len(shares[full]) > len(shares[least]) + 1:
            for job in reversed(shares[full]):
                if least in may[job]:
                    shares[full].remove(job)
                    shares[least].append(job)
                    return True
    return False


@lru_cache(1 << 17)  # of each agent, while the controllers stay
def home(address: str, watchers: frozenset[int]) -> int:
    """The controller that watches an agent without a job. When one leaves, only its agents move."""
    return max(watchers, key=lambda number: zlib.crc32(f"{number} {address}".encode()))


@dataclass(frozen=True, slots=True)
class Group:
    """The controllers of one store, as the database showed them at one moment to number `number`.

    `leader` is the number of the one with the leader lock, `holders` are those of the jobs, and
    `wanted` who is to have each. `holds` is the number of the newest record of a hold. `barred` are
    jobs and agents with a controller that does not reach them; `reporting` are jobs that agents of
    others hear of, each with a GPU. `most` are the jobs that a controller can keep, of those whose
    event loop was late.
    """

    number: int
    epoch: int
    leader: int
    live: frozenset[int]
    holders: Mapping[str, int] = field(default_factory=dict)
    wanted: Mapping[str, int] = field(default_factory=dict)
    holds: int = 0
    barred: frozenset[tuple[int, str]] = frozenset()
    reporting: frozenset[tuple[str, str]] = frozenset()
    most: Mapping[int, int] = field(default_factory=dict)

    @property
    def watchers(self) -> frozenset[int]:
        """The controllers that have agents to watch."""
        return frozenset((self.leader, *self.wanted.values())) - {0}

    def at_home(self, addresses: Iterable[str]) -> Iterator[str]:
        """Those of these agents that this controller watches, whatever its jobs are."""
        watchers = self.watchers
        for one in addresses:
            able = frozenset(number for number in watchers if (number, one) not in self.barred)
            if home(one, able or watchers) == self.number:
                yield one

    @property
    def leads(self) -> bool:
        return self.leader == self.number

    def among(self, numbers: Mapping[str, int]) -> frozenset[str]:
        """The jobs that `numbers` (`holders` or `wanted`) give to this controller."""
        return frozenset(job for job, number in numbers.items() if number == self.number)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a term wants of the group: rows for `jobs` (None before it knows its policy's), an end
    of its claims on `given`, none of the jobs and agents that it is `barred` from, and to show
    which jobs are `reporting`, with a GPU of each agent. It can keep `most` jobs (None: any). A
    term that begins asks for an epoch beyond `above`.
    """

    jobs: frozenset[str] | None = None
    given: frozenset[str] = frozenset()
    barred: frozenset[str] = frozenset()
    reporting: frozenset[tuple[str, str]] = frozenset()
    above: int | None = None
    most: int | None = None


class Claims:
    """What one term may command: the claims of its group, or all jobs where the store has one
    controller at a time (`group` is None). `first` is the epoch that the term began with.
    """

    def __init__(self, first: int, group: Group | None = None) -> None:
        self.first, self.group = first, group
        self.given: set[str] = set()  # no longer commanded, until the database shows it

    @property
    def epoch(self) -> int:
        """Of commands from now on."""
        return max(self.first, self.group.epoch if self.group else 0)

    @property
    def leads(self) -> bool:
        """Whether what concerns the whole cluster is this controller's to do."""
        return self.group is None or self.group.leads

    @property
    def leaving(self) -> Collection[str]:
        """The jobs to hand over."""
        group = self.group
        return group.among(group.holders) - group.among(group.wanted) - self.given if group else ()

    @property
    def count(self) -> int:
        """Of the group's jobs, how many this controller has."""
        return len(self.group.among(self.group.holders)) if self.group else 0

    def has(self, job: str) -> bool:
        group = self.group
        return group is None or (group.holders.get(job) == group.number and job not in self.given)

    def cannot_keep(self, job: str) -> bool:
        """Whether this controller does not reach the job's agents, or has more than it can keep."""
        group = self.group
        if group is None:
            return False
        full = self.count > group.most.get(group.number, self.count)
        return full or (group.number, job) in group.barred

    def elsewhere(self, job: str) -> bool:
        """Whether another controller holds the job or may take it."""
        return self.group is not None and job in self.group.holders and not self.has(job)

    def orphaned(self, job: str) -> bool:
        """Whether no living controller holds the job."""
        group = self.group
        return group is not None and group.holders.get(job, 0) not in group.live

    def follow(self, group: Group) -> bool:
        """Takes in a newer state of the group; whether it changes what this term does."""
        before, self.group = self.group, group
        self.given &= group.among(group.holders) - group.among(group.wanted)
        return before != group
