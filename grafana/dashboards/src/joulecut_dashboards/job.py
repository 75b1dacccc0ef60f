"""The dashboard of one job: pace, position on the frontier, clocks and evidence."""

from joulecut_dashboards.panels import Choice, Dashboard, Panel, Query, Row, above, below, stat

JOB = Choice("job", "Job", "joulecut_controller_mode", "job", "Jobs of the controller's policy.")
OF_JOB = 'job=~"$job"'
OWN_GPUS = f"and on (uuid) joulecut_plan_clock_hertz{{{OF_JOB}}}"

_NOW = Row(
    "Now",
    (
        stat(
            "Mode",
            "off, recommend (nothing is sent) or enforce.",
            "none",
            f"joulecut_controller_mode{{{OF_JOB}}} == 1",
            legend="{{mode}}",
            show_name=True,
        ),
        stat(
            "Slowdown",
            "Measured iteration time over the baseline at default clocks, minus 1.",
            "percentunit",
            f"joulecut_job_slowdown_ratio{{{OF_JOB}}}",
            legend="{{job}}",
        ),
        stat(
            "SLO margin",
            "Slack before the deadline, of the mean iteration time or of its P95, as the policy"
            " says; negative when missed.",
            "percentunit",
            f"joulecut_job_slo_margin_ratio{{{OF_JOB}}}",
            legend="{{job}}",
            thresholds=below(-0.001, -0.005),
        ),
        stat(
            "Plan",
            "Number of the current plan.",
            "none",
            f"joulecut_plan_generation{{{OF_JOB}}}",
            legend="{{job}}",
        ),
        stat(
            "Plan above its bound",
            "Energy of the plan over its lower bound at this granularity, minus 1.",
            "percentunit",
            f"joulecut_plan_gap_ratio{{{OF_JOB}}}",
            legend="{{job}}",
            thresholds=above(0.02, 0.05),
        ),
        stat(
            "Saved",
            "Measured against default clocks, over the time shown.",
            "joule",
            "increase(joulecut_job_energy_saved_joules_total"
            f'{{{OF_JOB}, basis="measured"}}[$__range])',
            legend="{{job}}",
        ),
    ),
)

_PACE = Row(
    "Pace",
    (
        Panel(
            "Iteration time",
            "Measured now, as predicted for the plan, and at default clocks.",
            "s",
            (Query(f"joulecut_job_iteration_time_seconds{{{OF_JOB}}}", "{{job}} {{kind}}"),),
        ),
        Panel(
            "Slowdown and SLO margin",
            "While the job waits for a straggler, both show its pace.",
            "percentunit",
            (
                Query(f"joulecut_job_slowdown_ratio{{{OF_JOB}}}", "{{job}} slowdown"),
                Query(f"joulecut_job_slo_margin_ratio{{{OF_JOB}}}", "{{job}} margin"),
            ),
        ),
    ),
)

_FRONTIER = Row(
    "Frontier",
    (
        Panel(
            "Position on the frontier",
            "Time and energy of an iteration at default clocks, predicted for the plan, and"
            " measured now.",
            "short",
            (
                Query(f"joulecut_job_iteration_time_seconds{{{OF_JOB}}}"),
                Query(f"joulecut_job_power_watts{{{OF_JOB}}}"),
                Query(
                    f"joulecut_job_power_watts{{{OF_JOB}}}"
                    f" * on (job, kind) joulecut_job_iteration_time_seconds{{{OF_JOB}}}"
                ),
            ),
            kind="table",
            width=8,
            by=("job", "kind"),
            columns=(("Iteration", "s"), ("Power", "watt"), ("Energy", "joule")),
        ),
        Panel(
            "Energy per iteration",
            "Power times iteration time: measured, predicted, and at default clocks.",
            "joule",
            (
                Query(
                    f"joulecut_job_power_watts{{{OF_JOB}}}"
                    f" * on (job, kind) joulecut_job_iteration_time_seconds{{{OF_JOB}}}",
                    "{{job}} {{kind}}",
                ),
            ),
            width=8,
        ),
        Panel(
            "Bloat",
            "Power above the frontier at the current clocks. Intrinsic: at the job's iteration"
            " time. Extrinsic: by running faster than a straggler. Predicted, not measured.",
            "watt",
            (Query(f"joulecut_job_energy_bloat_watts{{{OF_JOB}}}", "{{job}} {{kind}}"),),
            width=8,
            stacked=True,
        ),
    ),
)

_CONTROL = Row(
    "Control",
    (
        stat(
            "Held",
            "Why the controller does not control the job: pause, restore, or the breaker.",
            "none",
            f"max by (job, reason) (joulecut_job_hold_info{{{OF_JOB}}})",
            width=6,
            legend="{{job}} {{reason}}",
            show_name=True,
            quiet_because="only a paused or restored job, or one with a tripped breaker, is held",
            thresholds=above(1, 2),
        ),
        stat(
            "Breaker trips",
            "In the last day; three end control until an operator resumes the job.",
            "none",
            f"max by (job) (joulecut_job_breaker_trips{{{OF_JOB}}})",
            width=6,
            legend="{{job}}",
            quiet_because="absent until a job runs under our clocks",
            thresholds=above(1, 3),
        ),
        stat(
            "Enforcing is advisable",
            "1 if recommendations were accurate; `joulecut status` has the reason if not.",
            "none",
            f"max by (job) (joulecut_job_enforcement_advisable{{{OF_JOB}}})",
            width=6,
            legend="{{job}}",
            quiet_because="only jobs with a profile are scored",
        ),
        stat(
            "In a hold-out window",
            "1 while the job runs at default clocks so that its saving can be measured.",
            "none",
            f"max by (job) (joulecut_job_holdout_active{{{OF_JOB}}})",
            width=6,
            legend="{{job}}",
            quiet_because="only jobs with verify.holdout have windows",
        ),
    ),
)

_CLOCKS = Row(
    "Clocks",
    (
        Panel(
            "Planned",
            "Clock of each GPU in the plan; recommended or applied, see the mode.",
            "hertz",
            (Query(f"joulecut_plan_clock_hertz{{{OF_JOB}}}", "{{uuid}}"),),
            width=8,
        ),
        Panel(
            "Set",
            "Highest clock of a lease; absent for a GPU without a lock.",
            "hertz",
            (
                Query(
                    f'joulecut_gpu_clock_limit_hertz{{bound="max"}} {OWN_GPUS}',
                    "{{uuid}}",
                ),
            ),
            width=8,
        ),
        Panel(
            "Seen",
            "Clock that the devices show.",
            "hertz",
            (Query(f'joulecut_gpu_clock_hertz{{domain="sm"}} {OWN_GPUS}', "{{uuid}}"),),
            width=8,
        ),
        Panel(
            "Plan number",
            "A step is a new plan; numbers come from one controller-wide counter.",
            "none",
            (Query(f"joulecut_plan_generation{{{OF_JOB}}}", "{{job}}"),),
        ),
        Panel(
            "Leases end in",
            "Time left of each lease; the controller renews it, and at zero the GPU is restored.",
            "s",
            (
                Query(
                    "joulecut_control_lease_expires_timestamp_seconds"
                    f" - timestamp(joulecut_control_lease_expires_timestamp_seconds) {OWN_GPUS}",
                    "{{uuid}}",
                ),
            ),
        ),
    ),
)

_EVIDENCE = Row(
    "Evidence",
    (
        Panel(
            "Power",
            "All GPUs of the job: measured, predicted, and at default clocks.",
            "watt",
            (Query(f"joulecut_job_power_watts{{{OF_JOB}}}", "{{job}} {{kind}}"),),
            width=8,
        ),
        Panel(
            "Prediction error",
            "Mean absolute relative error; above 3 % in time the job gets no plans.",
            "percentunit",
            (Query(f"joulecut_predict_error_ratio{{{OF_JOB}}}", "{{job}} {{target}}"),),
            width=8,
        ),
        Panel(
            "GPUs",
            "GPUs of the job, and the source of this information.",
            "short",
            (Query(f"joulecut_gpu_allocation_info{{{OF_JOB}}}"),),
            kind="table",
            width=8,
            by=("uuid", "instance", "source"),
            columns=(("", "none"),),
        ),
    ),
)

DASHBOARD = Dashboard(
    "joulecut-job",
    "Joulecut / Job",
    "One job: pace, frontier, clocks and evidence.",
    (_NOW, _CONTROL, _PACE, _FRONTIER, _CLOCKS, _EVIDENCE),
    choices=(JOB,),
)
