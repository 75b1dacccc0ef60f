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

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulecut_sim.plant import SCHEDULES, Noise, Schedule
from joulecut_wire.document import Document, KeyPath, load

_KEYS = (
    "job",
    "pipeline",
    "time_scale",
    "seed",
    "noise",
    "reports",
    "gpus",
    "control",
    "results",
    "iterations",
)
_REPORTS_KEYS = ("jitter_s", "lost", "marks")


@dataclass(frozen=True, slots=True)
class JobGpu:
    """One GPU of the job: its node's state file, its index there, its agent's socket."""

    state: Path
    index: int
    socket: Path | None


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
    return _Reader(load(path), path.absolute().parent).job()


class _Reader:
    def __init__(self, document: Document, folder: Path) -> None:
        self._document = document
        self._folder = folder

    def job(self) -> JobFile:
        data = self._mapping((), self._document.data, _KEYS, ("job", "pipeline", "gpus"))
        shape = self._mapping(
            ("pipeline",), data["pipeline"], ("schedule", "microbatches"), ("microbatches",)
        )
        schedule = shape.get("schedule", "1f1b")
        if schedule not in SCHEDULES:
            raise self._document.bad(
                ("pipeline", "schedule"), f"{schedule!r}", ", ".join(SCHEDULES)
            )
        noise = self._mapping(
            ("noise",), data.get("noise", {}), ("operation", "gpu_time", "gpu_power"), ()
        )
        reports = self._mapping(("reports",), data.get("reports", {}), _REPORTS_KEYS, ())
        marks = reports.pop("marks", False)
        if not isinstance(marks, bool):
            raise self._document.bad(("reports", "marks"), f"{marks!r}", "true or false")
        return JobFile(
            job=self._text(("job",), data["job"]),
            schedule=schedule,
            microbatches=self._whole(
                ("pipeline", "microbatches"), shape["microbatches"], 1, 100_000
            ),
            gpus=self._gpus(data["gpus"]),
            time_scale=self._number(("time_scale",), data.get("time_scale", 1.0), 1e-6, 1e6),
            seed=self._whole(("seed",), data.get("seed", 1), 0, 2**53),
            noise=Noise(
                **{key: self._number(("noise", key), noise[key], 0.0, 0.3) for key in noise}
            ),
            reports=Reporting(
                **{key: self._number(("reports", key), reports[key], 0.0, 1.0) for key in reports},
                marks=marks,
            ),
            control=self._path(("control",), data["control"]) if "control" in data else None,
            results=self._path(("results",), data["results"]) if "results" in data else None,
            iterations=self._whole(("iterations",), data["iterations"], 1, 2**53)
            if "iterations" in data
            else -1,
        )

    def _gpus(self, raw: Any) -> tuple[JobGpu, ...]:
        if not isinstance(raw, list) or not raw:
            raise self._document.bad(("gpus",), "not a list of GPUs", "one per stage")
        made = []
        for at, item in enumerate(raw):
            path: KeyPath = ("gpus", at)
            gpu = self._mapping(path, item, ("state", "index", "socket"), ("state", "index"))
            made.append(
                JobGpu(
                    self._path((*path, "state"), gpu["state"]),
                    self._whole((*path, "index"), gpu["index"], 0, 63),
                    self._path((*path, "socket"), gpu["socket"]) if "socket" in gpu else None,
                )
            )
        if len({(gpu.state, gpu.index) for gpu in made}) < len(made):
            raise self._document.bad(("gpus",), "a GPU is named twice", "one stage per GPU")
        return tuple(made)

    def _mapping(
        self, path: KeyPath, raw: Any, keys: tuple[str, ...], needed: tuple[str, ...]
    ) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise self._document.bad(path, "not a mapping", ", ".join(keys))
        for key in raw:
            if key not in keys:
                raise self._document.bad((*path, key), "unknown key", ", ".join(keys))
        for key in needed:
            if key not in raw:
                raise self._document.bad(path, f"{key} is missing", ", ".join(needed))
        return raw

    def _text(self, path: KeyPath, raw: Any) -> str:
        if not isinstance(raw, str) or not 0 < len(raw) < 254:
            raise self._document.bad(path, f"{raw!r}", "text of 1 to 253 letters")
        return raw

    def _path(self, path: KeyPath, raw: Any) -> Path:
        return self._folder / self._text(path, raw)

    def _whole(self, path: KeyPath, raw: Any, low: int, high: int) -> int:
        if not isinstance(raw, int) or isinstance(raw, bool) or not low <= raw <= high:
            raise self._document.bad(path, f"{raw!r}", f"a whole number, {low} to {high}")
        return raw

    def _number(self, path: KeyPath, raw: Any, low: float, high: float) -> float:
        good = isinstance(raw, int | float) and not isinstance(raw, bool) and math.isfinite(raw)
        if not good or not low <= raw <= high:
            raise self._document.bad(path, f"{raw!r}", f"a number, {low:g} to {high:g}")
        return float(raw)
