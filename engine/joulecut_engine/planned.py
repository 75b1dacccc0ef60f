"""A plan and its frontier, as notebooks and programs use them."""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecut_engine.chart import Chart, frontier_figure, of_frontiers
from joulecut_engine.graph.pipeline import GRANULARITIES, Granularity, Pipeline, Profile
from joulecut_engine.graph.shape import chunks_of, kinds_of, misfit
from joulecut_engine.optimize.formulation import completed, problem
from joulecut_engine.optimize.problem import Goal, Problem, Solution
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import frontier, solve
from joulecut_engine.picture import Picture, drawn, frame
from joulecut_engine.readers import reader

if TYPE_CHECKING:
    import pandas

COLUMNS = ("stage", "instruction", "frequency", "time", "energy")  # of a profile
SHAPE = ("schedule", "stages", "microbatches", "chunks")
POINTS = 50  # of a frontier


@dataclass(frozen=True)
class Points:
    """Plans of one frontier, ascending in time: the fastest first, that of least energy last."""

    baseline: Solution
    solutions: tuple[Solution, ...]

    def __len__(self) -> int:
        return len(self.solutions)

    def __iter__(self) -> Iterator[Solution]:
        return iter(self.solutions)

    def rows(self) -> list[dict[str, float]]:
        """Time and energy of each plan, and a bound below which no plan lies at its time."""
        keys = ("iteration_time_s", "energy_j", "lower_bound_j", "gap")
        return [{key: getattr(one, key) for key in keys} for one in self]

    def to_pandas(self) -> "pandas.DataFrame":
        """One line for each plan, as in `rows`."""
        return frame(self.rows())

    def plot(self, path: str | Path | None = None) -> Picture:
        """Energy against iteration time, drawn; written to `path` where there is one."""
        title = "energy against iteration time"
        return _plotted(of_frontiers(title, self.baseline, (self.solutions,)), path)


@dataclass(frozen=True)
class Planned:
    """One plan. `baseline` has every operation at its fastest option."""

    problem: Problem
    baseline: Solution
    solution: Solution
    deadline_s: float

    def __str__(self) -> str:
        return (
            f"predicted: {self.iteration_time_s:.4g} s ({self.slowdown_ratio:+.2%}) and "
            f"{self.energy_j:.4g} J ({self.saved_ratio:.1%} less) an iteration, gap {self.gap:.2%}"
        )

    @property
    def iteration_time_s(self) -> float:
        return self.solution.iteration_time_s

    @property
    def energy_j(self) -> float:
        """Of one iteration, one GPU for each stage."""
        return self.solution.energy_j

    @property
    def saved_ratio(self) -> float:
        """Energy saved over that of the baseline."""
        return 1.0 - self.solution.energy_j / self.baseline.energy_j

    @property
    def slowdown_ratio(self) -> float:
        return self.solution.iteration_time_s / self.baseline.iteration_time_s - 1.0

    @property
    def gap(self) -> float:
        """How far above a proven bound the energy is, as a fraction."""
        return self.solution.gap

    def operations(self) -> list[dict[str, Any]]:
        """What each GPU does: stage, microbatch, kind, clock_mhz, start_s, duration_s, energy_j."""
        done = self.solution
        return [
            {"stage": o.stage, "microbatch": o.microbatch, "kind": o.kind,
             "clock_mhz": option.clock_mhz, "start_s": start_s, "duration_s": option.time_s,
             "energy_j": option.energy_j}
            for o, option, start_s in zip(
                self.problem.graph.operations, done.clocks, done.start_s, strict=True
            )
        ]  # fmt: skip

    def to_pandas(self) -> "pandas.DataFrame":
        """One line for each operation, as in `operations`."""
        return frame(self.operations())

    def frontier(self, points: int = POINTS) -> Points:
        """At most so many plans, from the fastest to that of least energy. Raises ValueError for
        fewer than 2.
        """
        return Points(self.baseline, frontier(self.problem, points, self.solution.granularity))

    def plot(self, path: str | Path | None = None) -> Picture:
        """The plan on its frontier, drawn; written to `path` where there is one."""
        curve, title = self.frontier().solutions, "a plan on its frontier"
        chart = of_frontiers(title, self.baseline, (curve,), self.solution, self.deadline_s)
        return _plotted(chart, path)


def planned(
    asked: Problem,
    max_slowdown: float | str | None,
    deadline_s: float | None,
    granularity: Granularity,
) -> Planned:
    """The answer for one deadline. Raises ValueError."""
    if max_slowdown is not None and deadline_s is not None:
        raise ValueError("plan: max_slowdown and deadline_s; allowed: one of them")
    fastest = baseline(asked)
    if deadline_s is None:
        percent = _number(max_slowdown or 0.0, "%")
        if isinstance(max_slowdown, bool) or not 0.0 <= percent < inf:
            what = f"plan: max_slowdown: {max_slowdown!r}"
            raise ValueError(f'{what}; allowed: percent from 0, like 2 or "2%"')
        due_s = fastest.iteration_time_s * (1.0 + percent / 100.0)
    else:
        due_s = _number(deadline_s, "s")
    if granularity not in GRANULARITIES or not 0.0 < due_s < inf:
        what = f"deadline_s {deadline_s!r}, granularity {granularity}"
        raise ValueError(f"plan: {what}; allowed: seconds, and {', '.join(GRANULARITIES)}")
    return Planned(asked, fastest, solve(asked, Goal(due_s), granularity), due_s)


def _number(given: object, unit: str) -> float:
    """A number, or its text as on the command line; -1 for anything else."""
    text = given.strip().removesuffix(unit) if isinstance(given, str) else given
    try:
        return float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return -1.0


def problem_of(profile: Any, shape: Any, blocking_power_w: float | None) -> Problem:
    """The solver's question. Raises ValueError."""
    if isinstance(profile, str | Path) and Path(profile).suffix in {".yaml", ".yml"}:
        if shape is not None or blocking_power_w is not None:
            raise ValueError("plan: a job file has its own shape and blocking power")
        found: Problem = reader("job")(Path(profile)).problem()
        return found
    if shape is None or blocking_power_w is None:
        missing = "shape" if shape is None else "blocking_power_w"
        raise ValueError(f"plan: no {missing}; allowed: without it a job file in .yaml alone")
    if not isinstance(blocking_power_w, int | float) or not 0.0 < blocking_power_w < inf:
        raise ValueError(f"plan: blocking_power_w: {blocking_power_w!r}; allowed: watts above 0")
    pipeline, read = _pipeline(shape), _profile(profile)
    fault = read.units_fault(blocking_power_w)
    if fault:
        raise ValueError(f"profile: {fault}; allowed: times in seconds, energies in joules")
    read = completed(read, kinds_of(pipeline), None)
    return problem(pipeline, read, blocking_power_w)


def _pipeline(shape: Any) -> Pipeline:
    if not isinstance(shape, Pipeline):
        wrong = next((key for key in shape if key not in SHAPE), None)
        missing = next((key for key in SHAPE[:3] if key not in shape), None)
        if wrong or missing:
            what = f"no key {wrong}" if wrong else f"{missing} is missing"
            raise ValueError(f"shape: {what}; allowed: {', '.join(SHAPE)}")
        given = {**shape, "chunks": chunks_of(shape["schedule"], shape.get("chunks"))}
        for key in SHAPE[1:]:
            if not isinstance(given[key], int) or isinstance(given[key], bool):
                raise ValueError(f"shape: {key}: {given[key]!r}; allowed: a whole number")
        shape = Pipeline(**given)
    complaint = misfit(shape)
    if complaint is not None:
        raise ValueError(f"shape: {complaint.key}: {complaint.what}; allowed: {complaint.allowed}")
    found: Pipeline = shape
    return found


def _profile(given: Any) -> Profile:
    found: Profile
    if isinstance(given, Profile):
        return given
    if isinstance(given, str | Path):
        found = reader("profile")(Path(given))
        return found
    if hasattr(given, "to_dict"):  # a DataFrame
        given = given.to_dict("list")
    if isinstance(given, Mapping):
        missing = next((key for key in COLUMNS if key not in given), None)
        if missing is not None:
            raise ValueError(f"profile: no column {missing}; allowed: {', '.join(COLUMNS)}")
        given = [dict(zip(COLUMNS, row, strict=True))
                 for row in zip(*(given[key] for key in COLUMNS), strict=True)]  # fmt: skip
    out = io.StringIO()
    lines = csv.DictWriter(out, COLUMNS)
    lines.writeheader()
    try:
        lines.writerows(given)
    except (TypeError, AttributeError):
        what = f"profile: {type(given).__name__} is no profile"
        raise ValueError(f"{what}; allowed: a path, a DataFrame, columns or rows") from None
    found = reader("rows")(out.getvalue().encode(), "profile")
    return found


def _plotted(chart: Chart, path: str | Path | None) -> Picture:
    return drawn(lambda: frontier_figure(chart, legend=True), path)
