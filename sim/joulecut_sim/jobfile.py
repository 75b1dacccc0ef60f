"""The file that describes a simulated job, read strictly: a typing error must not run.

```yaml
job: gpt3-175b
pipeline: {schedule: 1f1b, microbatches: 48}   # one stage per GPU
time_scale: 0.045                              # factor on all operation times
seed: 1
noise: {operation: 0.01, gpu_time: 0.004, gpu_power: 0.015}
reports: {jitter_s: 0.02, lost: 0.1}           # optional: how late reports are, and the share lost;
                                               # with `marks: true` operations are marked as well
gpus:                                          # in stage order
  - {state: node-a/gpus.state, index: 0, socket: node-a/job.sock}
control: control.json      # optional: {"peer_iteration_time_s": 0.5} while a sibling is slow
results: results.jsonl     # optional
iterations: 100            # optional: stop after so many
```
Relative paths are relative to the file.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulecut_sim.plant import SCHEDULES, Noise, Schedule
from joulecut_wire import section as section_file
from joulecut_wire.document import load
from joulecut_wire.quantity import choice, flag, number, text, whole
from joulecut_wire.section import Listed, flat

_NAME, _RATIO = text(253, "text"), number(0.0, 1.0)
_NOISE = number(0.0, 0.3)  # more than any training job has


@dataclass(frozen=True, slots=True)
class JobGpu:
    """One GPU of the job: its node's state file, its index there, its agent's socket."""

    state: Path
    index: int
    socket: Path | None = None


@dataclass(frozen=True, slots=True)
class Reporting:
    """How well a job reports: delay of an iteration's reports (half-normal), share lost.

    `marks`: it sends a mark as each operation begins, without delay or loss.
    """

    jitter_s: float = 0.0
    lost: float = 0.0
    marks: bool = False


@dataclass(frozen=True, slots=True)
class JobFile:
    """A simulated job as its file describes it. `iterations` -1 means: until stopped."""

    job: str
    schedule: Schedule
    microbatches: int
    gpus: tuple[JobGpu, ...]
    time_scale: float = 1.0
    seed: int = 1
    noise: Noise = field(default_factory=Noise)
    reports: Reporting = field(default_factory=Reporting)
    control: Path | None = None
    results: Path | None = None
    iterations: int = -1


def read(path: Path) -> JobFile:
    """Reads a job file. Raises BadInput with file, line and key."""
    document, folder = load(path), path.absolute().parent

    def file(value: object) -> Path:
        return folder / _NAME(value)

    section = flat(
        _job,
        required=("job", "pipeline", "gpus"),
        job=_NAME,
        pipeline=flat(
            dict,
            required=("microbatches",),
            schedule=choice(*SCHEDULES),
            microbatches=whole(1, 100_000),
        ),
        time_scale=number(1e-6, 1e6),
        seed=whole(0, 2**53),
        noise=flat(Noise, operation=_NOISE, gpu_time=_NOISE, gpu_power=_NOISE),
        reports=flat(Reporting, jitter_s=_RATIO, lost=_RATIO, marks=flag),
        gpus=Listed(
            flat(JobGpu, required=("state", "index"), state=file, index=whole(0, 63), socket=file)
        ),
        control=file,
        results=file,
        iterations=whole(1, 2**53),
    )
    job: JobFile = section_file.read(document, section, document.data)
    if not job.gpus:
        raise document.bad(("gpus",), "no GPUs", "one per stage")
    if len({(gpu.state, gpu.index) for gpu in job.gpus}) < len(job.gpus):
        raise document.bad(("gpus",), "a GPU is named twice", "one stage per GPU")
    return job


def _job(pipeline: dict[str, Any], **given: Any) -> JobFile:
    return JobFile(**{"schedule": "1f1b", **pipeline, **given})
