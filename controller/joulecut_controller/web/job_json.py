"""One job as JSON: target, current windows, plan, hold-out windows, and the reasons.

Measured and predicted values never share a key: windows are measured, plans and frontiers
predicted, and every ratio sits under the word that says which it is.
"""

from collections.abc import Iterable
from dataclasses import replace

from joulecut_controller import answer as a
from joulecut_controller.answer import INTERVAL, Answer, Json, Key, listed, maybe, number, one_of
from joulecut_controller.board import JobBoard
from joulecut_controller.cluster.job_faults import job_faults
from joulecut_controller.cluster.state import (
    State,
    next_step,
    predicted_saved_ratio,
    rate_source,
    state_of,
)
from joulecut_controller.cluster.worth import job_worth, worth_json
from joulecut_controller.orders import HoldKind
from joulecut_controller.plan.record import MODE, PLAN
from joulecut_controller.policy.policy import Mode, Policy
from joulecut_controller.view import JobState, View
from joulecut_controller.web.gpu_json import OF_JOB

_BY_STRENGTH: tuple[Mode, ...] = ("off", "recommend", "enforce")


def strongest_mode(jobs: Iterable[JobBoard]) -> Mode:
    """The strongest mode of any job."""
    return max((job.mode for job in jobs), key=_BY_STRENGTH.index, default="off")


# Why a job is not controlled (empty name: all jobs), and what ends that.
HOLD = Answer(
    "Hold",
    job=a.TEXT,
    kind=one_of("HoldKind", HoldKind),
    reason=a.TEXT,
    by=a.TEXT,
    since_unix_s=a.NUMBER,
    until_unix_s=a.NUMBER,
    sentence=a.TEXT,
)
WINDOW = Answer(
    "Window",
    iterations=a.COUNT,
    iteration_time_s=a.NUMBER.at("time_mean_s"),
    iteration_time_sd_s=a.NUMBER.at("time_sd_s"),
    energy_j=a.NUMBER,
    power_w=a.NUMBER,
)
# Reports that could not be used, and what is allowed instead.
FAULT = Answer(node=a.TEXT, source=a.TEXT, text=a.TEXT, count=a.COUNT, age_s=a.NUMBER)
# The kind of work now, with the operations of one GPU in an iteration (empty where none are
# reported), the seconds of iterations by kind, and how much the work of an iteration varies.
PHASE = Answer(
    kind=Key({"enum": ["train", "evaluate"]}).at("phase.kind"),
    operations=a.TEXT.at("phase.shape"),
    seconds_by_kind=a.NUMBERS.at(lambda shown: dict(shown.phases_s)),
    work_sd_ratio=a.NUMBER.at(lambda shown: shown.baseline and shown.baseline.work_sd_ratio),
)
# Why no plan is made or held now; `action` is what happens to the plan before.
VETO = Answer(
    kind=a.TEXT,
    action=Key({"enum": ["suspend", "release"]}).at(
        lambda veto: "release" if veto.releases else "suspend"
    ),
    text=a.TEXT,
)
# How well the agents know when iterations begin; of the worst GPU.
TIMING = Answer(
    source=a.TEXT,
    iteration_time_s=a.NUMBER,
    start_jitter_s=a.NUMBER,
    starts_per_minute=a.NUMBER,
    missed_ratio=a.NUMBER,
    change_error_s=a.NUMBER.at(lambda timing: timing.change_error_s or None),
)
# Whether enforcing is advisable; errors are of predictions at the clocks that run.
ADVISABLE = Answer(
    yes=a.FLAG,
    text=a.TEXT,
    scores=a.COUNT,
    error_time_ratio=a.NUMBER.at("time_error"),
    error_energy_ratio=a.NUMBER.at("energy_error"),
)
SLO = Answer(
    given_as=a.TEXT,
    statistic=a.TEXT.at(lambda _: "mean"),  # until 0.3.0
    max_slowdown_ratio=a.NUMBER.at("max_slowdown"),
    max_iteration_time_s=a.NUMBER,
    least_cost=a.FLAG,  # the slowdown follows from the site's prices, at most the bound
    bound_ratio=a.NUMBER.at("bound"),
    deadline_s=a.NUMBER.given,
)
PIPELINE = Answer(
    schedule=a.TEXT,
    stages=a.COUNT,
    microbatches=a.COUNT,
    tensor_parallel=a.COUNT,
    context_parallel=a.COUNT,
    expert_parallel=a.COUNT,
    data_parallel=a.COUNT,
    sync=a.TEXT,
)
DELAY = Answer(
    pipeline=a.CLOCK.at(lambda _: None),  # until 0.3.0
    stage=a.COUNT,
    gpus=listed(a.TEXT).at("places"),
    cause=a.TEXT,
    delay_ratio=a.NUMBER,
    factor=a.NUMBER,
    text=a.TEXT,
)
# Short default windows: share of time, age of the baseline, the open one; and the share of all
# default windows by who asked for them.
BASELINE_LOOK = Answer(
    share_ratio=a.NUMBER.at("short_share"),
    age_s=a.NUMBER,
    text=a.TEXT,
    share_ratio_by_asker=a.NUMBERS.at("shares"),
)
# The current window, the next one, and the outcomes so far.
HOLDOUT = Answer(
    share_ratio=a.NUMBER.at("share"),
    window_s=a.NUMBER,
    text=a.TEXT,
    held_out=a.FLAG,
    measuring=a.WORD,
    next_unix_s=a.NUMBER,
    windows=listed(
        Key(
            a.OBJECT.schema,
            lambda window: dict(zip(("arm", "outcome", "count"), window, strict=True)),
        )
    ).at("outcomes"),
)
# The saving in the windows of the last week, with 95 % intervals.
SAVING = Answer(
    saved_ratio=maybe(INTERVAL),
    slowdown_ratio=maybe(INTERVAL),
    predicted_saved_ratio=a.NUMBER,
    cooler_celsius=a.NUMBER.at(lambda _: None),  # until 0.3.0
    point_in_s=a.NUMBER,
    holdouts=a.COUNT,
    windows_default=a.COUNT,
    windows_plan=a.COUNT,
    days=a.NUMBER,
    reason=a.TEXT,
)


# Against default clocks, since the controller began; null until measured. Joules are of the share
# of the time under plans that default windows stand beside, and so are those that plans promised.
MEASURED = Answer(
    saved_j=a.NUMBER.at("account.measured_j"),
    promised_j=a.NUMBER.at("account.promised_j"),
    saved_known_ratio=a.NUMBER.at("account.known_ratio"),
    saved_ratio=a.NUMBER,
    slowdown_ratio=a.NUMBER,
    slowdown=maybe(INTERVAL),  # against default clocks at equal work
)
PREDICTED = Answer(
    saved_j=a.NUMBER.at("account.predicted_j"),  # of all time under plans
    error_time_ratio=a.NUMBER.at("predict_error_time_ratio"),
    error_power_ratio=a.NUMBER.at("predict_error_power_ratio"),
)


def _learning(job: JobBoard) -> Json:
    learnt = job.learnt
    return {"text": learnt.text, "drifting": list(learnt.drifting), "refused": dict(job.refused)}


_CLOCKS = Answer(
    uuid=a.TEXT, stage=a.COUNT, clock_recommended_mhz=a.CLOCK, verb=a.WORD, reason=a.TEXT
)
# The state, and what stands between the job and enforcement.
STATE = Answer(
    state=one_of("JobState", State).at(state_of),
    next_step=a.TEXT.at(next_step),
    rate_source=a.WORD.at(rate_source),
    predicted_saved_ratio=a.NUMBER.at(predicted_saved_ratio),
)


def _profile(job: JobBoard) -> str | None:
    """None where the job began without one."""
    profile = job.view.policy.profile
    return None if profile is None or profile.predicted else profile.source


JOB = Answer(
    "Job",
    name=a.TEXT.at("view.policy.name"),
    mode=MODE,
    found=a.FLAG.at("view.policy.found"),  # no line of the policy names it
    sentence=a.TEXT,
    complaint=a.TEXT.at("view.placement.complaint"),
    holds=listed(HOLD),
    breaker_trips=a.COUNT.at("trips"),
    slo=SLO.key.given,
    granularity=a.TEXT,
    granularity_asked=a.TEXT.at("view.policy.clocks.granularity"),
    granularity_why=a.TEXT.at("choice.why"),
    timing=maybe(TIMING),
    clock_min_mhz=a.COUNT.at("view.policy.clocks.min_mhz"),
    min_dwell_s=a.NUMBER.at("view.policy.clocks.min_dwell_s"),
    pipeline=Key(maybe(a.OBJECT).schema, maybe(PIPELINE).make, "view.policy.pipeline"),
    profile=a.WORD.at(_profile),
    evidence=Answer(level=a.TEXT, text=a.TEXT).key.given,
    hindrance=a.TEXT.at("view.hindrance"),  # why no command could be sent now
    phase=PHASE.key.at("view.measured"),
    vetoes=listed(VETO),
    report_age_s=a.NUMBER.at("view.placement.report_age_s"),
    report_faults=listed(FAULT).given,
    delay=maybe(DELAY),
    peer_iteration_time_s=a.NUMBER.at("view.measured.peer_iteration_time_s"),
    generation_running=a.COUNT.at("view.generation_running"),
    baseline=maybe(WINDOW).at("view.measured.baseline"),
    foreign_lock=a.TEXT.at("view.measured.external_lock"),  # why no baseline is measured
    baseline_look=maybe(BASELINE_LOOK).at("default_time"),
    current=maybe(WINDOW).at("view.measured.current"),
    measured=MEASURED.key.here,
    predicted=PREDICTED.key.here,
    bloat_w=Key(a.NUMBERS.schema),  # predicted; of the clocks that run
    frontier=listed(Answer(iteration_time_s=a.NUMBER, energy_j=a.NUMBER, lower_bound_j=a.NUMBER)),
    decision=maybe(PLAN),
    applied=maybe(PLAN),
    **STATE.keys,
    gpus=listed(_CLOCKS).given,
    money=maybe(a.OBJECT).given,  # worth of the plan, break-even, least cost
    learning=a.OBJECT.at(_learning),
    advisable=maybe(ADVISABLE),
    holdout=maybe(HOLDOUT),
    saving=maybe(SAVING).at(lambda job: job.holdout and job.holdout.saving),
)


def job_json(job: JobBoard, view: View, *, gpus: bool = True, policy: Policy | None = None) -> Json:
    """One job, without the operations of its plan."""
    faults = listed(FAULT).make
    assert faults is not None
    return JOB.json(
        job,
        slo=_slo_json(job.view),
        evidence=evidence(job.view),
        report_faults=faults(job_faults(job.view, view)),
        gpus=_clocks_json(job, view) if gpus else [],
        money=worth_json(job_worth(job, policy)),
    )


def evidence(shown: JobState) -> Json:
    """Level of the job's reports, which bounds what can be done for it."""
    if shown.measured.operations_reported:
        return {"level": "L1", "text": "reports its iterations and the time of its operations"}
    if number(shown.placement.report_age_s) is not None:
        return {"level": "L1", "text": "reports its iterations"}
    return {"level": "L0", "text": "no reports, so no clock is changed"}


def _slo_json(job: JobState) -> Json:
    """`deadline_s` bounds the mean iteration time, also for a target on P95: the values shown
    beside it are means.
    """
    slo, deadline_s = job.policy.slo, job.deadline_s
    if job.policy.is_order:
        slo, deadline_s = replace(slo, given_as="none", max_slowdown=None), None
    return SLO.json(slo, deadline_s=number(deadline_s or slo.max_iteration_time_s))


def _clocks_json(job: JobBoard, view: View) -> list[Json]:
    """Recommended against applied, GPU by GPU, in the order of the stages."""
    actions = {action.uuid: action for action in job.decision.actions} if job.decision else {}
    rows = []
    for stage, uuids in enumerate(job.view.placement.stages):
        for uuid in uuids:
            action, gpu = actions.get(uuid), view.gpus.get(uuid)
            row = {
                "uuid": uuid,
                "stage": stage,
                "clock_recommended_mhz": action.clock_mhz if action else None,
                "verb": action.verb if action else None,
                "clock_lowest_recommended_mhz": action.lowest_mhz if action else None,
                "reason": action.reason if action else "",
            }
            rows.append(row | (OF_JOB.json(gpu) if gpu else dict.fromkeys(OF_JOB.keys)))
    return rows
