"""The file that describes one pipeline job to `joulecut plan` and `joulecut frontier`.

```yaml
pipeline: {schedule: 1f1b, stages: 8, microbatches: 12}
profile: stage_profile.csv     # relative to this file
blocking_power_w: 83.64        # what a GPU draws while it waits for its neighbours
```
Read strictly: a key that is not known may be one that matters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from joulecut_controller.model import mismatch, problem
from joulecut_controller.policy.quantity import Fault, choice, nearest, number, text, whole
from joulecut_controller.policy.schema import (
    MICROBATCHES_MAX,
    POWER_W_MAX,
    SCHEDULES_LATER,
    STAGES_MAX,
)
from joulecut_controller.solve.problem import Problem
from joulecut_controller.sources import profile as profile_file
from joulecut_controller.workload import SCHEDULES, Granularity, Pipeline, Profile, Schedule
from joulecut_wire.document import Document, KeyPath, load

OPERATIONS_MAX = 65_536  # a plan then takes minutes and a few GB; beyond that nobody waits

_KEYS = ("pipeline", "profile", "blocking_power_w")
_PIPELINE_KEYS = ("schedule", "stages", "microbatches")

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class JobFile:
    """One job as its file describes it."""

    path: Path
    pipeline: Pipeline
    profile: Profile
    blocking_power_w: float

    def title(self, granularity: Granularity) -> list[str]:
        """What is computed, and what the numbers mean."""
        shape = f"{self.pipeline.stages} stages x {self.pipeline.microbatches} microbatches"
        return [
            f"{self.path}: {self.pipeline.schedule}, {shape}, granularity {granularity}",
            "one iteration, one GPU per stage; predicted from the profile, not measured",
        ]

    def problem(self) -> Problem:
        return problem(self.pipeline, self.profile, self.blocking_power_w)


def read(path: Path) -> JobFile:
    """Reads a job file and its profile. Raises BadInput with file, line and key."""
    document = load(path)
    data = _mapping(document, (), document.data, _KEYS)
    shape = _mapping(document, ("pipeline",), data["pipeline"], _PIPELINE_KEYS)
    pipeline = _pipeline(document, shape)
    power_w = _value(
        document, ("blocking_power_w",), data["blocking_power_w"], number(0.0, POWER_W_MAX)
    )
    name = _value(document, ("profile",), data["profile"], text(4096, "a path"))
    profile = profile_file.read(path.parent / name)
    complaint = mismatch(pipeline, profile)
    if complaint:
        allowed = f"the {profile.stages} of {name}, no more and no fewer"
        raise document.bad(("pipeline", "stages"), complaint, allowed)
    return JobFile(path, pipeline, profile, power_w)


def _pipeline(document: Document, shape: dict[str, object]) -> Pipeline:
    where = ("pipeline",)
    schedule: Schedule = _value(
        document,
        (*where, "schedule"),
        shape["schedule"],
        choice(*SCHEDULES, later=SCHEDULES_LATER),
    )
    if schedule not in SCHEDULES:
        what = f"schedule {schedule} is not available yet"
        raise document.bad((*where, "schedule"), what, " | ".join(SCHEDULES))
    stages = _value(document, (*where, "stages"), shape["stages"], whole(1, STAGES_MAX))
    microbatches = _value(
        document, (*where, "microbatches"), shape["microbatches"], whole(1, MICROBATCHES_MAX)
    )
    if 2 * stages * microbatches > OPERATIONS_MAX:
        what = f"{stages} stages x {microbatches} microbatches x 2 operations"
        raise document.bad((*where, "microbatches"), what, f"at most {OPERATIONS_MAX} operations")
    return Pipeline(schedule, stages, microbatches)


def _mapping(
    document: Document, path: KeyPath, value: object, keys: tuple[str, ...]
) -> dict[str, object]:
    """A mapping with exactly these keys."""
    if not isinstance(value, dict):
        raise document.bad(path, "not a mapping", f"the keys {', '.join(keys)}")
    for key in value:
        if key not in keys:
            what = f"unknown key{nearest(key, keys)}"
            raise document.bad((*path, key), what, ", ".join(keys))
    for key in keys:
        if key not in value:
            raise document.bad(path, f"{key} is missing", f"the keys {', '.join(keys)}")
    return value


def _value(
    document: Document, path: KeyPath, value: object, reader: Callable[[object], _Value]
) -> _Value:
    try:
        return reader(value)
    except Fault as fault:
        raise document.bad(path, fault.what, fault.allowed) from None
