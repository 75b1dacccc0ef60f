"""From what was measured to what is asked: a profile and a pipeline become a `Problem`.

Options that can never pay are dropped here, once per distinct (stage, kind), so that the
solver sees 20-30 options instead of a whole sweep.
"""

from collections.abc import Sequence

from joulecut_controller.graph import build
from joulecut_controller.hardware import ClockOption
from joulecut_controller.solve.problem import Problem
from joulecut_controller.workload import KINDS, Pipeline, Profile


def problem(
    pipeline: Pipeline,
    profile: Profile,
    blocking_power_w: float | Sequence[float],
    overhead_power_w: float = 0.0,
) -> Problem:
    """The solver's question for one iteration of `pipeline`.

    `blocking_power_w` is one number for all GPUs or one per stage; `overhead_power_w` is
    charged for the whole iteration and all GPUs together. Raises ValueError where
    `mismatch` complains or a power is negative or not finite.
    """
    complaint = mismatch(pipeline, profile)
    if complaint:
        raise ValueError(complaint)
    powers = (
        (float(blocking_power_w),) * pipeline.stages
        if isinstance(blocking_power_w, int | float)
        else tuple(map(float, blocking_power_w))
    )
    if len(powers) != pipeline.stages:
        raise ValueError(f"{len(powers)} blocking powers for {pipeline.stages} stages")
    if not all(0.0 <= power < float("inf") for power in (*powers, overhead_power_w)):
        raise ValueError("powers are finite and not negative")
    shared: dict[tuple[ClockOption, ...], tuple[ClockOption, ...]] = {}
    kept, swept = {}, {}
    for stage in range(pipeline.stages):
        for kind in KINDS:
            options = profile.options[stage, kind]
            worth = worthwhile(options, powers[stage])
            kept[stage, kind] = shared.setdefault(worth, worth)
            swept[stage, kind] = shared.setdefault(options, options)
    graph = build(pipeline)
    return Problem(
        graph=graph,
        options=tuple(kept[o.stage, o.kind] for o in graph.operations),
        blocking_power_w=powers,
        overhead_power_w=float(overhead_power_w),
        measured=tuple(swept[o.stage, o.kind] for o in graph.operations),
    )


def mismatch(pipeline: Pipeline, profile: Profile) -> str:
    """Why this profile cannot price this pipeline; empty where it can."""
    if profile.stages != pipeline.stages:
        return f"profile has {profile.stages} stages, pipeline has {pipeline.stages}"
    for stage in range(pipeline.stages):
        for kind in KINDS:
            if not profile.options.get((stage, kind)):
                return f"profile has no {kind} of stage {stage}"
    return ""


def worthwhile(
    options: tuple[ClockOption, ...], blocking_power_w: float
) -> tuple[ClockOption, ...]:
    """Options that no other beats on both time and effective cost, fastest first.

    Effective and not raw energy: where there is slack, an operation that runs longer for a
    little more energy still pays if waiting that long would have drawn more. Of equals the
    lower clock stays. Everything undominated on raw energy is kept, so no plan is lost.
    """
    kept: list[ClockOption] = []
    cheapest_j = float("inf")
    for option in sorted(options, key=lambda o: (o.time_s, o.energy_j, o.clock_mhz)):
        cost_j = option.effective_cost_j(blocking_power_w)
        if cost_j < cheapest_j:
            kept.append(option)
            cheapest_j = cost_j
    return tuple(kept)
