"""The planned iteration as a timeline, one row per stage.

Predicted, never measured. Beside the plan stands the same pipeline with every operation
at its fastest option of the profile: the slack the plan uses is the difference.
"""

from functools import lru_cache

import numpy as np

from joulecut_controller import answer as a
from joulecut_controller.answer import Answer, Json, Key, listed, maybe, number
from joulecut_controller.board import JobBoard
from joulecut_controller.view import Window
from joulecut_engine.graph import Graph, build
from joulecut_engine.graph.clock_option import ClockOption, undominated
from joulecut_engine.graph.pipeline import Kind, Pipeline, Profile
from joulecut_engine.optimize.levels import levels_of

GRAPHS_KEPT = 8  # Pipeline shapes of the jobs that are looked at; a graph is about a megabyte.

_OPERATION = Answer(
    stage=a.COUNT,
    microbatch=a.COUNT,
    kind=a.TEXT,
    clock_mhz=a.COUNT.given,
    start_s=a.NUMBER.given,
    duration_s=a.NUMBER.given,
    energy_j=a.NUMBER.given,
)
TIMELINE = Answer(
    "Timeline",
    job=a.TEXT,
    generation=a.COUNT,
    basis=Key({"const": "predicted"}).given,
    granularity=a.TEXT.given,
    iteration_time_s=a.NUMBER.given,
    deadline_s=a.NUMBER,
    time_scale=a.NUMBER.given,
    operations=listed(_OPERATION).given,
    fastest=maybe(a.OBJECT).given,
)


def timeline_json(job: JobBoard) -> Json | None:
    """The operations of the newest plan; None where it has none (no profile, no change).

    Times are in the job's own seconds: the model's, times `time_scale` (measured over
    modelled), so that they agree with the forecast.
    """
    plan, policy = job.decision, job.view.policy
    if plan is None or plan.solution is None or policy.pipeline is None:
        return None
    solution, graph = plan.solution, _graph(policy.pipeline)
    if len(solution.clocks) != len(graph.operations):
        return None  # The policy changed under the plan; the next pass makes another.
    shown_s = plan.forecast.iteration_time_s if plan.forecast else solution.iteration_time_s
    scale = shown_s / solution.iteration_time_s
    return TIMELINE.json(
        plan,
        basis="predicted",
        granularity=solution.granularity,
        iteration_time_s=number(shown_s),
        time_scale=number(scale),
        operations=_operations_json(graph, solution.clocks, solution.start_s, scale),
        fastest=_fastest_json(graph, policy.profile, job.view.measured.baseline),
    )


@lru_cache(GRAPHS_KEPT)
def _graph(pipeline: Pipeline) -> Graph:
    return build(pipeline)


def _operations_json(
    graph: Graph, clocks: tuple[ClockOption, ...], start_s: tuple[float, ...], scale: float
) -> list[Json]:
    return [
        _OPERATION.json(
            operation,
            clock_mhz=option.clock_mhz,
            start_s=number(start * scale),
            duration_s=number(option.time_s * scale),
            energy_j=number(option.energy_j),
        )
        for operation, option, start in zip(graph.operations, clocks, start_s, strict=True)
    ]


def _fastest_json(graph: Graph, profile: Profile | None, baseline: Window | None) -> Json | None:
    """Every operation at its fastest option, started as soon as its inputs are there.

    Stretched to the measured baseline where there is one: that is what runs at default clocks.
    """
    if profile is None or any((o.stage, o.kind) not in profile.options for o in graph.operations):
        return None
    fastest: dict[tuple[int, Kind], ClockOption] = {
        key: undominated(options)[0] for key, options in profile.options.items()
    }
    clocks = tuple(fastest[operation.stage, operation.kind] for operation in graph.operations)
    seconds = np.array([option.time_s for option in clocks])
    start_s, _ = levels_of(graph).around(seconds)
    modelled_s = float((start_s + seconds).max())
    shown_s = baseline.time_mean_s if baseline else modelled_s
    return {
        "iteration_time_s": number(shown_s),
        "operations": _operations_json(
            graph, clocks, tuple(start_s.tolist()), shown_s / modelled_s
        ),
    }
