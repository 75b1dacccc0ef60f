"""One job as JSON: target, current windows, plan, hold-out windows, and the reasons.

Measured and predicted values never share a key: windows are measured, plans and frontiers
predicted, and every ratio sits under the word that says which it is.
"""

from collections.abc import Iterable

from joulecut_controller.board import FrontierPoint, JobBoard
from joulecut_controller.cluster.bloat import bloat_w
from joulecut_controller.cluster.job_faults import JobFault, job_faults
from joulecut_controller.cluster.standing import standing
from joulecut_controller.learn.advice import Advice
from joulecut_controller.orders import Hold
from joulecut_controller.plan.record import plan_json
from joulecut_controller.plan.traces import Delay
from joulecut_controller.plan.veto import Veto
from joulecut_controller.policy.policy import JobPolicy, Mode
from joulecut_controller.trust.advisable import Verdict
from joulecut_controller.trust.default_windows import DefaultTime, HoldoutsShown
from joulecut_controller.trust.interval import Interval
from joulecut_controller.trust.saving import Saving
from joulecut_controller.view import GpuView, JobState, View, Window
from joulecut_controller.web.responses import Json, number
from joulecut_wire.messages import IterationTiming

_BY_STRENGTH: tuple[Mode, ...] = ("off", "recommend", "enforce")


def strongest_mode(jobs: Iterable[JobBoard]) -> Mode:
    """The strongest mode of any job."""
    return max((job.mode for job in jobs), key=_BY_STRENGTH.index, default="off")


def job_json(job: JobBoard, view: View, *, gpus: bool = True) -> Json:
    """One job, without the operations of its plan."""
    shown, policy = job.view, job.view.policy
    return {
        "name": policy.name,
        "mode": job.mode,
        "found": policy.found,  # no line of the policy names it
        "sentence": job.sentence,
        "complaint": shown.placement.complaint,
        "holds": [hold_json(hold) for hold in job.holds],
        "breaker_trips": job.trips,
        "slo": _slo_json(policy, shown.measured.baseline),
        "granularity": job.rung.name,
        "granularity_asked": job.granularity_asked,
        "granularity_why": job.rung.why,
        "timing": job.timing and _timing_json(job.timing),
        "clock_min_mhz": policy.clocks.min_mhz,
        "min_dwell_s": number(policy.clocks.min_dwell_s),
        "pipeline": pipeline_json(policy),
        "profile": policy.profile.source if policy.profile else None,
        "evidence": evidence(shown),
        "hindrance": shown.hindrance,  # why no command could be sent now
        "report_age_s": number(shown.placement.report_age_s),
        "report_faults": [_fault_json(fault) for fault in job_faults(shown, view)],
        "delay": job.delay and _delay_json(job.delay),
        "phase": _phase_json(shown),
        "vetoes": [_veto_json(veto) for veto in job.vetoes],
        "peer_iteration_time_s": number(shown.measured.peer_iteration_time_s),
        "generation_running": shown.generation_running,
        "baseline": _window_json(shown.measured.baseline),
        "foreign_lock": shown.measured.external_lock,  # why no baseline is measured
        "current": _window_json(shown.measured.current),
        "measured": _measured_json(job),
        "predicted": {
            "saved_j": number(job.saved_predicted_j),
            "error_time_ratio": number(job.predict_error_time_ratio),
            "error_power_ratio": number(job.predict_error_power_ratio),
        },
        "bloat_w": bloat_w(job),  # predicted; of the clocks that run
        "frontier": [_point_json(point) for point in job.frontier],
        "decision": job.decision and plan_json(job.decision),
        "applied": job.applied and plan_json(job.applied),
        "learning": {
            "text": job.learnt.text,
            "drifting": list(job.learnt.drifting),
            "refused": dict(job.refused),
        },
        "probing": job.probing and _probing_json(job.probing),
        "advisable": job.advisable and _advisable_json(job.advisable),
        "holdout": holdout_json(job.holdout),
        "baseline_look": job.default_time and _default_time_json(job.default_time),
        "saving": saving_json(job.holdout.saving if job.holdout else None),
        "gpus": _clocks_json(job, view) if gpus else [],
        **state_json(job),
    }


def state_json(job: JobBoard) -> Json:
    """The state, and what stands between the job and enforcement."""
    stands = standing(job)
    return {
        "state": stands.state,
        "next_step": stands.next_step,
        "rate_source": stands.rate_source or None,
        "predicted_saved_ratio": number(stands.predicted_saved_ratio),
    }


def hold_json(hold: Hold) -> Json:
    """Why a job is not controlled (empty name: all jobs), and what ends that."""
    return {
        "job": hold.job,
        "kind": hold.kind,
        "reason": hold.reason,
        "by": hold.by,
        "since_unix_s": number(hold.since_unix_s),
        "until_unix_s": number(hold.until_unix_s),
        "sentence": hold.sentence,
    }


def _phase_json(shown: JobState) -> Json:
    """The kind of work now, with the operations of one GPU in an iteration (empty where none are
    reported), and the seconds of iterations by kind.
    """
    return {
        "kind": shown.measured.phase.kind,
        "operations": shown.measured.phase.shape,
        "seconds_by_kind": {kind: number(seconds) for kind, seconds in shown.measured.phases_s},
    }


def _veto_json(veto: Veto) -> Json:
    """Why no plan is made or held now; `action` is what happens to the plan before."""
    return {
        "kind": veto.kind,
        "action": "release" if veto.releases else "suspend",
        "text": veto.text,
    }


def _fault_json(fault: JobFault) -> Json:
    """Reports that could not be used, and what is allowed instead."""
    return {
        "node": fault.node,
        "source": fault.source,
        "text": fault.text,
        "count": fault.count,
        "age_s": number(fault.age_s),
    }


def _timing_json(timing: IterationTiming) -> Json:
    """How well the agents know when iterations begin; of the worst GPU."""
    return {
        "source": timing.source,
        "iteration_time_s": number(timing.iteration_time_s),
        "start_jitter_s": number(timing.start_jitter_s),
        "starts_per_minute": number(timing.starts_per_minute),
        "missed_ratio": number(timing.missed_ratio),
        "change_error_s": number(timing.change_error_s or None),
    }


def _probing_json(advice: Advice) -> Json:
    """Online profiling of a job without a profile: measured settings, and the next one."""
    return {
        "verdict": advice.verdict,
        "reason": advice.reason,
        "settings_measured": advice.measurements,
        "lowest_measured_mhz": list(advice.lowest_mhz),
        "next_mhz": list(advice.clocks_mhz),
        "next_stage": advice.stage,
        "next_stages": list(advice.stages),
        "guessed_saved_ratio": number(advice.gain_ratio),
        "guessed_saved_doubt_ratio": number(advice.gain_doubt_ratio),
        "guessed_iteration_time_s": number(advice.time_s),
        "guessed_iteration_time_high_s": number(advice.time_high_s),
        "deadline_s": number(advice.deadline_s),
    }


def _advisable_json(verdict: Verdict) -> Json:
    """Whether enforcing is advisable; errors are of predictions at the clocks that run."""
    return {
        "yes": verdict.yes,
        "text": verdict.text,
        "scores": verdict.scores,
        "error_time_ratio": number(verdict.time_error),
        "error_energy_ratio": number(verdict.energy_error),
    }


def evidence(shown: JobState) -> Json:
    """Level of the job's reports, which bounds what can be done for it."""
    if any(load.samples for load in shown.measured.loads):
        return {"level": "L1", "text": "reports its iterations and the time of its operations"}
    if number(shown.placement.report_age_s) is not None:
        return {"level": "L1", "text": "reports its iterations"}
    return {"level": "L0", "text": "no reports, so no clock is changed"}


def _slo_json(policy: JobPolicy, baseline: Window | None) -> Json:
    """`deadline_s` bounds the mean iteration time, also for a target on P95: the values shown
    beside it are means.
    """
    slo, deadline_s = policy.slo, policy.slo.max_iteration_time_s
    if baseline is not None:
        deadline_s = slo.mean_deadline_s(baseline.time_mean_s, baseline.time_sd_s)
    return {
        "given_as": slo.given_as,
        "statistic": slo.statistic,
        "max_slowdown_ratio": number(slo.max_slowdown),
        "max_iteration_time_s": number(slo.max_iteration_time_s),
        "deadline_s": number(deadline_s),
    }


def pipeline_json(policy: JobPolicy) -> Json | None:
    pipeline = policy.pipeline
    if pipeline is None:
        return None
    return {
        "schedule": pipeline.schedule,
        "stages": pipeline.stages,
        "microbatches": pipeline.microbatches,
        "tensor_parallel": pipeline.tensor_parallel,
        "context_parallel": pipeline.context_parallel,
        "expert_parallel": pipeline.expert_parallel,
        "data_parallel": pipeline.data_parallel,
        "sync": pipeline.sync,
    }


def _window_json(window: Window | None) -> Json | None:
    if window is None:
        return None
    return {
        "iterations": window.iterations,
        "iteration_time_s": number(window.time_mean_s),
        "iteration_time_sd_s": number(window.time_sd_s),
        "energy_j": number(window.energy_j),
        "power_w": number(window.power_w),
    }


def _measured_json(job: JobBoard) -> Json:
    """Savings where they were paired, and now against default clocks; null until measured."""
    baseline, current, saved = job.view.measured.baseline, job.view.measured.current, None
    if baseline and current and baseline.energy_j and current.energy_j is not None:
        saved = 1.0 - current.energy_j / baseline.energy_j
    return {
        "saved_j": number(job.saved_measured_j),
        "saved_known_ratio": number(job.saved_known_ratio),  # of the time under plans
        "saved_ratio": number(saved),
        "slowdown_ratio": number(job.slowdown_ratio),
        "slowdown": interval_json(job.slowdown),  # against adjacent default windows
    }


def _point_json(point: FrontierPoint) -> Json:
    return {
        "iteration_time_s": number(point.iteration_time_s),
        "energy_j": number(point.energy_j),
        "lower_bound_j": number(point.lower_bound_j),
    }


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
            rows.append(row | _device_json(gpu))
    return rows


def _device_json(gpu: GpuView | None) -> Json:
    if gpu is None:
        return dict.fromkeys(
            ("node", "index", "clock_asked_mhz", "clock_seen_mhz", "clock_lowest_mhz",
             "clock_highest_mhz", "power_w", "power_limit_kept_w", "age_s")
        )  # fmt: skip
    seen, clocks = gpu.snapshot, gpu.description.clocks_mhz
    return {
        "node": gpu.node,
        "index": gpu.description.index,
        "clock_asked_mhz": (seen.lease.clock_max_mhz or None) if seen and seen.lease else None,
        "clock_seen_mhz": seen.clock_sm_mhz if seen else None,
        "clock_lowest_mhz": clocks[0] if clocks else None,
        "clock_highest_mhz": clocks[-1] if clocks else None,
        "power_w": number(seen.power_average_w) if seen else None,
        "power_limit_kept_w": (seen.power_limit_kept_w or None) if seen else None,
        "age_s": number(gpu.age_s),
    }


def _default_time_json(spent: DefaultTime) -> Json:
    """Short default windows: share of time, age of the baseline, the open one; and the share of all
    default windows by who asked for them.
    """
    return {
        "share_ratio": number(spent.short_share),
        "age_s": number(spent.age_s),
        "text": spent.text,
        "share_ratio_by_asker": {asker: number(share) for asker, share in spent.shares.items()},
    }


def holdout_json(holdout: HoldoutsShown | None) -> Json | None:
    """The current window, the next one, and the outcomes so far."""
    if holdout is None:
        return None
    return {
        "share_ratio": number(holdout.share),
        "window_s": number(holdout.window_s),
        "text": holdout.text,
        "held_out": holdout.held_out,
        "measuring": holdout.measuring or None,
        "next_unix_s": number(holdout.next_unix_s),
        "windows": [
            {"arm": arm, "outcome": outcome, "count": count}
            for arm, outcome, count in holdout.outcomes
        ],
    }


def saving_json(saving: Saving | None) -> Json | None:
    """The saving in the windows of the last week, with 95 % intervals."""
    if saving is None:
        return None
    return {
        "saved_ratio": interval_json(saving.saved_ratio),
        "slowdown_ratio": interval_json(saving.slowdown_ratio),
        "predicted_saved_ratio": number(saving.predicted_saved_ratio),
        "cooler_celsius": number(saving.cooler_celsius),
        "point_in_s": number(saving.point_in_s),
        "holdouts": saving.holdouts,
        "windows_default": saving.windows_default,
        "windows_plan": saving.windows_plan,
        "days": number(saving.days),
        "reason": saving.reason,
    }


def interval_json(interval: Interval | None) -> Json | None:
    """The estimate and the bounds of its 95 % interval."""
    if interval is None:
        return None
    return {
        "mid": number(interval.mid),
        "low": number(interval.low),
        "high": number(interval.high),
    }


def _delay_json(delay: Delay) -> Json:
    part = delay.part
    return {
        "pipeline": part.pipeline,
        "stage": part.stage,
        "gpus": list(delay.places),
        "cause": delay.cause,
        "delay_ratio": number(part.delay_ratio),
        "factor": number(part.factor),
        "text": delay.text,
    }
