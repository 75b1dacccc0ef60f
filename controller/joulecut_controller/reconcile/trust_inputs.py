"""What trust sees of a job, and the book it writes to: the store and the audit log."""

from collections.abc import Sequence

from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.goal import dwell_s
from joulecut_controller.plan.plan import Plan
from joulecut_controller.plan.planner import vetoes
from joulecut_controller.plan.planning_input import PlanningInput
from joulecut_controller.plan.veto import first
from joulecut_controller.ports import Record, Store
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.savings.stored import read_windows
from joulecut_controller.trust.job_step import JobStep, PlanInForce
from joulecut_controller.trust.window import KEPT_S, TOPIC, MeasuredWindow, to_json
from joulecut_controller.view import Measured
from joulecut_wire.errors import JoulecutError

WINDOWS_MAX = 5_000  # of one job and week


def job_step(
    inputs: PlanningInput,
    observation: JobObservation,
    *,
    unix_s: float,
    applied: Plan | None,
    suspected: str,
) -> JobStep:
    """`applied` is the plan whose clocks are held."""
    measured = inputs.job.measured
    return JobStep(
        job=inputs.job,
        shape=observation.shape,
        now_s=inputs.view.now_s,
        unix_s=unix_s,
        gpus=inputs.view.gpus,
        chunk=observation.fresh.chunk,
        dwell_s=dwell_s(inputs),
        plan=_in_force(applied) if applied else None,
        lowered=any(inputs.running.values()),
        as_asked=inputs.measured_applied,
        enforced=inputs.mode == "enforce" and not inputs.vetoes,
        hindrance=_hindrance(inputs, measured),
        steered=bool(measured.external_lock) or inputs.allotted_s is not None,
        doubt=inputs.doubt,
        suspected=suspected,
    )


def _in_force(plan: Plan) -> PlanInForce:
    made = plan.forecast
    if made is None:
        return PlanInForce(plan.generation)
    return PlanInForce(
        plan.generation,
        time_s=made.iteration_time_s,
        energy_j=made.energy_j,
        default_time_s=made.baseline_time_s,
        default_energy_j=made.baseline_energy_j,
    )


def _hindrance(inputs: PlanningInput, measured: Measured) -> str:
    """Why no hold-out may begin and a running one ends; empty where there is no reason."""
    job = inputs.job
    if inputs.mode != "enforce":
        return job.reservation or f"mode is {inputs.mode}"
    veto = first(vetoes(inputs))
    if veto is not None:
        return veto.text
    return "waiting for a straggler" if measured.straggling else ""


class StoredBook:
    """Implements `trust.measured_windows.Book`. A failing store costs a window, not a pass."""

    def __init__(self, store: Store, audit: AuditLog) -> None:
        self._store, self._audit = store, audit

    def keep(self, window: MeasuredWindow) -> bool:
        try:
            made = Record(window.ended_unix_s, TOPIC, window.job, to_json(window))
            self._store.keep_record(made, kept_s=KEPT_S)
        except (JoulecutError, ValueError):
            return False
        return True

    def note(self, job: str, text: str, generation: int) -> bool:
        try:
            self._audit.note("verify", job, text, generation=generation)
        except JoulecutError:
            return False
        return True

    def windows(self, job: str, since_unix_s: float) -> Sequence[MeasuredWindow] | None:
        try:
            return read_windows(self._store, job, since_unix_s, WINDOWS_MAX)[0]
        except JoulecutError:
            return None
