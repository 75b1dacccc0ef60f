"""Pipeline of a job whose policy entry gives none, from what its own processes report.

Every GPU's source may show the shape, or parts of it. It counts once all GPUs that report agree and
schedule and microbatches are known; a job without pipeline stages is one stage. Pure, and bounded
by the GPUs that agents describe.
"""

from collections.abc import Collection, Iterable, Mapping

from joulecut_controller.ports import ArrivedReport
from joulecut_engine.graph.pipeline import Pipeline
from joulecut_wire.messages import PipelineShape

# Schedules with one part of the model per GPU; of others the reports do not show the cut.
UNCHUNKED = ("gpipe", "1f1b")


class ReportedShapes:
    """Remembers the shape that each GPU of each job reported."""

    def __init__(self) -> None:
        self._shapes: dict[str, dict[str, PipelineShape]] = {}

    def keep_only(self, jobs: Iterable[str]) -> None:
        """Forgets jobs that left the policy."""
        wanted = set(jobs)
        for job in [job for job in self._shapes if job not in wanted]:
            del self._shapes[job]

    def note(self, job: str, reports: Iterable[ArrivedReport], known: Mapping[str, object]) -> None:
        """Adds a job's reports. UUIDs that no agent describes are not kept."""
        for arrived in reports:
            report = arrived.report
            if report.uuid in known and report.shape is not None:
                self._shapes.setdefault(job, {})[report.uuid] = report.shape

    def pipeline(self, job: str, uuids: Collection[str]) -> Pipeline | None:
        """The job's pipeline by its GPUs `uuids`; None where it is not known, or they disagree."""
        shapes = self._of(job, uuids)
        stages = {shape.stages for shape in shapes}
        tensor = {shape.tensor_parallel for shape in shapes}
        schedules = {shape.schedule for shape in shapes} - {""}
        microbatches = {shape.microbatches for shape in shapes} - {0}
        if len(stages) != 1 or len(tensor) != 1:
            return None
        if stages == {1}:
            schedules, microbatches = {"1f1b"}, {1}
        if len(schedules) != 1 or len(microbatches) != 1:
            return None
        schedule, count, width = schedules.pop(), stages.pop(), tensor.pop()
        if schedule not in UNCHUNKED:
            return None
        replicas = -(-len(shapes) // (count * width))
        return Pipeline(
            schedule="gpipe" if schedule == "gpipe" else "1f1b",
            stages=count,
            microbatches=microbatches.pop(),
            tensor_parallel=width,
            data_parallel=max(1, replicas),
        )

    def missing(self, job: str, uuids: Collection[str]) -> str:
        """Why the shape that is reported is no pipeline yet; "" where nothing is reported."""
        shapes = self._of(job, uuids)
        if not shapes or self.pipeline(job, uuids) is not None:
            return ""
        stages = sorted({shape.stages for shape in shapes})
        names = sorted({shape.schedule for shape in shapes} - {""})
        counts = sorted({shape.microbatches for shape in shapes} - {0})
        return (
            "the job's processes do not show its whole pipeline: "
            f"stages {_listed(stages)}, schedule {_listed(names)}, microbatches {_listed(counts)}; "
            "name it: pipeline: {schedule: ..., stages: ..., microbatches: ...}"
        )

    def _of(self, job: str, uuids: Collection[str]) -> tuple[PipelineShape, ...]:
        known = self._shapes.get(job, {})
        return tuple([known[uuid] for uuid in uuids if uuid in known])


def _listed(values: list[str] | list[int]) -> str:
    return " and ".join(map(str, values)) or "unknown"
