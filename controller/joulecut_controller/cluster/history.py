"""The last seven days of the cluster and of each job, as means of buckets of time.

Two resolutions: COARSE buckets for seven days, one record of the store each, and FINE ones for the
last hour, in memory only. Every series is a ring of fixed size, so neither uptime nor the number of
jobs can fill memory or disk. Measured values only.
"""

import json
import math
import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from joulecut_controller.board import Board, JobBoard
from joulecut_controller.cluster.summary import cluster_of
from joulecut_controller.ports import Record, Store
from joulecut_wire.errors import Unavailable

TOPIC = "history"
COARSE_S = 300.0  # seven days are 2,016 points; a chart has fewer pixels
COARSE_POINTS = 2_016
FINE_S = 15.0  # three passes of the default interval
FINE_POINTS = 240
POINTS_MAX = 504  # of one answer: 20 minutes a point over seven days
JOBS_MAX = 512  # with a history; 24 kB each
RECORD_CHARACTERS_MAX = 60_000  # the store refuses records beyond 65,536
DIGITS = 5  # significant, of a mean

CLUSTER_FIELDS = ("power_w", "without_w", "controlled_gpus", "gpus")
JOB_FIELDS = ("iteration_time_s", "energy_j", "power_w")

Values = tuple[float, ...]  # NaN where unknown


class Ring:
    """Means of the newest `points` buckets; a bucket's place is its number modulo `points`."""

    def __init__(self, points: int, fields: int) -> None:
        self._numbers = array("q", [-1]) * points
        self._values = [array("f", [math.nan]) * points for _ in range(fields)]

    def put(self, number: int, values: Sequence[float]) -> None:
        """An older bucket never replaces a newer one."""
        place = number % len(self._numbers)
        if number >= self._numbers[place]:
            self._numbers[place] = number
            for column, value in zip(self._values, values, strict=True):
                column[place] = value

    def at(self, number: int) -> Values:
        """All NaN for a bucket that is not kept."""
        place = number % len(self._numbers)
        if self._numbers[place] != number:
            return (math.nan,) * len(self._values)
        return tuple(column[place] for column in self._values)

    @property
    def newest(self) -> int:
        """The number of the newest bucket; -1 without any."""
        return max(self._numbers)


class _Mean:
    """Sums of one bucket, field by field."""

    def __init__(self, fields: int) -> None:
        self._sums, self._counts = [0.0] * fields, [0] * fields

    def add(self, values: Sequence[float]) -> None:
        for place, value in enumerate(values):
            if math.isfinite(value):
                self._sums[place] += value
                self._counts[place] += 1

    @property
    def values(self) -> Values:
        pairs = zip(self._sums, self._counts, strict=True)
        return tuple(total / count if count else math.nan for total, count in pairs)


@dataclass(frozen=True, slots=True)
class Series:
    """Points `step_s` apart, ascending; `at_unix_s` is the middle of each. NaN where unknown."""

    step_s: float
    at_unix_s: tuple[float, ...]
    columns: Mapping[str, tuple[float, ...]]


class _Resolution:
    """Rings of one bucket size, and the bucket that is being filled."""

    def __init__(self, step_s: float, points: int) -> None:
        self.step_s, self.points = step_s, points
        self.rings: dict[str, Ring] = {}  # by job; "" is the cluster
        self._number = -1
        self._means: dict[str, _Mean] = {}

    def add(self, unix_s: float, values: Mapping[str, Values]) -> tuple[int, dict[str, Values]]:
        """Adds one pass. Returns the bucket that it ended and its means; empty means if none."""
        number, ended = int(unix_s // self.step_s), (self._number, dict[str, Values]())
        if number != self._number:
            if self._number >= 0:
                ended = (self._number, {job: mean.values for job, mean in self._means.items()})
                self.put(*ended)
            self._number, self._means = number, {}
        for job, of_job in values.items():
            self._means.setdefault(job, _Mean(len(of_job))).add(of_job)
        return ended

    def put(self, number: int, values: Mapping[str, Values]) -> None:
        for job, of_job in values.items():
            ring = self.rings.get(job)
            if ring is None:
                self._forget(number)
                if len(self.rings) > JOBS_MAX:
                    continue
                ring = self.rings[job] = Ring(self.points, len(of_job))
            ring.put(number, of_job)

    def _forget(self, number: int) -> None:
        """Jobs whose newest bucket is older than the rings reach."""
        gone = [job for job, ring in self.rings.items() if ring.newest <= number - self.points]
        for job in gone:
            del self.rings[job]

    def series(self, job: str, now_unix_s: float, span_s: float) -> Series:
        """The bucket that is being filled is not in it."""
        fields = JOB_FIELDS if job else CLUSTER_FIELDS
        last = int(now_unix_s // self.step_s) - 1
        count = max(1, min(self.points, int(span_s / self.step_s)))
        merged = math.ceil(count / POINTS_MAX)
        step_s = merged * self.step_s
        ring = self.rings.get(job)
        at, rows = [], []
        # Whole steps since the epoch, so that a point keeps its place from answer to answer.
        for step in range((last - count + 1) // merged + 1, last // merged + 1):
            mean = _Mean(len(fields))
            for number in range(step * merged, (step + 1) * merged):
                mean.add(ring.at(number) if ring else ())
            at.append((step + 0.5) * step_s)
            rows.append(mean.values)
        columns = zip(*rows, strict=True) if rows else ((),) * len(fields)
        return Series(step_s, tuple(at), dict(zip(fields, columns, strict=True)))


class History:
    """Written by the leader after each pass, read by the page in another thread. A standby loads
    what the leader writes to the store that they share.
    """

    def __init__(self, store: Store | None) -> None:
        """Without a store it lives in memory alone."""
        self._store = store
        self._lock = threading.Lock()
        self._coarse = _Resolution(COARSE_S, COARSE_POINTS)
        self._fine = _Resolution(FINE_S, FINE_POINTS)

    def load(self, now_unix_s: float) -> None:
        """Reads what the store keeps, from the newest bucket known here on. A store that cannot be
        read changes nothing.
        """
        if self._store is None:
            return
        with self._lock:
            ring = self._coarse.rings.get("")
            newest = ring.newest if ring else -1
        since_unix_s = max(now_unix_s - COARSE_S * COARSE_POINTS, newest * COARSE_S)
        try:
            kept = self._store.records(TOPIC, since_unix_s=since_unix_s, limit=COARSE_POINTS)
        except Unavailable:
            return
        for record in reversed(kept):
            values = _from_json(record.content)
            with self._lock:
                self._coarse.put(int(record.at_unix_s // COARSE_S), values)

    def add(self, board: Board) -> None:
        """One pass. A record that cannot be written stays in memory alone."""
        values = dict(_values(board))
        with self._lock:
            self._fine.add(board.at_unix_s, values)
            number, ended = self._coarse.add(board.at_unix_s, values)
        if ended and self._store is not None:
            try:
                made = Record(number * COARSE_S, TOPIC, "", _to_json(ended))
                self._store.keep_record(made, COARSE_S * COARSE_POINTS)
            except Unavailable:
                return

    def series(self, now_unix_s: float, span_s: float, job: str = "") -> Series:
        """Of the cluster, or of one job, over the last `span_s`."""
        fine = span_s <= FINE_S * FINE_POINTS
        with self._lock:
            return (self._fine if fine else self._coarse).series(job, now_unix_s, span_s)


def _values(board: Board) -> Iterator[tuple[str, Values]]:
    cluster = cluster_of(board)
    power, gpus = cluster.power, cluster.gpus
    yield "", (power.now_w, power.without_w, float(gpus.controlled), float(gpus.all))
    for job in board.jobs[:JOBS_MAX]:
        yield job.view.policy.name, _job_values(job)


def _job_values(job: JobBoard) -> Values:
    current = job.view.measured.current
    if current is None:
        return (math.nan,) * len(JOB_FIELDS)
    given = current.time_mean_s, current.energy_j, current.power_w
    return tuple(math.nan if value is None else value for value in given)


def _to_json(values: Mapping[str, Values]) -> str:
    """The cluster, and as many jobs as fit a record."""
    parts: list[str] = []
    size = 2
    for job, of_job in values.items():
        shown = [float(f"{v:.{DIGITS}g}") if math.isfinite(v) else None for v in of_job]
        part = f"{json.dumps(job)}:{json.dumps(shown, separators=(',', ':'))}"
        size += len(part) + 1
        if size > RECORD_CHARACTERS_MAX:
            break
        parts.append(part)
    return "{" + ",".join(parts) + "}"


def _from_json(text: str) -> dict[str, Values]:
    """Rows of another length (of a version with other fields) are left out."""
    try:
        found = json.loads(text, parse_int=float)
    except (ValueError, RecursionError):
        return {}
    kept: dict[str, Values] = {}
    for job, values in found.items() if isinstance(found, dict) else ():
        fields = JOB_FIELDS if job else CLUSTER_FIELDS
        if isinstance(values, list) and len(values) == len(fields):
            numbers = (isinstance(value, int | float) for value in values)
            kept[job] = tuple(
                float(value) if known else math.nan
                for value, known in zip(values, numbers, strict=True)
            )
    return kept
