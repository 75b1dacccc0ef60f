"""Series of a Prometheus as the frames of an audit, one piece of time after the other.

Every query is a mean or the last sample within a step, so that look-back never shows old samples. A
piece is so short that its response stays small, whatever the number of GPUs.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from joulecut_controller.sources.prometheus import Prometheus, Series, samples
from joulecut_lab.audit.exporters import (
    DCGM,
    OURS,
    PURPOSE,
    any_of_ours,
    blank,
    exporter_of,
)
from joulecut_lab.audit.owners import OwnerHistory, joined_by_number
from joulecut_lab.audit.reading import Frame, GpuReading
from joulecut_wire import metrics

STEPS_MAX = 1_440  # of a whole audit: a minute each for a day
STEP_S_MIN = 15.0
SCRAPES_A_STEP = 2.0  # so that a late scrape leaves no step empty
SCRAPES_WINDOW_S = 300  # to see how often is scraped; longer than any usual interval
SAMPLES_WANTED = 50_000  # of one answer: ten megabytes once it is parsed
PIECE_FIRST = 5  # steps, until it is seen how many samples that is


@dataclass(slots=True)
class _Row:
    """One GPU in one piece of time: a figure for each step, by column."""

    figures: dict[str, list[float | None]] = field(default_factory=dict)
    owners: dict[int, list[str]] = field(default_factory=dict)


class History:
    """A stretch of time in a Prometheus, as frames. Raises Unavailable where there is nothing."""

    def __init__(
        self, server: Prometheus, begin_s: float, end_s: float, *, matcher: str, job_label: str
    ) -> None:
        self._server, self._matcher, self._job_label = server, matcher, job_label
        self._names = server.names(begin_s, end_s, any_of_ours(matcher))
        self.exporter = exporter_of(self._names, server.url)
        self._owners = OwnerHistory()
        self.models: dict[str, str] = {}  # of cards, by UUID
        self._joined: dict[str, set[str]] = {}  # pods, by the job in their names
        self.owner_labels: set[str] = set()  # of the series that name owners
        self.step_s = self._step(end_s - begin_s, end_s)
        self.steps = max(1, round((end_s - begin_s) / self.step_s))
        self._begin_s = end_s - self.steps * self.step_s

    def frames(self, progress: Callable[[int, int], None]) -> Iterator[Frame]:
        """In the order of time; `progress` gets (steps done, steps)."""
        piece, at = PIECE_FIRST, 0
        while at <= self.steps:
            count = min(piece, self.steps - at + 1)
            rows, most = self._piece(at, count)
            yield from self._frames(rows, at, count)
            at += count
            progress(min(at, self.steps), self.steps)
            piece = max(1, min(self.steps + 1, int(SAMPLES_WANTED / max(1.0, most / count))))

    def doubts(self) -> dict[str, str]:
        """Jobs that may be several: by their pods' names alone."""
        return {
            job: f"joined by name: {', '.join(sorted(pods)[:3])} may be jobs of their own"
            for job, pods in self._joined.items()
            if len(pods) > 1
        }

    def _step(self, seconds: float, end_s: float) -> float:
        """As short as STEPS_MAX allows, but with some scrapes in each."""
        name = (*self._held("energy_j"), *self._held("power_w"))[0]
        counted = f"max(count_over_time({name}{{{self._matcher}}}[{SCRAPES_WINDOW_S}s]))"
        rows = self._server.range(counted, end_s - seconds, end_s, max(seconds / 4, 1.0))
        most = max((float(value) for row in rows for _, value in row.values), default=0.0)
        scrape_s = SCRAPES_WINDOW_S / most if most else STEP_S_MIN
        wanted_s = max(seconds / STEPS_MAX, SCRAPES_A_STEP * scrape_s, STEP_S_MIN)
        return float(min(max(1, math.ceil(wanted_s)), max(1, int(seconds))))

    def _held(self, column: str) -> tuple[str, ...]:
        one = self.exporter.columns.get(column)
        return tuple(name for name in one.names if name in self._names) if one else ()

    def _piece(self, at: int, count: int) -> tuple[dict[str, _Row], int]:
        rows: dict[str, _Row] = {}
        most = 0
        for column, one in self.exporter.columns.items():
            for name in self._held(column)[:1]:
                inner = self._over(name, one.labels, last=one.last)
                answer = self._ask(f"max by ({self.exporter.uuid}) ({inner})", at, count)
                most = max(most, samples(answer))
                self._fill(rows, column, answer, at=at, count=count)
        most = max(most, self._see_owners(rows, at, count))
        self._see_models(at, count)
        return rows, most

    def _over(self, name: str, labels: str, *, last: bool) -> str:
        matcher = ",".join(filter(None, (labels, self._matcher)))
        how = "last_over_time" if last else "avg_over_time"
        return f"{how}({name}{{{matcher}}}[{self.step_s:.0f}s])"

    def _ask(self, query: str, at: int, count: int) -> list[Series]:
        begin_s = self._begin_s + at * self.step_s
        return self._server.range(query, begin_s, begin_s + (count - 1) * self.step_s, self.step_s)

    def _index(self, at_s: float, at: int) -> int:
        return round((at_s - self._begin_s) / self.step_s) - at

    def _fill(
        self, rows: dict[str, _Row], column: str, answer: list[Series], *, at: int, count: int
    ) -> None:
        scale = self.exporter.columns[column].scale
        for series in answer:
            uuid = series.metric.get(self.exporter.uuid, "")
            if not uuid:
                continue
            figures: list[float | None] = [None] * count
            for at_s, text in series.values:
                value = float(text)
                if math.isfinite(value):
                    figures[self._index(at_s, at)] = math.inf if blank(value) else value * scale
            rows.setdefault(uuid, _Row()).figures[column] = figures

    def _see_owners(self, rows: dict[str, _Row], at: int, count: int) -> int:
        name = next((name for name in self.exporter.owners if name in self._names), "")
        if not name:
            return 0
        answer = self._ask(self._over(name, "", last=True), at, count)
        for series in answer:
            uuid = series.metric.get(self.exporter.uuid, "")
            if uuid not in rows:
                continue
            self.owner_labels.update(series.metric)
            owner = self.exporter.owner(series.metric, self._job_label)
            if not self._job_label and (pod := joined_by_number(series.metric)):
                self._joined.setdefault(owner, set()).add(pod)
            for at_s, _ in series.values:
                rows[uuid].owners.setdefault(self._index(at_s, at), []).append(owner)
            if self.exporter is DCGM:
                self.models.setdefault(uuid, series.metric.get("modelName", ""))
        return samples(answer)

    def _see_models(self, at: int, count: int) -> None:
        name = metrics.GPU_INFO.full_name
        if self.exporter is not OURS or name not in self._names:
            return
        for series in self._ask(self._over(name, "", last=True), at, count):
            self.models.setdefault(series.metric.get("uuid", ""), series.metric.get("model", ""))

    def _frames(self, rows: Mapping[str, _Row], at: int, count: int) -> Iterator[Frame]:
        for step in range(count):
            readings = []
            for uuid, row in rows.items():
                if all(figures[step] is None for figures in row.figures.values()):
                    continue
                owner = self._owners.owner(uuid, row.owners.get(step, ()))
                figures: dict[str, Any] = {name: each[step] for name, each in row.figures.items()}
                on_purpose = figures.pop(PURPOSE, None) is not None
                readings.append(GpuReading(uuid, owner, on_purpose=on_purpose, **figures))
            at_s = self._begin_s + (at + step) * self.step_s
            yield Frame(at_s, self.step_s, tuple(readings))
