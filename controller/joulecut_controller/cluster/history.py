"""The last seven days of the cluster and of each job, as means of buckets of time.

Two resolutions: COARSE buckets for seven days, one record of the store each, and FINE ones for the
last hour, in memory only. Every series has a fixed size, so neither uptime nor the number of jobs
can fill memory or disk. Measured values only.
"""

import json
import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from joulecut_controller.board import Board, JobBoard
from joulecut_controller.cluster.summary import gpu_counts, power_of
from joulecut_controller.ports import Record, Store
from joulecut_wire.errors import Unavailable

TOPIC = "history"
COARSE_S = 300.0  # seven days are 2,016 points, 60 kB of an answer
COARSE_POINTS = 2_016
FINE_S = 15.0  # three passes of the default interval
FINE_POINTS = 240
WRITERS_MAX = 16  # controllers that share the jobs: a record of each
JOBS_MAX = 512  # with a history; 24 kB each
RECORD_CHARACTERS_MAX = 60_000  # the store refuses records beyond 65,536
DIGITS = 5  # significant, of a mean

CLUSTER_FIELDS = ("power_w", "without_w", "controlled_gpus", "gpus")
JOB_FIELDS = ("iteration_time_s", "energy_j", "power_w")

Values = tuple[float, ...]  # NaN where unknown


@dataclass(frozen=True, slots=True)
class Series:
    """Points `step_s` apart, ascending; `at_unix_s` is the middle of each. NaN where unknown."""

    step_s: float
    at_unix_s: tuple[float, ...]
    columns: Mapping[str, tuple[float, ...]]


class _Resolution:
    """Rows of the newest `points` buckets of `step_s`, by job, and the bucket that is being filled.
    A bucket's place in its rows is its number modulo `points`.
    """

    def __init__(self, step_s: float, points: int) -> None:
        self.step_s, self.points = step_s, points
        self.newest = -1  # the number of the newest bucket; -1 without any
        self._rows: dict[str, NDArray[np.float32]] = {}  # "" is the cluster; NaN where unknown
        self._number = -1
        self._sums: dict[str, NDArray[np.float64]] = {}  # by job: of values, and how many are known

    def add(self, unix_s: float, values: Mapping[str, Values]) -> tuple[int, dict[str, Values]]:
        """Adds one pass. Returns the bucket that it ended and its means; empty means if none."""
        number, ended = int(unix_s // self.step_s), (self._number, dict[str, Values]())
        if number != self._number:
            if self._number >= 0:
                with np.errstate(invalid="ignore"):  # nothing known: NaN
                    means = {job: sums / counts for job, (sums, counts) in self._sums.items()}
                ended = (self._number, {job: tuple(mean.tolist()) for job, mean in means.items()})
                self.put(*ended)
            self._number, self._sums = number, {}
        for job, of_job in values.items():
            row = np.array(of_job)
            known = np.isfinite(row)
            sums = self._sums.setdefault(job, np.zeros((2, len(row))))
            sums += (np.where(known, row, 0.0), known)
        return ended

    def put(self, number: int, values: Mapping[str, Values]) -> None:
        """Buckets older than the rows reach are left out, and so are jobs beyond JOBS_MAX."""
        if number > self.newest:
            begun = np.arange(max(self.newest, number - self.points), number) + 1
            for rows in self._rows.values():
                rows[begun % self.points] = np.nan
            self.newest = number
        for job, of_job in values.items() if number > self.newest - self.points else ():
            if job not in self._rows:
                if len(self._rows) > JOBS_MAX:
                    self._rows = {k: v for k, v in self._rows.items() if not np.isnan(v).all()}
                if len(self._rows) > JOBS_MAX:
                    continue
                self._rows[job] = np.full((self.points, len(of_job)), np.nan, np.float32)
            self._rows[job][number % self.points] = of_job

    def series(self, job: str, now_unix_s: float, span_s: float) -> Series:
        """The bucket that is being filled is not in it."""
        fields = JOB_FIELDS if job else CLUSTER_FIELDS
        last = int(now_unix_s // self.step_s)
        count = max(1, min(self.points, int(span_s / self.step_s)))
        numbers = np.arange(last - count, last)
        values = np.full((count, len(fields)), np.nan)
        if job in self._rows:
            kept = (numbers <= self.newest) & (numbers > self.newest - self.points)
            values[kept] = self._rows[job][numbers[kept] % self.points]
        columns = dict(zip(fields, map(tuple, values.T.tolist()), strict=True))
        return Series(self.step_s, tuple(((numbers + 0.5) * self.step_s).tolist()), columns)


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
        kept_s = COARSE_S * COARSE_POINTS
        since_unix_s = max(now_unix_s - kept_s, self._coarse.newest * COARSE_S)
        try:
            kept = self._store.records(
                TOPIC, since_unix_s=since_unix_s, limit=COARSE_POINTS * WRITERS_MAX
            )
        except Unavailable:
            return
        for record in reversed(kept):
            values = _from_json(record.content)
            with self._lock:
                self._coarse.put(int(record.at_unix_s // COARSE_S), values)

    def add(self, board: Board, leads: bool = True) -> None:
        """One pass. A record that cannot be written stays in memory alone; one that does not lead
        writes its jobs without the cluster.
        """
        values = dict(_values(board))
        with self._lock:
            self._fine.add(board.at_unix_s, values)
            number, ended = self._coarse.add(board.at_unix_s, values)
        if not leads:
            ended.pop("", None)
        if ended and self._store is not None:
            try:
                made = Record(number * COARSE_S, TOPIC, "", _to_json(ended))
                self._store.keep_record(made, kept_s=COARSE_S * COARSE_POINTS)
            except Unavailable:
                return

    def series(self, now_unix_s: float, span_s: float, job: str = "") -> Series:
        """Of the cluster, or of one job, over the last `span_s`."""
        fine = span_s <= FINE_S * FINE_POINTS
        with self._lock:
            return (self._fine if fine else self._coarse).series(job, now_unix_s, span_s)


def _values(board: Board) -> Iterator[tuple[str, Values]]:
    power, gpus = power_of(board), gpu_counts(board)
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
        found = msgspec.json.decode(text, type=dict[str, list[float | None]])
    except msgspec.DecodeError:
        return {}
    return {
        job: tuple(math.nan if value is None else value for value in values)
        for job, values in found.items()
        if len(values) == len(JOB_FIELDS if job else CLUSTER_FIELDS)
    }
