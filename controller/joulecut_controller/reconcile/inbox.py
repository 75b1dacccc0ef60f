"""Reports of each job until its next step, and which of them make that step due at once.

A report is news where its iteration took another time than the one before on that GPU, or did other
work: another phase, a stall, another shape. All others wait for the job's next step. Pure.
"""

from collections import deque
from collections.abc import Container, Iterable, Mapping

from joulecut_controller.ports import ArrivedReport
from joulecut_wire.messages import IterationReport, PipelineShape

# Of the duration before. Iterations of varying length differ by less most of the time; evaluations,
# checkpoints and other shapes by more.
NEWS_RATIO = 0.25
REPORTS_KEPT = 100_000  # of a job: 10,000 GPUs, ten iterations; the oldest are dropped
GPUS_MAX = 20_000  # of a job; more would be an error of what reports

# Duration, the pipeline as shown, and the operations by kind.
Last = tuple[float, PipelineShape | None, tuple[tuple[str, int], ...]]


class Inbox:
    """Reports that no step has taken yet, by job."""

    def __init__(self) -> None:
        self._reports: dict[str, deque[ArrivedReport]] = {}
        self._last: dict[str, dict[tuple[str, str], Last]] = {}  # by job, then by GPU and source

    def add(self, reports: Mapping[str, Iterable[ArrivedReport]]) -> set[str]:
        """Keeps the reports. Returns the jobs that have news."""
        news = set()
        for job, arrived in reports.items():
            kept = self._reports.setdefault(job, deque(maxlen=REPORTS_KEPT))
            last = self._last.setdefault(job, {})
            if len(last) > GPUS_MAX:
                last.clear()
            for one in arrived:
                kept.append(one)
                if _is_news(one.report, last):
                    news.add(job)
        return news

    def take(self, job: str) -> list[ArrivedReport]:
        """The job's reports since the last call, oldest first."""
        return list(self._reports.pop(job, ()))

    def keep_only(self, jobs: Container[str]) -> None:
        """Forgets jobs that left the policy."""
        for job in [job for job in self._last if job not in jobs]:
            del self._last[job]
            self._reports.pop(job, None)


def _is_news(report: IterationReport, last: dict[tuple[str, str], Last]) -> bool:
    key = (report.uuid, report.source)
    before, work = last.get(key), tuple((one.kind, one.count) for one in report.operations)
    last[key] = (report.duration_s, report.shape, work)
    if before is None:
        return True
    apart_s = abs(report.duration_s - before[0])
    return apart_s > NEWS_RATIO * before[0] or (report.shape, work) != before[1:]
