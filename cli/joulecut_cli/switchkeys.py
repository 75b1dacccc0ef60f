"""The `switching` key of a job file: what clock changes cost here, and how often they may be.

```yaml
switching: {latency_s: 0.01, max_per_iteration: 8, min_dwell_s: 0.5, cost_s: 0.001, cost_j: 0.2}
```
"""

from joulecut_cli.jobkeys import mapping, value
from joulecut_controller.policy.quantity import choice, number, whole
from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ
from joulecut_engine.graph.pipeline import SENDS, Granularity
from joulecut_engine.optimize.clock_changes import LATENCIES_MIN, UNLIMITED, Switching
from joulecut_engine.optimize.clock_groups import inner
from joulecut_engine.optimize.problem import Problem
from joulecut_wire.document import Document
from joulecut_wire.errors import BadInput

SECONDS_MAX, JOULES_MAX = 1e6, 1e12  # as for operations
_KEYS = ("min_dwell_s", "max_per_iteration", "cost_s", "cost_j", "latency_s", "late")


def read_switching(document: Document, data: dict[str, object]) -> Switching | None:
    """None where the job file says nothing of it. Raises BadInput."""
    if "switching" not in data:
        return None
    place = ("switching",)
    keys = mapping(document, place, data["switching"], (), _KEYS)
    seconds, joules = number(0.0, SECONDS_MAX), number(0.0, JOULES_MAX)

    def amount(key: str) -> float:
        reader = joules if key.endswith("_j") else seconds
        return value(document, (*place, key), keys.get(key, 0.0), reader)

    most = UNLIMITED
    if "max_per_iteration" in keys:
        reader = whole(0, UNLIMITED)
        most = value(document, (*place, "max_per_iteration"), keys["max_per_iteration"], reader)
    return Switching(
        min_dwell_s=amount("min_dwell_s"),
        max_per_iteration=most,
        cost_s=amount("cost_s"),
        cost_j=amount("cost_j"),
        latency_s=amount("latency_s"),
        late=value(document, (*place, "late"), keys.get("late", "next"), choice("next", "within")),
    )


def too_late(problem: Problem, switching: Switching, granularity: Granularity) -> str | None:
    """Why clocks cannot follow the operations of a granularity; None where they can."""
    if granularity == "gpu" or switching.latency_s == 0.0:
        return None
    indices = [i for line in problem.graph.order for i in _changing(problem, line, granularity)]
    menus = problem.measured or problem.options
    if not indices:
        return None
    shortest = min(indices, key=lambda i: min(o.time_s for o in menus[i]))
    time_s = min(o.time_s for o in menus[shortest])
    if time_s >= LATENCIES_MIN * switching.latency_s:
        return None
    return (
        f"{switching.latency_s:g} s is more than a fifth of the shortest operation that "
        f"granularity {granularity} gives a clock, {problem.graph.operations[shortest]} "
        f"with {time_s:.4g} s"
    )


def must_be_punctual(
    source: str, problem: Problem, switching: Switching, granularity: Granularity
) -> None:
    """Raises BadInput for a granularity that clocks cannot follow."""
    complaint = too_late(problem, switching, granularity)
    if complaint is not None:
        allowed = "a latency of at most a fifth of it, or --granularity gpu"
        raise BadInput(f"{source}: switching.latency_s", complaint, allowed)


def _changing(problem: Problem, line: tuple[int, ...], granularity: Granularity) -> list[int]:
    """Operations of a GPU that may have a clock of their own: with `edge` those outside."""
    between = inner(problem, line) if granularity == "edge" else range(0)
    menus = problem.measured or problem.options
    return [
        i
        for k, i in enumerate(line)
        if k not in between
        and menus[i][0].clock_mhz != ANY_CLOCK_MHZ
        and problem.graph.operations[i].kind not in SENDS
    ]
