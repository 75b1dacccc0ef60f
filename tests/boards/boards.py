"""Boards for tests of whatever shows one: made up, in the shape of a real run.

Nothing here was measured. Times and powers follow the physics of DESIGN (time shrinks with
the clock, power grows with clock and voltage) so that pictures look as they would in use.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from job_states import changed, job_state

from joulecut_controller.board import Board, JobBoard, Learnt
from joulecut_controller.plan.plan import Action, ClockReason, Forecast, FrontierPoint, Plan
from joulecut_controller.policy.policy import ClockPolicy, GpuRef, JobPolicy, Mode, Slo
from joulecut_controller.ports import Event
from joulecut_controller.trust.default_windows import Account, HoldoutsShown
from joulecut_controller.trust.interval import Interval
from joulecut_controller.trust.saving import Saving
from joulecut_controller.view import GpuView, NodeView, StageLoad, View, Window
from joulecut_engine.graph import build
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Kind, Pipeline, Profile
from joulecut_engine.optimize.clock_steps import ClockStep
from joulecut_engine.optimize.problem import Solution
from joulecut_wire.messages import GpuDescription, GpuSnapshot, Lease

NOON_UNIX_S = 1_767_268_800.0  # 2026-01-01 12:00:00 UTC
CLOCKS_MHZ = tuple(range(210, 1411, 15))
BLOCKING_W = 83.64
STAGES = 8
# The last stage carries the language-model head; stage 0 the embedding.
RELATIVE_WORK = (0.94, 0.97, 0.97, 0.97, 0.97, 0.97, 0.97, 1.08)
PLANNED_MHZ = (1200, 1230, 1245, 1245, 1245, 1260, 1260, 1410)


def _option(stage: int, kind: Kind, clock_mhz: int) -> ClockOption:
    fastest_s = (0.0180 if kind == "forward" else 0.0372) * RELATIVE_WORK[stage]
    time_s = fastest_s * (0.28 + 0.72 * 1410 / clock_mhz)
    ghz = clock_mhz / 1000.0
    volt = 1.0 + 0.9 * max(0.0, ghz - 1.05)
    return ClockOption(clock_mhz, time_s, time_s * (88.0 + 118.0 * ghz * volt * volt))


def profile() -> Profile:
    options: Mapping[tuple[int, Kind], tuple[ClockOption, ...]] = {
        (stage, kind): tuple(_option(stage, kind, clock) for clock in CLOCKS_MHZ if clock >= 900)
        for stage in range(STAGES)
        for kind in KINDS
    }
    return Profile(options, source="gpt3.csv")


def solution(pipeline: Pipeline, clocks_mhz: tuple[int, ...]) -> Solution:
    """What those clocks, one per stage, give: exact longest path, energy with waiting."""
    graph = build(pipeline)
    clocks = tuple(_option(o.stage, o.kind, clocks_mhz[o.stage]) for o in graph.operations)
    start = [0.0] * len(clocks)
    for before, after in graph.edges:
        start[after] = max(start[after], start[before] + clocks[before].time_s)
    total_s = max(begin + option.time_s for begin, option in zip(start, clocks, strict=True))
    busy_s = sum(option.time_s for option in clocks)
    energy_j = sum(o.energy_j for o in clocks) + BLOCKING_W * (pipeline.stages * total_s - busy_s)
    return Solution(
        granularity="gpu",
        clocks=clocks,
        start_s=tuple(start),
        iteration_time_s=total_s,
        energy_j=energy_j,
        lower_bound_j=energy_j * 0.978,
        bound_granularity="computation",
        solve_seconds=0.31,
    )


def frontier(fastest: Solution, saved_ratio: float = 0.215) -> tuple[FrontierPoint, ...]:
    """A curve of the usual shape: steep first, flat towards T_E."""
    points = []
    for step in range(50):
        slowdown = 0.26 * step / 49
        saved = 0.03 + (saved_ratio - 0.03) * (1.0 - math.exp(-slowdown / 0.011))
        energy_j = fastest.energy_j * (1.0 - saved)
        points.append(
            FrontierPoint(fastest.iteration_time_s * (1.0 + slowdown), energy_j, energy_j * 0.981)
        )
    return tuple(points)


def uuid(number: int) -> str:
    """As the simulator names its cards: two nodes of four."""
    return f"GPU-sim-node{1 + number // 4}-{number % 4}"


def gpu(number: int, clock_mhz: int | None, *, generation: int = 42, busy: bool = True) -> GpuView:
    """GPU `number` of two nodes of four; locked at `clock_mhz`, or at default for None."""
    seen = clock_mhz or 1410
    power_w = _option(number % STAGES, "backward", seen).power_w - 9.0 if busy else 58.0
    lease = (
        Lease("gpt3-175b", 7, generation, 0, clock_mhz, 11.4 - 0.25 * (number // 4))
        if clock_mhz
        else None
    )
    return GpuView(
        description=GpuDescription(
            uuid=uuid(number),
            index=number % 4,
            model="NVIDIA A100-SXM4-80GB",
            clocks_mhz=CLOCKS_MHZ,
            power_limit_default_w=400.0,
            controllable=True,
        ),
        address=f"127.0.0.1:{9431 + number // 4}",
        node=f"node{1 + number // 4}",
        snapshot=GpuSnapshot(
            uuid=uuid(number),
            power_average_w=round(power_w, 1),
            power_instant_w=round(power_w * 1.04, 1),
            clock_sm_mhz=seen,
            temperature_celsius=61.0,
            utilization_gpu_ratio=0.93 if busy else 0.0,
            power_limit_enforced_w=400.0,
            event_reasons=("applications_clocks_setting",) if clock_mhz else (),
            lease=lease,
        ),
        age_s=0.4 + 0.1 * (number // 4),
    )


def policy(mode: Mode, name: str = "gpt3-175b", microbatches: int = 48) -> JobPolicy:
    return JobPolicy(
        name=name,
        mode=mode,
        slo=Slo(max_slowdown=0.02),
        gpus=tuple(GpuRef(f"node{1 + n // 4}", n % 4) for n in range(STAGES)),
        clocks=ClockPolicy("gpu", min_mhz=900, min_dwell_s=10.0),
        pipeline=Pipeline("1f1b", STAGES, microbatches),
        profile=profile(),
        blocking_power_w=BLOCKING_W,
    )


def window(
    of: Solution, *, times: float = 1.0, joules: float = 1.0, iterations: int = 30
) -> Window:
    time_s, energy_j = of.iteration_time_s * times, of.energy_j * joules
    return Window(iterations, time_s, time_s * 0.0021, energy_j, energy_j / time_s)


def plan(of: Solution, fastest: Solution, mode: Mode, generation: int = 42) -> Plan:
    reasons = {
        1410: "on the critical path; 1395 MHz would be 2.1 ms late",
        1200: "waits 1.2 ms; 1185 MHz would take 1.5 J more",
    }
    return Plan(
        job="gpt3-175b",
        generation=generation,
        parent=generation - 1,
        mode=mode,
        granularity="gpu",
        actions=tuple(
            Action(
                uuid(stage),
                stage,
                "hold" if clock == 1410 else "lower",
                clock,
                reasons.get(clock, f"waits 2 ms; {clock} MHz is the policy's clocks.min_mhz"),
            )
            for stage, clock in enumerate(PLANNED_MHZ)
        ),
        reason="saves 14.9 % at +1.1 % time, inside max_slowdown 2 %",
        made_at_unix_s=NOON_UNIX_S - 94.0,
        deadline_s=fastest.iteration_time_s * 1.02,
        forecast=Forecast(
            iteration_time_s=of.iteration_time_s,
            energy_j=of.energy_j,
            baseline_time_s=fastest.iteration_time_s,
            baseline_energy_j=fastest.energy_j,
            lower_bound_j=of.lower_bound_j,
            gap_ratio=of.gap,
            saved_by_granularity=(("gpu", 0.149), ("computation", 0.171)),
            intrinsic_bloat_w=312.0,
            extrinsic_bloat_w=0.0,
            variability_bloat_w=41.0,
        ),
        solution=of,
        clock_reasons=(
            ClockReason(
                7,
                0.0,
                1410,
                0.0,
                ClockStep(1395, 0.0342, -11.0),
                None,
                "deadline",
                reasons[1410],
            ),
        ),
    )


def job(mode: Mode = "enforce", *, microbatches: int = 48) -> JobBoard:
    """The demo's job: in `recommend` nothing is applied, in `enforce` the plan is."""
    shape = policy(mode, microbatches=microbatches)
    assert shape.pipeline is not None
    fastest, planned = solution(shape.pipeline, (1410,) * 8), solution(shape.pipeline, PLANNED_MHZ)
    decision = plan(planned, fastest, mode)
    enforced = mode == "enforce"
    baseline = window(fastest, times=1.001, joules=1.004)
    current = window(planned, times=1.002, joules=1.006) if enforced else replace(baseline)
    told = job_state(
        policy=shape,
        stages=tuple((uuid(stage),) for stage in range(STAGES)),
        operations_reported=True,
        loads=tuple(
            StageLoad(uuid(s), s, PLANNED_MHZ[s] if enforced else 1410, {}, 200, 251.0)
            for s in range(STAGES)
        ),
        baseline=baseline,
        current=current,
        generation_running=decision.generation if enforced else 0,
        report_age_s=0.6,
        phases_s=(("evaluate", 240.0), ("train", 6400.0)),
    )
    return JobBoard(
        view=told,
        mode=mode,
        sentence=(
            "holds plan 42: 8 leases renewed"
            if enforced
            else "recommends plan 42 and sends nothing: mode is recommend"
        ),
        decision=decision,
        applied=decision if enforced else None,
        frontier=frontier(fastest),
        account=Account(1_498_200.0, 1_423_700.0, 1_440_000.0, 0.96) if enforced else Account(),
        predict_error_time_ratio=0.0031 if enforced else 0.031,
        predict_error_power_ratio=0.0088,
        learnt=Learnt(
            "predicted by physics x forest, from the profile and 3120 samples of the running job "
            "(time error 0.24 % before learning, the profile's 0.31 %); not learned as "
            "reported: 12 clock-not-reached",
            refused=(("clock-not-reached", 12),),
        ),
        holdout=holdout() if enforced else None,
    )


def holdout() -> HoldoutsShown:
    """Three days of windows, a few of them interrupted."""
    name, begun = "gpt3-175b", NOON_UNIX_S - 3.0 * 86_400.0
    return HoldoutsShown(
        share=0.05,
        window_s=300.0,
        text="next hold-out window at 12:41 UTC",
        held_out=False,
        measuring="plan",
        next_unix_s=NOON_UNIX_S + 2460.0,
        outcomes=(
            ("default", "clocks", 1),
            ("default", "kept", 38),
            ("plan", "kept", 221),
            ("plan", "stopped", 3),
        ),
        saving=Saving(
            job=name,
            shape="1f1b",
            gpus=STAGES,
            begun_unix_s=begun,
            ended_unix_s=NOON_UNIX_S,
            windows_default=38,
            windows_plan=221,
            holdouts=37,
            saved_ratio=Interval(0.1463, 0.1421, 0.1505),
            slowdown_ratio=Interval(0.0108, 0.0101, 0.0115),
            predicted_saved_ratio=0.149,
            predicted_slowdown_ratio=0.0111,
            point_in_s=0.0,
        ),
    )


EVENTS = (
    Event(NOON_UNIX_S - 2, "renew", "gpt3-175b", 42, "8 leases renewed for 15 s"),
    Event(NOON_UNIX_S - 88, "verify", "gpt3-175b", 42, "clocks took effect on 8 of 8 GPUs"),
    Event(NOON_UNIX_S - 93, "apply", "gpt3-175b", 42, "7 GPUs lowered, 1 held"),
    Event(
        NOON_UNIX_S - 94, "plan", "gpt3-175b", 42,
        "saves 14.9 % at +1.1 % time, inside max_slowdown 2 %", '{"generation": 42}',
    ),
    Event(NOON_UNIX_S - 180, "policy", "", 0, "policy.yaml is in force: 1 job"),
    Event(NOON_UNIX_S - 181, "lead", "", 0, "leads with epoch 7"),
)  # fmt: skip


def board(mode: Mode = "enforce", *, passes: int = 128, microbatches: int = 48) -> Board:
    """Two nodes of four A100, one job on all of them."""
    shown = job(mode, microbatches=microbatches)
    locked = PLANNED_MHZ if mode == "enforce" else (None,) * STAGES
    return Board(
        at_unix_s=NOON_UNIX_S,
        pass_number=passes,
        epoch=7,
        sentence=(
            "1 job: gpt3-175b holds plan 42; 8 leases renewed"
            if mode == "enforce"
            else "1 job: gpt3-175b is recommended plan 42; nothing sent"
        ),
        view=View(
            now_s=640.0,
            nodes=nodes(),
            gpus={uuid(n): gpu(n, locked[n]) for n in range(STAGES)},
            jobs=(shown.view,),
        ),
        jobs=(shown,),
        events=EVENTS,
        policy_source="/etc/joulecut/policy.yaml",
        policy_digest="9f2c51d0",
        interval_s=5.0,
    )


def nodes() -> tuple[NodeView, ...]:
    return tuple(
        NodeView(f"127.0.0.1:{9431 + n}", f"node{1 + n}", connected=True, epoch_seen=7,
                 ttl_max_s=60.0, agent_version="0.1.0")
        for n in range(2)
    )  # fmt: skip


def measuring() -> Board:
    """The job reports; its baseline is not there yet."""
    shown = job("recommend", microbatches=12)
    sentence = "measuring the baseline (12 of 30 iterations)"
    undecided = Plan(  # as the controller says "not yet": a plan without number and actions
        job="gpt3-175b",
        generation=0,
        parent=0,
        mode="recommend",
        granularity="gpu",
        actions=(),
        reason=sentence,
        made_at_unix_s=NOON_UNIX_S,
    )
    young = replace(
        shown,
        learnt=Learnt(),
        view=changed(shown.view, baseline=None, current=None),
        sentence=sentence,
        decision=undecided,
        frontier=(),
        predict_error_time_ratio=None,
        predict_error_power_ratio=None,
    )
    whole = board("recommend", microbatches=12)
    return replace(
        whole,
        sentence="1 job: gpt3-175b measures its baseline",
        jobs=(young,),
        view=replace(whole.view, jobs=(young.view,)),
        events=EVENTS[-2:],
    )


def empty() -> Board:
    """A controller that just began: a policy without jobs, no agent heard."""
    return Board(
        at_unix_s=NOON_UNIX_S,
        pass_number=1,
        epoch=1,
        sentence="no jobs in the policy; 0 of 1 agents connected",
        view=View(
            now_s=1.0,
            nodes=(NodeView("127.0.0.1:9431", "", connected=False, error="connection refused"),),
        ),
        jobs=(),
        events=(),
        policy_source="/etc/joulecut/policy.yaml",
        interval_s=5.0,
    )


def straggling() -> Board:
    """A sibling pipeline is slow; the plan waits for it, and one agent is lost meanwhile."""
    whole = board("enforce")
    [shown] = whole.jobs
    peer_s = shown.view.measured.current.time_mean_s * 1.12
    slow = replace(
        shown,
        view=changed(
            shown.view,
            peer_iteration_time_s=peer_s,
            current=replace(shown.view.measured.current, time_mean_s=peer_s, iterations=9),
        ),
        sentence="waits for a sibling pipeline: plan 43 uses its time",
    )
    dark = replace(gpu(6, 1260), snapshot=None, age_s=math.inf)
    gpus = {**whole.view.gpus, uuid(6): dark}
    lost = replace(whole.view.nodes[1], connected=False, error="no answer for 7 s")
    return replace(
        whole,
        jobs=(slow,),
        view=replace(whole.view, nodes=(whole.view.nodes[0], lost), gpus=gpus, jobs=(slow.view,)),
        policy_error="policy.yaml:12: jobs[0].slo.max_slowdown: -3%; allowed: 0% to 100%",
    )
