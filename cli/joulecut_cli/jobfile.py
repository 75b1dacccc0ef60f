"""The file that describes one pipeline job to `joulecut plan` and `joulecut frontier`.

```yaml
pipeline: {schedule: 1f1b, stages: 8, microbatches: 12}
profile: stage_profile.csv     # relative to this file
blocking_power_w: 83.64        # what a GPU draws while it waits for its neighbours
```
Read strictly: a key that is not known may be one that matters. docs/commands.md has them all.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from joulecut_cli import graphfile
from joulecut_cli.granularity import Asked
from joulecut_cli.graphfile import GraphFile
from joulecut_cli.jobkeys import (
    MEMBERS_MAX,
    Costs,
    GraphJobKeys,
    Jitter,
    JobKeys,
    costs_of,
    must_be_bounded,
    read_pipeline,
)
from joulecut_controller.sources import profile as profile_file
from joulecut_engine.graph import Circular, build
from joulecut_engine.graph.build import deadlock
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, SENDS, Kind, Pipeline, Profile
from joulecut_engine.graph.power_limit import under_limit
from joulecut_engine.graph.shape import kinds_of
from joulecut_engine.optimize.formulation import completed, lockstep, mismatch, priced, problem
from joulecut_engine.optimize.problem import TWO_CHANGES, ChangeLimits, Problem
from joulecut_wire.document import Document, KeyPath, load
from joulecut_wire.errors import BadInput
from joulecut_wire.section import read as read_section
from joulecut_wire.section import section_of

_WITHOUT = {"jitter": "times are means", "switching": "clock changes cost nothing"}


@dataclass(frozen=True, slots=True)
class JobFile:
    """One job as its file describes it. With `graph` the shape of the pipeline only counts."""

    path: Path
    pipeline: Pipeline
    profile: Profile
    blocking_power_w: float
    graph: GraphFile | None = None
    jitter: Jitter | None = None
    switching: ChangeLimits | None = None

    def asked(self, asked: Asked | None) -> Asked:
        """The granularity that a command answers with: without a word for it `computation`, or
        `changes` where the job limits them."""
        return asked or Asked("computation" if self.switching is None else "changes")

    def limits(self, asked: Asked) -> ChangeLimits:
        """Of granularity `changes`; the command line's number goes before the file's."""
        limits = self.switching or TWO_CHANGES
        return limits if asked.changes is None else replace(limits, per_iteration=asked.changes)

    def title(self, granularity: str) -> list[str]:
        """What is computed, and what the numbers mean."""
        p = self.pipeline
        if self.graph is None:
            shape = f"{p.schedule}, {p.stages} stages x {p.microbatches} microbatches"
            shape += f" x {p.chunks} chunks" if p.chunks > 1 else ""
        else:
            count = len(self.graph.graph.operations)
            shape = f"explicit graph, {p.stages} stages, {count} operations"
        return [
            f"{self.path}: {shape}, granularity {granularity}",
            "one iteration, one GPU per stage; predicted from the profile, not measured",
        ]

    def left_out(self, *keys: str) -> str:
        """A sentence on those of `jitter` and `switching` that the job has although a command
        answers without; empty where it has none of them."""
        values = {"jitter": self.jitter, "switching": self.switching}
        given = [key for key in keys if values[key] is not None]
        means = ", ".join(_WITHOUT[key] for key in given)
        return f"without the job's {' and '.join(given)}: {means}" if given else ""

    def problem(self) -> Problem:
        if self.graph is None:
            return problem(self.pipeline, self.profile, self.blocking_power_w)
        fixed: dict[ClockOption, tuple[ClockOption, ...]] = {}  # equal costs share one menu
        menus = [
            fixed.setdefault(cost.fixed, (cost.fixed,))
            if cost.fixed is not None
            else self.profile.options[cost.row, cost.kind]
            for cost in self.graph.costs
        ]
        return priced(self.graph.graph, menus, self.blocking_power_w)


def read(path: Path) -> JobFile:
    """Reads a job file and what it names. Raises BadInput with file, line and key."""
    return of_document(load(path), path)


def of_document(document: Document, path: Path) -> JobFile:
    """As `read`; files are relative to `path`."""
    if isinstance(document.data, dict) and "apiVersion" in document.data:
        what = "a policy, read by joulecut policy check; not a job file"
        raise document.bad((), what, f"the keys {', '.join(section_of(JobKeys).keys)}")
    if isinstance(document.data, dict) and "graph" in document.data:
        return _explicit(document, path)
    keys: JobKeys = read_section(document, JobKeys, document.data)
    pipeline, costs = read_pipeline(document, keys.pipeline), costs_of(keys)
    pipeline = replace(
        pipeline,
        transfers=costs.transfers,
        tensor_collective="tensor-forward" in costs.kinds,
        data_collective="collective" in costs.kinds,
        optimizer="optimizer" in costs.kinds,
    )
    must_be_bounded(document, pipeline)
    power_w = keys.blocking_power_w
    profile = _profile(document, path, keys)
    profile = _split(document, pipeline, profile, keys.weight_share)
    profile = _with_fixed(pipeline, profile, costs)
    complaint = mismatch(pipeline, profile)
    if complaint:
        raise _mismatch(document, pipeline, profile, complaint, keys.profile)
    if pipeline.transfers == "synchronous":
        try:
            build(pipeline)
        except Circular as error:
            place = ("communication", "synchronous")
            raise document.bad(place, deadlock(error), "synchronous: false") from None
    return JobFile(path, pipeline, profile, power_w, None, *_limits(keys))


def _limits(keys: JobKeys | GraphJobKeys) -> tuple[Jitter | None, ChangeLimits | None]:
    jitter, switching = keys.jitter, keys.switching
    return jitter.jitter() if jitter else None, switching.limits() if switching else None


def _explicit(document: Document, path: Path) -> JobFile:
    """A job whose graph is a file; it needs a profile only where costs refer to one."""
    keys: GraphJobKeys = read_section(document, GraphJobKeys, document.data)
    try:
        graph = graphfile.read(path.parent / keys.graph)
    except BadInput as error:
        raise document.behind(("graph",), error) from None
    power_w, profile = keys.blocking_power_w, Profile({})
    if keys.profile:
        profile = _profile(document, path, keys)
    for operation, cost in zip(graph.graph.operations, graph.costs, strict=True):
        if cost.fixed is None and (cost.row, cost.kind) not in profile.options:
            what = f"{operation} has no cost: no {cost.kind} of stage {cost.row} in the profile"
            allowed = "such rows in profile, or time_s and energy_j"
            raise BadInput(str(path.parent / keys.graph), what, allowed)
    operations = graph.graph.operations
    pipeline = Pipeline(
        "explicit",
        stages=len(graph.graph.order),
        microbatches=1 + max(o.microbatch for o in operations),
        sync=keys.sync,
    )
    return JobFile(path, pipeline, profile, power_w, graph, *_limits(keys))


def _profile(document: Document, path: Path, keys: JobKeys | GraphJobKeys) -> Profile:
    """One profile, or one per GPU of a tensor-parallel group put together."""
    given, power_w, limit_w = keys.profile, keys.blocking_power_w, keys.power_limit_w
    if limit_w is not None and limit_w <= power_w:
        what = f"{limit_w:g} W, less than a GPU draws while it waits"
        raise document.bad(("power_limit_w",), what, f"more than {power_w:g}")
    if isinstance(given, str):
        return _read_profile(document, path.parent / given, power_w, limit_w, ("profile",))
    if not 1 <= len(given) <= MEMBERS_MAX:
        what = f"a list of {len(given)}"
        raise document.bad(("profile",), what, f"1 to {MEMBERS_MAX} paths, one per GPU")
    read = [
        _read_profile(document, path.parent / name, power_w, limit_w, ("profile", i))
        for i, name in enumerate(given)
    ]
    try:
        return lockstep(read, power_w)
    except ValueError as error:
        allowed = "profiles of the same stages, instructions and clocks"
        raise document.bad(("profile",), str(error), allowed) from None


def _read_profile(
    document: Document, path: Path, power_w: float, limit_w: float | None, place: KeyPath
) -> Profile:
    try:
        profile = profile_file.read(path)
    except BadInput as error:
        raise document.behind(place, error) from None
    if fault := profile.units_fault(power_w):
        raise document.bad(place, fault, "times in seconds, energies in joules")
    if limit_w is None:
        return profile
    options = {key: under_limit(menu, limit_w) for key, menu in profile.options.items()}
    return Profile(options, profile.source)


def _split(
    document: Document, pipeline: Pipeline, profile: Profile, weight_share: float | None
) -> Profile:
    """The profile with the halves of backwards that the schedule needs, or a refusal."""
    kinds = kinds_of(pipeline)
    apart = all((stage, "weight") in profile.options for stage in range(profile.stages))
    if weight_share is None:
        if "weight" in kinds and not apart:
            what = f"{pipeline.schedule} needs input and weight apart, the profile has backward"
            allowed = "rows of input and weight in the profile, or weight_share beside it"
            raise document.bad(("pipeline", "schedule"), what, allowed)
        return completed(profile, kinds, None)
    if "weight" not in kinds or apart:
        why = "the profile tells them" if apart else f"{pipeline.schedule} never splits a backward"
        raise document.bad(("weight_share",), why, "no weight_share")
    return completed(profile, kinds, weight_share)


def _with_fixed(pipeline: Pipeline, profile: Profile, costs: Costs) -> Profile:
    """Costs that the job file gives, for every stage (tensor collectives: every part)."""
    options = dict(profile.options)
    for kind, option in costs.fixed.items():
        once = kind in (*SENDS, "collective", "optimizer")
        for stage in range(pipeline.stages if once else profile.stages):
            options[stage, kind] = (option,)
    return Profile(options, profile.source)


def _mismatch(
    document: Document,
    pipeline: Pipeline,
    profile: Profile,
    complaint: str,
    given: str | tuple[str, ...],
) -> BadInput:
    """Either the stages differ, or rows of a kind are missing."""
    parts = pipeline.stages * pipeline.chunks
    if profile.stages in (pipeline.stages, parts):
        needed: tuple[Kind, ...] = KINDS if pipeline.chunks == 1 else kinds_of(pipeline)
        return document.bad(
            ("profile",),
            complaint,
            f"rows of {', '.join(needed)} and what the job file takes from the profile",
        )
    name = given if isinstance(given, str) else ", ".join(given)
    allowed = f"the {profile.stages} of {name}, no more and no fewer"
    if pipeline.chunks > 1:
        allowed = f"a profile of {pipeline.stages} (each chunk alike) or {parts} (by chunk)"
    return document.bad(("pipeline", "stages"), complaint, allowed)
