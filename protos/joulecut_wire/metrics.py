"""Names, labels and help texts of all metrics, shared by agent, controller, dashboards and tests.

Base units, prefix `joulecut_`. The identity label of a GPU series is `uuid` only: names
come from `_info` series, so a series keeps its identity when the job changes. A training job is the
label `workload`; `job` is Prometheus' own label for the scrape.
"""

from dataclasses import dataclass
from typing import Literal

PREFIX = "joulecut_"


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported metric: kind, labels and help text.

    `name` is the name in queries without the prefix (counters end in `_total`).
    """

    name: str
    kind: Literal["counter", "gauge", "histogram", "info"]
    labels: tuple[str, ...]
    help: str

    @property
    def full_name(self) -> str:
        return PREFIX + self.name


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name, "gauge", labels, text)


def _counter(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name, "counter", labels, text)


def _declared() -> tuple[Metric, ...]:
    """The metrics above the call, in their order."""
    return tuple(one for one in globals().values() if isinstance(one, Metric))


# fmt: off
# -- agent ---------------------------------------------------------------------------------
GPU_ENERGY = _counter("gpu_energy_joules_total", ("uuid",), "Board energy from the device's own counter, since driver load.")
GPU_ENERGY_INTEGRATED = _counter("gpu_energy_integrated_joules_total", ("uuid",), "Integral of a GPU's power since the agent began, in place of a counter that counts the whole module; only for such GPUs.")
GPU_POWER = _gauge("gpu_power_watts", ("uuid", "kind"), "Power draw: kind average (the driver's window) or instant.")
GPU_POWER_LIMIT = _gauge("gpu_power_limit_watts", ("uuid", "kind"), "Power limits: kind enforced, default, min, max, requested (by Joulecut), or kept (by Joulecut, outlives its lease).")
GPU_CLOCK = _gauge("gpu_clock_hertz", ("uuid", "domain"), "Clock the device shows now: domain sm or memory.")
GPU_CLOCK_LIMIT = _gauge("gpu_clock_limit_hertz", ("uuid", "bound"), "Clock range that Joulecut set; absent for a GPU without a lock.")
GPU_CLOCK_EVENT = _gauge("gpu_clock_event_active", ("uuid", "reason"), "1 while the device names this reason for its clock.")
GPU_STUCK = _gauge("gpu_stuck_locked", ("uuid",), "1 while a GPU without a lease could not be restored and keeps its setting.")
GPU_RESET_UNREAD = _gauge("gpu_reset_unread", ("uuid",), "1 while no reading has shown the default clock of a GPU since clocks of ours were reset on it: an idle GPU shows none.")
GPU_POWER_PROFILE = _gauge("gpu_power_profile_active", ("uuid", "profile"), "1 while the device enforces this workload power profile, which another program requested.")
GPU_UTILIZATION = _gauge("gpu_utilization_ratio", ("uuid", "engine"), "Share of time an engine was busy: engine gpu or memory.")
GPU_TEMPERATURE = _gauge("gpu_temperature_celsius", ("uuid", "sensor"), "Temperature by sensor.")
GPU_MEMORY_USED = _gauge("gpu_memory_used_bytes", ("uuid",), "Device memory in use.")
GPU_INFO = Metric("gpu_info", "info", ("uuid", "node", "index", "model", "controllable", "reason", "energy_scope"), "Node, index and model of a GPU, whether it can be controlled here, and what its energy counter counts: gpu, module, other or unknown.")
GPU_ALLOCATION_INFO = Metric("gpu_allocation_info", "info", ("uuid", "workload", "namespace", "pod", "source"), "Owner of a GPU, one series per GPU; workload is shared for several owners, source is none without an owner.")
JOB_ENERGY = _counter("job_energy_joules_total", ("workload",), "Energy of a job's GPUs on this node while it was their only owner, from their counters.")
JOB_ENERGY_ESTIMATED = _counter("job_energy_estimated_joules_total", ("workload",), "Energy of GPUs while several jobs shared them: equal shares of the counter, an estimate.")
GPU_IDLE_ENERGY = _counter("gpu_idle_energy_joules_total", ("uuid",), "Board energy without a known job; with both job energies it adds up to the boards.")
JOB_ENERGY_INTEGRATED = _counter("job_energy_integrated_joules_total", ("workload",), "As job_energy_joules_total, for GPUs whose power is integrated; several owners get equal shares.")
GPU_IDLE_ENERGY_INTEGRATED = _counter("gpu_idle_energy_integrated_joules_total", ("uuid",), "Integrated energy without a known job; with job_energy_integrated_joules_total it adds up to gpu_energy_integrated_joules_total.")
DRIVER_UNRESPONSIVE = _gauge("driver_unresponsive", ("uuid",), "1 while driver calls for a GPU hang and it is not controlled; uuid is empty for the whole driver.")
CONFIG_KEYS_IGNORED = _counter("config_keys_ignored_total", (), "Configuration keys unknown to this version; the log names them.")
CONTROL_COMMANDS = _counter("control_commands_total", ("op", "result"), "GPU settings by operation (apply, renew, clear) and result.")
CONTROL_LEASE_EXPIRES = _gauge("control_lease_expires_timestamp_seconds", ("uuid",), "Unix time at which a GPU's lease ends; absent without a lease.")
CONTROL_KEPT_LIMIT_ENDS = _gauge("control_power_limit_ends_timestamp_seconds", ("uuid",), "Unix time at which a power limit that outlived its lease is undone; absent without one, and under a lease.")
CONTROL_DRIFT = _counter("control_drift_total", ("uuid", "cause"), "Times a device did not show its setting, by cause.")
CONTROL_RESTORES = _counter("control_restores_total", ("uuid", "cause"), "Times a GPU was restored to its default, by cause.")
CONTROL_STEPS = _counter("control_steps_total", ("result",), "Steps of clock schedules: accepted, refused, or rested because marks or starts stopped.")
CONTROL_STOPPED = _gauge("control_stopped", (), "1 while this node refuses commands: stop file, or release window.")
AGENT_RELEASED = _gauge("agent_released", (), "1 inside a release window: every device handle is closed, nothing is read.")
ACCESS_DENIED = _counter("access_denied_total", ("role",), "Calls refused because the caller lacks this role.")
REQUESTS_MALFORMED = _counter("requests_malformed_total", ("call",), "Malformed gRPC requests; nothing was changed.")
AUDIT_LOST = _counter("audit_lines_lost_total", (), "Lines of the audit log that could not be written; the commands were executed.")
GPU_DRIFT = _gauge("gpu_drift_active", ("uuid", "cause"), "1 while a GPU does not show its setting, or its lease ended for that reason.")
GPU_STANDS_BACK = _gauge("gpu_stands_back_seconds", ("uuid",), "Time left in which commands are refused, because another program sets this GPU.")
GPU_SLOW = _gauge("gpu_slow_active", ("uuid", "reason"), "1 while a busy GPU is slower than its setting for another reason.")
GPU_INTENT_INFO = Metric("gpu_intent_info", "info", ("uuid", "workload"), "1 for a GPU under a lease: it is slow on purpose.")
GPU_INTENT_SLOWDOWN = _gauge("gpu_intent_slowdown_max_ratio", ("uuid",), "No kernel on a GPU under a lease is slowed by more; absent without a lease, and under a power limit.")
GPU_SET_LATENCY = _gauge("gpu_set_latency_p95_seconds", ("uuid",), "Time from a command to the new clock, measured, 95th percentile; absent until measured.")
GPU_SET_LATENCY_SPREAD = _gauge("gpu_set_latency_spread_seconds", ("uuid",), "Time between the fastest and the slowest clock changes (5th and 95th percentile), measured; absent until measured.")
GPU_ITERATION_TIME = _gauge("gpu_iteration_time_seconds", ("uuid", "source"), "Time between the last starts of iterations, median, by their source; absent once they stop.")
GPU_STARTS = _gauge("gpu_iteration_starts_per_minute", ("uuid",), "Starts of iterations seen.")
GPU_START_JITTER = _gauge("gpu_iteration_start_jitter_seconds", ("uuid",), "Distance between predicted and seen starts of iterations, 95th percentile.")
GPU_STARTS_MISSED = _gauge("gpu_iteration_starts_missed_ratio", ("uuid",), "Share of the predicted starts of iterations that were not seen.")
GPU_CHANGE_ERROR = _gauge("gpu_clock_change_error_seconds", ("uuid",), "Distance between the wanted and the seen time of timed clock changes, 95th percentile; absent until measured.")
GPU_XID_ERRORS = _counter("gpu_xid_errors_total", ("uuid", "xid"), "XID errors, which the driver's log has too, since the agent started; absent before the first.")
GPU_XID_LAST = _gauge("gpu_xid_last_timestamp_seconds", ("uuid", "xid"), "Unix time at which the agent last saw this XID error, within 10 s.")
GPU_ECC_ERRORS = _counter("gpu_ecc_errors_total", ("uuid", "type", "scope"), "ECC errors: type corrected or uncorrected, scope volatile (since driver load) or aggregate (life of the card). Absent without ECC.")
GPU_NVLINK_BYTES = _counter("gpu_nvlink_bytes_total", ("uuid", "direction"), "Data over all NVLinks of a GPU since driver load: direction tx or rx. Absent without NVLink.")
GPU_NVLINK_ERRORS = _counter("gpu_nvlink_errors_total", ("uuid", "kind"), "Errors of all NVLinks of a GPU since driver load: kind crc_flit, crc_data, replay or recovery. Absent where the card does not count them.")
NVML_CALL_DURATION = Metric("nvml_call_duration_seconds", "histogram", ("call",), "Duration of device calls.")
NVML_ERRORS = _counter("nvml_errors_total", ("code",), "Failed device calls by error code.")
REPORTS = _counter("job_reports_total", ("result",), "Job reports by result: accepted, refused, dropped (malformed), or shed (more than a node takes).")
REPORTS_REFUSED = _counter("job_reports_refused_total", ("reason",), "Refused job datagrams: unknown_gpu, mark, not_owner, unverified (the sender is invisible), taken, crowded.")
JOB_RANKS = _gauge("job_ranks", ("workload", "state"), "Ranks of a reporting job on this node: running (GPUs that its processes compute on, as far as known), or heard (GPUs that it reports for).")
GPU_OWNERS = _gauge("gpu_owners", ("uuid",), "Number of owners of a shared GPU; absent for one or none.")
GPU_UNREAD = _gauge("gpu_unread", ("index",), "1 for a GPU that the driver counts and cannot open, by its index; it is not read, and has no other series.")
COLLECT_SUCCESS = _gauge("collect_success", (), "1 if the last sampling tick read every GPU that the driver counts.")
COLLECT_TIMESTAMP = _gauge("collect_timestamp_seconds", (), "Unix time of the last sampling tick.")
KEEPER_UP = _gauge("keeper_up", (), "1 while the keeper answers; absent without a configured keeper.")
KEEPER_VERSION_MISMATCH = _gauge("keeper_version_mismatch", (), "Whether the keeper that runs speaks another version than its agent: both must be restarted.")
CERTIFICATE_EXPIRES = _gauge("certificate_expires_timestamp_seconds", ("use",), "Unix time at which the certificate in use ends: use grpc (between controller and agents) or http (metrics and page). Absent without TLS.")
BUILD_INFO = Metric("build_info", "info", ("role", "version"), "Version of this process.")
AGENT: tuple[Metric, ...] = _declared()

# -- controller ----------------------------------------------------------------------------
JOB_ITERATION_TIME = _gauge("job_iteration_time_seconds", ("workload", "kind"), "Iteration time: kind measured, predicted or baseline.")
JOB_POWER = _gauge("job_power_watts", ("workload", "kind"), "Power of all GPUs of a job: kind measured, predicted or baseline.")
JOB_ENERGY_BLOAT = _gauge("job_energy_bloat_watts", ("workload", "kind"), "Power above the frontier at the clocks that run, by kind: intrinsic, extrinsic, or variability (of GPUs faster than the slowest of their stage). What a plan removed counts as saved. Predicted, not measured.")
JOB_ENERGY_SAVED = _counter("job_energy_saved_joules_total", ("workload", "basis"), "Energy saved against default clocks: basis predicted, of all time under plans, or measured: iterations under plans times what hold-outs say one saves; measured is absent before the first interval.")
JOB_ENERGY_SAVED_RATIO = _gauge("job_energy_saved_ratio", ("workload", "bound"), "Share of energy saved against default clocks, measured in hold-out windows of the last week. Bound mid, or low and high of its 95 % interval. Absent until enough windows were measured.")
JOB_DELAY = _gauge("job_delay_ratio", ("workload", "part", "cause"), "Part of the time of its operations by which a GPU is slower than the other replicas of its stage, at default clocks: cause compute or throttle. Absent below 5 %.")
JOB_BASELINE_AGE = _gauge("job_baseline_age_seconds", ("workload",), "Time since default clocks of an enforced job were measured: before its plan or in a default window.")
JOB_BASELINE_LOOK = _gauge("job_baseline_look_ratio", ("workload",), "Share of time that short default windows took of an enforced job, since the controller leads.")
JOB_DEFAULT_RATIO = _gauge("job_default_ratio", ("workload", "asked_by"), "Share of time that default windows took of an enforced job, since the controller leads, by who asked: holdout, shift, breaker, plan or age.")
JOB_PHASE_SECONDS = _counter("job_phase_seconds_total", ("workload", "phase"), "Time of iterations by kind of phase: train or evaluate, since the controller leads.")
JOB_HOLDOUT_ACTIVE = _gauge("job_holdout_active", ("workload",), "1 while a job runs at default clocks for a hold-out window.")
JOB_HOLDOUT_WINDOWS = _counter("job_holdout_windows_total", ("workload", "arm", "outcome"), "Measured windows by arm (default or plan) and outcome: kept, or the reason it was dropped.")
JOB_REPORT_AGE = _gauge("job_report_age_seconds", ("workload",), "Age of a job's newest report; +Inf without any.")
JOB_SLOWDOWN = _gauge("job_slowdown_ratio", ("workload",), "Measured iteration time over that in the default windows beside it, minus 1; over the baseline until they are compared.")
JOB_SLO_MARGIN = _gauge("job_slo_margin_ratio", ("workload",), "Slack before the deadline, as a share of it: of the mean iteration time. Negative when missed.")
JOB_SOLVER_WAIT = _gauge("job_solver_wait_seconds", ("workload",), "How long a job has waited for the solver's answer to its next plan; 0 while it waits for none.")
PLAN_GENERATION = _gauge("plan_generation", ("workload", "state"), "Number of the job's newest plan, by its state: enforced, recommended (no command is sent) or refused (by the guard).")
PLAN_GAP = _gauge("plan_gap_ratio", ("workload", "state"), "Energy of the plan over its lower bound, minus 1.")
PLAN_SAVED = _gauge("plan_saved_ratio", ("workload", "state", "bound"), "Share of energy that the newest plan saves against default clocks, predicted. Bound mid, or low and high of its 90 % band where it has one. Absent where it changes no clock.")
JOB_WORTH = _gauge("job_worth_per_gpu_hour", ("workload", "basis", "currency"), "What a job's plan saves in an hour of a GPU, less the time that it costs, at the prices of the policy. Basis measured (of hold-outs), else predicted. Absent without these prices.")
PLAN_CLOCK = _gauge("plan_clock_hertz", ("workload", "uuid", "state"), "Clock of a GPU in the newest plan, by the plan's state.")
PLAN_SECONDS = Metric("plan_seconds", "histogram", (), "Time to make one plan.")
PREDICT_ERROR = _gauge("predict_error_ratio", ("workload", "target"), "Mean absolute relative error of predictions: target time or power.")
SHADOW_ERROR = _gauge("shadow_error_ratio", ("workload", "target"), "Error of a recommendation's predictions at the clocks that run: target time or energy (of power).")
JOB_ADVISABLE = _gauge("job_enforcement_advisable", ("workload",), "1 if nothing that is measured speaks against enforcing the recommendation; joulecut status has the reason if not.")
PRIOR_ERROR = _gauge("fleet_prior_error_ratio", ("predictor", "quantity"), "Deprecated, without series, removed in 0.3.0. Errors of predictions before jobs were probed.")
PREDICT_REFUSED = _counter("predict_refused_total", ("workload", "reason"), "Samples refused, or learnt under another label, by reason.")
PREDICT_DRIFT = _gauge("predict_drift_gpus", ("workload",), "GPUs of a job whose operations take another time than before, until default clocks are measured.")
POWER_BUDGET = _gauge("power_budget_watts", (), "Limit on the power of all GPUs together, from the policy; absent without a limit.")
POWER_BUDGET_EXPECTED = _gauge("power_budget_expected_watts", (), "Mean power under the budget, hosts included: predicted of plans and corrected by measurements; power limits of all else.")
POWER_BUDGET_LIMITS = _gauge("power_budget_limits_watts", (), "Highest sum of the power limits that outlive leases and may be in force on all GPUs, hosts included; absent without a budget.")
POWER_BUDGET_BEST_EFFORT = _gauge("power_budget_best_effort", (), "1 while power limits do not keep the budget for certain, 0 while they do; absent where none are set.")
CONTROLLER_MODE = _gauge("controller_mode", ("workload", "mode"), "1 for the mode a job is in: off, recommend or enforce.")
JOB_HOLD_INFO = Metric("job_hold_info", "info", ("workload", "reason"), "1 while a job is held: reason pause or restore (by an operator), or breaker; absent otherwise.")
BREAKER_TRIPS = _gauge("job_breaker_trips", ("workload",), "Trips of a job's breaker in the last day; three end control until an operator resumes the job.")
CONTROLLER_LEADER = _gauge("controller_leader", (), "1 while this controller leads.")
CONTROLLER_EPOCH = _gauge("controller_epoch", (), "Number of this controller's leadership term.")
CONTROLLER_OTHERS = _gauge("controller_others_agents", (), "Agents that another controller, which has a store of its own, watches or has commanded.")
CONTROLLER_DRIFTS = _counter("controller_drifts_total", (), "Jobs returned to default clocks because a GPU showed something else than was commanded: a lost lease, another lock, a higher clock. Since the controller leads.")
RECONCILE_PASSES = _counter("reconcile_passes_total", ("result",), "Boards by what the steps since the last one did: unchanged, changed, or failed (a step of some job, or of the cluster).")
RECONCILE_SECONDS = Metric("reconcile_seconds", "histogram", (), "Duration of one step: of a job, or of the cluster.")
LOOP_LAG_SECONDS = Metric("loop_lag_seconds", "histogram", (), "How late the controller's event loop runs what is due.")
RECONCILE_LAST_SUCCESS = _gauge("reconcile_last_success_timestamp_seconds", (), "Unix time of the last successful step of the cluster.")
RECONCILE_AGENTS = _gauge("reconcile_agents", ("state",), "Agents by state: connected or lost.")
RECONCILE_DISTRUSTED = _gauge("reconcile_distrusted_agents", ("cause",), "Agents that are not believed: quarantine (of an agent), or conflict (about GPUs that another agent owns).")
# fmt: on
CONTROLLER: tuple[Metric, ...] = (*_declared()[len(AGENT) :], CERTIFICATE_EXPIRES, BUILD_INFO)
