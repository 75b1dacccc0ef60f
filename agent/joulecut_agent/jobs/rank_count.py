"""Ranks of each job that are heard against those that run on this node, and times that disagree.

A rank is a GPU that a process computes on. Where some ranks of a job report and others do not, one
variable is missing most likely; where two sources report for one GPU, they must say the same time,
and it must fit the pace at which they come. These are faults that the job's owner sees.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from joulecut_agent.jobs.rate_source import REPORT
from joulecut_wire.messages import IterationReport, ReportFault

HEARD_S, HEARD_ITERATIONS = 60.0, 8.0  # a rank is heard so long after its last report
SILENT_S = 30.0  # ranks of one job report first within some iterations of each other
AGREE_RATIO = 1.1  # between the times of two sources; hooks and logs differ by less
REPORTS_MIN = 8  # of each source before they are compared
WEIGHT = 0.25  # of the newest time in the mean
# A duration this many times the pace is in other units. The pace is judged over some seconds and
# reports: those that wait while the agent is busy arrive together.
UNITS_RATIO, PACE_S_MIN, PACE_REPORTS = 50.0, 10.0, 64
REMEDY = "all: joulecut run -- COMMAND on each node, or a Reporter in each rank"


@dataclass(slots=True)
class _Heard:
    """The reports of one source for one GPU."""

    job: str
    first_s: float
    until_s: float
    mean_s: float
    reports: int = 0
    world: int = 0  # ranks of the job as it says itself; 0: it does not
    ends: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=PACE_REPORTS))

    def pace_s(self) -> float:
        """Seconds in which an iteration comes; 0 before enough have come."""
        if len(ends := self.ends) < REPORTS_MIN:
            return 0.0
        (first_s, first), (last_s, last) = ends[0], ends[-1]
        return (last_s - first_s) / (last - first) if last_s - first_s >= PACE_S_MIN else 0.0

    def odd(self) -> str:
        """How its times contradict its pace, "" where they do not."""
        said_s, pace_s = self.mean_s, self.pace_s()
        if pace_s and said_s > UNITS_RATIO * pace_s:
            what = f"duration_s is {said_s:g}, but an iteration is reported every {pace_s:.3g} s"
            return f"{what}; allowed: seconds, not milliseconds"
        return ""


@dataclass(frozen=True, slots=True)
class Ranks:
    """GPUs of one job on this node."""

    heard: frozenset[str]
    running: frozenset[str]
    source: str  # of the rank that was heard first
    since_s: float


@dataclass(eq=False)
class RankCount:
    """`scheduled` returns the job that a scheduler gave a GPU to, or "", `users` the users
    of its processes. Any thread.
    """

    uuids: Callable[[], Collection[str]]
    scheduled: Callable[[str], str]
    users: Callable[[str], Collection[int]]

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._heard: dict[tuple[str, str], _Heard] = {}  # by GPU and source

    def heard(self, report: IterationReport, now_s: float) -> None:
        key, shape = (report.uuid, report.source or REPORT), report.shape
        until_s = now_s + max(HEARD_S, HEARD_ITERATIONS * report.duration_s)
        with self._lock:
            one = self._heard.get(key)
            if one is None or one.job != report.job or one.until_s < now_s:
                one = self._heard[key] = _Heard(report.job, now_s, until_s, report.duration_s)
            one.until_s, one.reports = until_s, one.reports + 1
            one.mean_s += WEIGHT * (report.duration_s - one.mean_s)
            if one.ends and report.iteration <= one.ends[-1][1]:  # it began again
                one.ends = deque(maxlen=PACE_REPORTS)
            one.ends.append((now_s - report.age_s, report.iteration))
            if shape:
                one.world = shape.stages * shape.tensor_parallel * shape.data_parallel

    def counts(self, now_s: float) -> dict[str, Ranks]:
        """By job, for those of which at least one rank is heard."""
        by_gpu = self._live(now_s)
        by_job = defaultdict[str, list[tuple[float, str, str, int]]](list)
        for uuid, ones in by_gpu.items():
            for source, one in ones.items():
                job = self.scheduled(uuid) or one.job
                by_job[job].append((one.first_s, source, uuid, one.world))
        found = {}
        for job, heard in by_job.items():
            since_s, first, *_ = min(heard)
            uuids = {uuid for _, _, uuid, _ in heard}
            silent = self._silent(job, uuids, by_gpu, max(world for *_, world in heard))
            found[job] = Ranks(frozenset(uuids), frozenset(uuids | silent), first, since_s)
        return found

    def _silent(self, job: str, heard: set[str], by_gpu: Collection[str], world: int) -> set[str]:
        """GPUs that the job computes on and does not report for.

        Without a scheduler: those of the same user, as many as the job says that it has.
        """
        busy = {uuid: set(self.users(uuid)) for uuid in self.uuids() if uuid not in by_gpu}
        if any(self.scheduled(uuid) == job for uuid in heard):
            return {uuid for uuid, users in busy.items() if users and self.scheduled(uuid) == job}
        if world <= len(heard):
            return set()
        mine = {user for uuid in heard for user in self.users(uuid)}
        same = [uuid for uuid, users in busy.items() if users & mine and not self.scheduled(uuid)]
        return set(sorted(same)[: world - len(heard)])

    def faults(self, now_s: float | None = None) -> tuple[ReportFault, ...]:
        """What the owners of jobs should know."""
        now_s = time.monotonic() if now_s is None else now_s
        return (*self._missing(now_s), *self._contradictions(now_s))

    def _missing(self, now_s: float) -> Iterator[ReportFault]:
        for job, ranks in self.counts(now_s).items():
            missing = ranks.running - ranks.heard
            if missing and ranks.source == REPORT and now_s - ranks.since_s >= SILENT_S:
                what = f"{len(ranks.heard)} of {len(ranks.running)} ranks export"
                text = f"{what}; allowed: {REMEDY}"
                uuids = tuple(sorted(missing))
                yield ReportFault(job, uuids, ranks.source, text, len(missing))

    def _contradictions(self, now_s: float) -> Iterator[ReportFault]:
        for uuid, ones in self._live(now_s).items():
            for name, one in ones.items():
                if text := one.odd():
                    yield ReportFault(self.scheduled(uuid) or one.job, (uuid,), name, text, 1)
            known = sorted(
                (one.mean_s, name) for name, one in ones.items() if one.reports >= REPORTS_MIN
            )
            if len(known) > 1 and known[-1][0] > AGREE_RATIO * known[0][0]:
                (short_s, short), (long_s, long) = known[0], known[-1]
                what = f"{short} says {short_s:.4g} s an iteration, {long} {long_s:.4g} s"
                text = f"{what}; allowed: one source, or the same iterations in both"
                job = self.scheduled(uuid) or ones[short].job
                yield ReportFault(job, (uuid,), short, text, 1)

    def _live(self, now_s: float) -> Mapping[str, dict[str, _Heard]]:
        """By GPU and source."""
        found = defaultdict[str, dict[str, _Heard]](dict)
        with self._lock:
            self._heard = {key: one for key, one in self._heard.items() if now_s < one.until_s}
            for (uuid, source), one in self._heard.items():
                found[uuid][source] = one
        return found
