"""Granularity of a running job: the finest that it is allowed and that its evidence carries.

A clock can change within an iteration only where the agents know when iterations begin, and where
changes come at about the time they were asked for. Both are measured: the jitter and the misses of
iteration starts, and the spread of the set latency. A granularity whose evidence fails is left at
once, and taken up again only after a wait. Pure.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from joulecut_controller.view import GpuView, JobState, NodeView, View
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.change_timing import STRETCH_S_MIN, STRETCHES_MIN, changes_of
from joulecut_engine.optimize.problem import TWO_CHANGES, ChangeLimits, Problem, Solution
from joulecut_wire.messages import IterationTiming, TimedStep

Steps = tuple[TimedStep, ...]  # clock changes of a stage within an iteration

# Of a GPU whose latency was not measured yet: the driver's call takes 10-20 ms, and the clock
# follows some tens of milliseconds later.
SPREAD_UNKNOWN_S = 0.03
# With a fifth of the starts missed, a fifth of the saving is lost, and the source is not sound.
MISSED_RATIO_MAX = 0.2
MISSED_RATIO_HELD = 0.3  # a granularity in use is left only beyond
# A stretch up to so much longer than needed stays, since a new one is a new solve: more than
# STRETCH_GROWTH and a step make it longer.
HELD_RATIO = 2.5
STRETCH_STEP = 1.25  # stretches are asked for in steps of this
# A stretch that is outgrown grows by so much more than needed: on a busy machine jitter goes on
# growing, and each step would ask for another solve before the one under way has ended.
STRETCH_GROWTH = 1.5
MODEL_MARGIN = 1.05  # model seconds are up to 3 % off, and a pace is learned on top
LATE_AGAIN_S = 3600.0  # a try runs late until it is measured
AGAIN_DWELLS = 20.0  # dwell times until a granularity that was left is tried again


@dataclass(frozen=True, slots=True)
class GranularityChoice:
    """A granularity in use: one clock per GPU, or changes. `why` says why it is not changes where
    they are allowed.

    `left_s` is when changes were left for lack of evidence. Where they came late and left no room
    within the deadline, they are left until `late_until_s`.
    """

    granularity: Granularity = "gpu"
    limits: ChangeLimits = TWO_CHANGES
    why: str = ""
    left_s: float = -math.inf
    late_until_s: float = -math.inf

    @property
    def name(self) -> str:
        """As on page and command line: `changes` means two."""
        count = self.limits.per_iteration
        if self.granularity == "changes" and count != TWO_CHANGES.per_iteration:
            return f"changes:{count}"
        return self.granularity

    @property
    def timed(self) -> bool:
        """Whether clocks change within an iteration."""
        return self.granularity != "gpu"


def timing_of(job: JobState, gpus: Mapping[str, GpuView]) -> IterationTiming | str:
    """The worst timing of the job's GPUs, or the reason why there is none."""
    found: list[IterationTiming] = []
    uuids = [uuid for stage in job.placement.stages for uuid in stage]
    for uuid in uuids:
        one = gpus[uuid].timing if uuid in gpus else None
        if one is not None and one.starts_per_minute > 0.0 and _sound(one):
            found.append(one)
    if not uuids or len(found) < len(uuids):
        return f"iteration starts are known of {len(found)} of {len(uuids)} GPUs"
    worst = max(found, key=lambda one: one.start_jitter_s)
    return IterationTiming(
        job=job.policy.name,
        uuid=worst.uuid,
        source=", ".join(sorted({one.source for one in found})),
        iteration_time_s=worst.iteration_time_s,
        start_jitter_s=worst.start_jitter_s,
        starts_per_minute=min(one.starts_per_minute for one in found),
        missed_ratio=max(one.missed_ratio for one in found),
        change_error_s=max(one.change_error_s for one in found),
    )


def shortest_s(job: JobState, gpus: Mapping[str, GpuView]) -> float:
    """The shortest stretch at one clock, in seconds: a change comes early or late by the spread of
    the set latency and the jitter of the starts, of the worst GPU. Infinite without known starts.
    """
    timing = timing_of(job, gpus)
    if isinstance(timing, str):
        return math.inf
    return max(STRETCH_S_MIN, STRETCHES_MIN * (_spread_s(job, gpus) + timing.start_jitter_s))


def choose_granularity(
    job: JobState, view: View, held: GranularityChoice, dwell_s: float
) -> GranularityChoice:
    """The granularity of this pass; `held` is that of the last one."""
    clocks = job.policy.clocks
    if clocks.granularity == "gpu":
        return replace(held, granularity="gpu", limits=TWO_CHANGES, why="")
    again_s = held.left_s + AGAIN_DWELLS * dwell_s - view.now_s
    late_again_s = held.late_until_s - view.now_s
    why = _hindrance(job, view, held, clocks.changes)
    if not why and late_again_s > 0.0:
        why = f"its clocks were late, tried again in {math.ceil(late_again_s)} s"
    if not why and not held.timed and again_s > 0.0:
        why = f"left before, tried again in {math.ceil(again_s)} s"
    if not why:
        limits = _limits(job, view.gpus, held, clocks.changes)
        return replace(held, granularity="changes", limits=limits, why="")
    left_s = view.now_s if held.timed else held.left_s
    return replace(
        held, granularity="gpu", limits=TWO_CHANGES, why=f"not changes: {why}", left_s=left_s
    )


def _hindrance(job: JobState, view: View, held: GranularityChoice, count: int) -> str:
    """Why no changes at times from the start of the iteration are possible."""
    timing = timing_of(job, view.gpus)
    if isinstance(timing, str):
        return timing
    for address, node in _agents(job, view):
        if node is None or node.timed_steps_max < count:
            return f"agent {address} cannot time {count} changes"
    missed_max = MISSED_RATIO_HELD if held.timed else MISSED_RATIO_MAX
    if timing.missed_ratio > missed_max:
        return f"{timing.missed_ratio:.0%} of iteration starts missed (at most {missed_max:.0%})"
    stretch_s = shortest_s(job, view.gpus)
    baseline = job.measured.baseline
    iteration_s = baseline.time_mean_s if baseline else timing.iteration_time_s
    if STRETCHES_MIN * stretch_s > iteration_s:  # two changes make two stretches
        return (
            f"spread of the set latency ({_spread_s(job, view.gpus) * 1e3:.0f} ms) and jitter of "
            f"iteration starts ({timing.start_jitter_s * 1e3:.0f} ms) ask for {stretch_s:.2g} s at "
            f"one clock, and an iteration takes {iteration_s:.2g} s"
        )
    return ""


def _limits(
    job: JobState, gpus: Mapping[str, GpuView], held: GranularityChoice, count: int
) -> ChangeLimits:
    """The limits in model seconds; those held, or computed while one clock per GPU is held, as long
    as they are enough, and not far too much.
    """
    needed_s, held_s = MODEL_MARGIN * shortest_s(job, gpus), held.limits.min_dwell_s
    same = held_s > 0.0 and held.limits.per_iteration == count
    if same and needed_s <= held_s <= HELD_RATIO * needed_s:
        return held.limits
    if same and held_s < needed_s:
        needed_s *= STRETCH_GROWTH
    least_s = MODEL_MARGIN * STRETCH_S_MIN
    steps = math.ceil(math.log(needed_s / least_s, STRETCH_STEP) - 1e-9)
    return ChangeLimits(count, min_dwell_s=least_s * STRETCH_STEP**steps)


def _spread_s(job: JobState, gpus: Mapping[str, GpuView]) -> float:
    shown = (gpus[uuid].description for uuid in job.placement.uuids)
    return max(
        (one.set_latency_spread_s or one.set_latency_p95_s or SPREAD_UNKNOWN_S for one in shown),
        default=SPREAD_UNKNOWN_S,
    )


def _agents(job: JobState, view: View) -> list[tuple[str, NodeView | None]]:
    """The agents of the job's GPUs, by address."""
    addresses = {view.gpus[uuid].address for uuid in job.placement.uuids}
    return [(address, view.node_at.get(address)) for address in sorted(addresses)]


def _sound(one: IterationTiming) -> bool:
    figures = (one.start_jitter_s, one.missed_ratio, one.starts_per_minute, one.change_error_s)
    return all(math.isfinite(figure) and figure >= 0.0 for figure in figures)


def stretches_s(offsets_s: tuple[float, ...], iteration_s: float) -> tuple[float, ...]:
    """How long each clock lasts that begins at these offsets of a cyclic schedule."""
    if not offsets_s:
        return ()
    return tuple(b - a for a, b in pairwise((*offsets_s, offsets_s[0] + iteration_s)))


def timed_steps(
    problem: Problem, plan: Solution, *, own_s: float, iteration_s: float, shortest_s: float
) -> tuple[Steps, ...]:
    """The clock changes of each stage, ascending, at measured times; empty for one that keeps one
    clock. Where an iteration takes longer than the model says, nothing says at which operation, so
    a lower clock begins late and a higher one early.

    `own_s` is the real time of the plan's own work, `iteration_s` that of an iteration, waiting
    included. Where the cautious times leave a clock for less than `shortest_s`, all are scaled
    alike.
    """
    ratio = own_s / plan.iteration_time_s
    cyclic: list[list[tuple[float, int]]] = [[] for _ in problem.graph.order]
    for change in changes_of(problem, plan):
        cyclic[change.stage].append((change.offset_s, change.clock_mhz))
    found: list[Steps] = []
    for steps in cyclic:
        if len(steps) > 1 and steps[0][1] == steps[-1][1]:
            del steps[0]  # the clock that the iteration before ended with
        if len(steps) < 2:
            found.append(())
            continue
        cautious = _scaled(steps, slower=max(ratio, 1.0), faster=min(ratio, 1.0))
        keeps = min(stretches_s(tuple(one.offset_s for one in cautious), iteration_s)) >= shortest_s
        found.append(cautious if keeps else _scaled(steps, slower=ratio, faster=ratio))
    return tuple(found)


def _scaled(steps: list[tuple[float, int]], *, slower: float, faster: float) -> Steps:
    """With the offsets of lower clocks times `slower`, of higher ones times `faster`."""
    before = [steps[-1], *steps[:-1]]
    return tuple(
        TimedStep(offset_s * (slower if mhz < earlier_mhz else faster), mhz)
        for (_, earlier_mhz), (offset_s, mhz) in zip(before, steps, strict=True)
    )
