"""The solver's question: a profile and a pipeline become a `Problem`.

Options that can never pay are dropped here, once per distinct (stage, kind), so that the
solver sees 20-30 options instead of a whole sweep.
"""

import math
from collections.abc import Mapping, Sequence

from joulecut_engine.graph import Graph, build
from joulecut_engine.graph.clock_option import ANY_CLOCK_MHZ, ClockOption
from joulecut_engine.graph.pipeline import SENDS, Kind, Pipeline, Profile
from joulecut_engine.graph.shape import kinds_of, part_of
from joulecut_engine.optimize.problem import Problem

Options = tuple[ClockOption, ...]


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
    graph = build(pipeline)
    by_part = profile.stages > pipeline.stages
    menus = [
        profile.options[
            part_of(pipeline, o.stage, o.chunk) if by_part and _of_a_part(o.kind) else o.stage,
            o.kind,
        ]
        for o in graph.operations
    ]
    return priced(graph, menus, blocking_power_w, overhead_power_w)


def priced(
    graph: Graph,
    menus: Sequence[Options],
    blocking_power_w: float | Sequence[float],
    overhead_power_w: float = 0.0,
) -> Problem:
    """The question for any graph; `menus[i]` are the measured options of operation i.

    What has no clock of its own (ANY_CLOCK_MHZ) is offered at every clock of its stage, at
    the same cost, so that one clock per GPU stays possible. A send runs beside what its GPU
    does: its energy is on top of that, so the blocking power that the sum of energies takes
    off for its time is put back. Raises ValueError for powers as `problem` does.
    """
    stages = len(graph.order)
    powers = (
        (float(blocking_power_w),) * stages
        if isinstance(blocking_power_w, int | float)
        else tuple(map(float, blocking_power_w))
    )
    if len(powers) != stages:
        raise ValueError(f"{len(powers)} blocking powers for {stages} stages")
    if not all(0.0 <= power < float("inf") for power in (*powers, overhead_power_w)):
        raise ValueError("powers are finite and not negative")
    clocks_mhz: list[set[int]] = [set() for _ in powers]
    shown = {(o.stage, id(menu)): menu for o, menu in zip(graph.operations, menus, strict=True)}
    for (stage, _), menu in shown.items():
        clocks_mhz[stage].update(option.clock_mhz for option in menu)
    shared: dict[Options, Options] = {}
    made: dict[tuple[int, int, bool], tuple[Options, Options]] = {}
    kept, swept = [], []
    for operation, menu in zip(graph.operations, menus, strict=True):
        key = (id(menu), operation.stage, operation.kind in SENDS)
        if key not in made:
            power_w = powers[operation.stage]
            options = _on_top(menu, power_w) if operation.kind in SENDS else menu
            worth = worthwhile(options, power_w)
            options = _at_every_clock(options, clocks_mhz[operation.stage])
            made[key] = shared.setdefault(worth, worth), shared.setdefault(options, options)
        kept.append(made[key][0])
        swept.append(made[key][1])
    return Problem(
        graph=graph,
        options=tuple(kept),
        blocking_power_w=powers,
        overhead_power_w=float(overhead_power_w),
        measured=tuple(swept),
    )


def mismatch(pipeline: Pipeline, profile: Profile) -> str:
    """Why this profile cannot price this pipeline; empty where it can."""
    parts = pipeline.stages * pipeline.chunks
    if profile.stages not in (pipeline.stages, parts):
        by_part = f" of {pipeline.chunks} chunks" if pipeline.chunks > 1 else ""
        return f"profile has {profile.stages} stages, pipeline has {pipeline.stages}{by_part}"
    for kind in kinds_of(pipeline):
        rows = profile.stages if _of_a_part(kind) else pipeline.stages
        for stage in range(rows):
            if not profile.options.get((stage, kind)):
                return f"profile has no {kind} of stage {stage}"
    return ""


def completed(profile: Profile, kinds: Sequence[Kind], weight_share: float | None) -> Profile:
    """A profile with the kinds that follow from measured ones.

    A whole backward is an input and a weight gradient at the same clock, one after the
    other. The other way a share has to be stated: `weight_share` is the part of a backward's
    time and energy that goes into weights. What neither gives stays missing.
    """
    options = dict(profile.options)
    for stage in range(profile.stages):
        whole = options.get((stage, "backward"))
        halves = options.get((stage, "input")), options.get((stage, "weight"))
        if "backward" in kinds and whole is None and halves[0] and halves[1]:
            options[stage, "backward"] = _one_after_the_other(halves[0], halves[1])
        if whole is None or weight_share is None:
            continue
        for kind, share in (("input", 1.0 - weight_share), ("weight", weight_share)):
            split: Kind = "input" if kind == "input" else "weight"
            if split in kinds and halves == (None, None):
                options[stage, split] = tuple(
                    ClockOption(o.clock_mhz, o.time_s * share, o.energy_j * share) for o in whole
                )
    present = {key: menu for key, menu in options.items() if menu}
    return Profile(present, profile.source)


def lockstep(members: Sequence[Profile], blocking_power_w: float) -> Profile:
    """One profile for the GPUs of a tensor-parallel group, which share clock and time.

    At every clock that all were measured at: the time of the slowest, and per GPU the mean
    energy, where those that are done early wait at the blocking power. Raises ValueError
    where members have different kinds or share no clock.
    """
    if len(members) == 1:
        return members[0]
    every = {key for member in members for key in member.options}
    for stage, kind in sorted(every):
        if not all((stage, kind) in member.options for member in members):
            raise ValueError(f"only some tell {kind} of stage {stage}")
    options: dict[tuple[int, Kind], Options] = {}
    for key in members[0].options:
        menus = [member.options[key] for member in members]
        at: list[Mapping[int, ClockOption]] = [{o.clock_mhz: o for o in menu} for menu in menus]
        common = sorted(set(at[0]).intersection(*at[1:]))
        if not common:
            raise ValueError(f"no common clock of {key[1]} of stage {key[0]}")
        options[key] = tuple(
            _slowest([one[clock] for one in at], blocking_power_w) for clock in common
        )
    return Profile(options, ", ".join(member.source for member in members))


def worthwhile(options: Options, blocking_power_w: float) -> Options:
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


def _of_a_part(kind: Kind) -> bool:
    """Whether a profile by parts of the model has rows of it for each part."""
    return kind not in ("collective", "optimizer", *SENDS)


def _on_top(menu: Options, power_w: float) -> Options:
    return tuple(ClockOption(o.clock_mhz, o.time_s, o.energy_j + power_w * o.time_s) for o in menu)


def _at_every_clock(options: Options, clocks_mhz: set[int]) -> Options:
    if any(option.clock_mhz != ANY_CLOCK_MHZ for option in options):
        return options
    chosen = sorted(clocks_mhz - {ANY_CLOCK_MHZ}) or [ANY_CLOCK_MHZ]
    return tuple(ClockOption(mhz, o.time_s, o.energy_j) for mhz in chosen for o in options)


def _one_after_the_other(first: Options, second: Options) -> Options:
    at = {option.clock_mhz: option for option in second}
    return tuple(
        ClockOption(o.clock_mhz, o.time_s + then.time_s, o.energy_j + then.energy_j)
        for o in first
        if (then := at.get(o.clock_mhz)) is not None
    )


def _slowest(options: Sequence[ClockOption], blocking_power_w: float) -> ClockOption:
    time_s = max(option.time_s for option in options)
    energy_j = math.fsum(o.energy_j + blocking_power_w * (time_s - o.time_s) for o in options)
    return ClockOption(options[0].clock_mhz, time_s, energy_j / len(options))
