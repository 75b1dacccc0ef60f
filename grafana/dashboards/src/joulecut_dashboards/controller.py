"""The dashboard of Joulecut's own health: controller, agents, keepers, drivers."""

from joulecut_dashboards.panels import Dashboard, Panel, Query, Row, above, below, stat

_NOW = Row(
    "Now",
    (
        stat(
            "Leaders",
            "Number of leaders: always one.",
            "none",
            "sum(joulecut_controller_leader)",
            thresholds=(("red", None), ("green", 1), ("red", 2)),
        ),
        stat("Term", "Epoch of the newest leader.", "none", "max(joulecut_controller_epoch)"),
        stat(
            "Last good pass",
            "Its age. A pass is due every interval_s (5 s unless configured).",
            "s",
            "time() - max(joulecut_reconcile_last_success_timestamp_seconds)",
            thresholds=above(60, 300),
        ),
        stat(
            "Agents",
            "Agents that the controller can reach.",
            "none",
            'sum(joulecut_reconcile_agents{state="connected"})',
        ),
        stat(
            "Keepers",
            "Share of the configured keepers that answer.",
            "percentunit",
            "avg(joulecut_keeper_up)",
            thresholds=below(1, 0.99),
        ),
        stat(
            "Nodes read whole",
            "Share of agents that read every GPU at their last tick.",
            "percentunit",
            "avg(joulecut_collect_success)",
            thresholds=below(1, 0.99),
        ),
    ),
)

_PASSES = Row(
    "Passes and plans",
    (
        Panel(
            "Passes",
            "Reconcile passes per second by result; a failed one changes nothing.",
            "reqps",
            (
                Query(
                    "sum by (result) (rate(joulecut_reconcile_passes_total[$__rate_interval]))",
                    "{{result}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Duration of a pass",
            "Median and 99th percentile.",
            "s",
            tuple(
                Query(
                    f"histogram_quantile({share}, sum by (le)"
                    " (rate(joulecut_reconcile_seconds_bucket[$__rate_interval])))",
                    name,
                )
                for share, name in ((0.5, "half"), (0.99, "99 %"))
            ),
        ),
        stat(
            "Plans made",
            "Over the time shown; none without a change.",
            "none",
            "sum(increase(joulecut_plan_seconds_count[$__range]))",
            width=6,
        ),
        stat(
            "Time to make a plan",
            "Mean since the controller's start.",
            "s",
            "sum(joulecut_plan_seconds_sum) / sum(joulecut_plan_seconds_count)",
            width=6,
        ),
        stat(
            "Commands refused",
            "By agents, over the time shown. A refusal changes nothing on a GPU.",
            "none",
            'sum(increase(joulecut_control_commands_total{result="refused"}[$__range]))',
            width=6,
            thresholds=above(1, 10),
        ),
        stat(
            "Reports lost",
            "Job datagrams dropped or refused, over the time shown.",
            "none",
            'sum(increase(joulecut_job_reports_total{result=~"dropped|refused"}[$__range]))',
            width=6,
            thresholds=above(1, 100),
        ),
    ),
)

_AGENTS = Row(
    "Agents",
    (
        Panel(
            "Agents by state",
            "Connected or lost, from the controller.",
            "none",
            (Query("sum by (state) (joulecut_reconcile_agents)", "{{state}}"),),
            width=8,
            stacked=True,
        ),
        Panel(
            "Commands",
            "GPU settings per second by operation and result. In recommend mode there are none.",
            "reqps",
            (
                Query(
                    "sum by (op, result) (rate(joulecut_control_commands_total[$__rate_interval]))",
                    "{{op}} {{result}}",
                ),
            ),
            width=8,
        ),
        Panel(
            "Job reports",
            "Datagrams per second by result.",
            "reqps",
            (
                Query(
                    "sum by (result) (rate(joulecut_job_reports_total[$__rate_interval]))",
                    "{{result}}",
                ),
            ),
            width=8,
        ),
        Panel(
            "Duration of device calls",
            "99 % of calls are quicker than this. A driver in trouble shows here first.",
            "s",
            (
                Query(
                    "histogram_quantile(0.99, sum by (instance, le)"
                    " (rate(joulecut_nvml_call_duration_seconds_bucket[$__rate_interval])))",
                    "{{instance}}",
                ),
            ),
            width=8,
        ),
        Panel(
            "Failed device calls",
            "Per second, by the driver's error code.",
            "reqps",
            (
                Query(
                    "sum by (instance, code) (rate(joulecut_nvml_errors_total[$__rate_interval]))",
                    "{{instance}} {{code}}",
                    quiet_because="no device call fails on a healthy cluster",
                ),
            ),
            width=8,
        ),
        Panel(
            "Versions",
            "Number of processes by version.",
            "none",
            (Query("count by (role, version) (joulecut_build_info)"),),
            kind="table",
            width=8,
            by=("role", "version"),
            columns=(("Processes", "none"),),
        ),
    ),
)

_TRUST = Row(
    "Predictions and restores",
    (
        Panel(
            "Prediction error",
            "Mean absolute relative error by job and target.",
            "percentunit",
            (Query("joulecut_predict_error_ratio", "{{job}} {{target}}"),),
        ),
        Panel(
            "Restores",
            "GPUs restored to default per second, by cause. lease_expired: not renewed.",
            "reqps",
            (
                Query(
                    "sum by (cause) (rate(joulecut_control_restores_total[$__rate_interval]))",
                    "{{cause}}",
                    quiet_because="nothing was restored yet",
                ),
            ),
        ),
    ),
)

DASHBOARD = Dashboard(
    "joulecut-controller",
    "Joulecut / Controller health",
    "Leader, passes, agents, keepers and drivers.",
    (_NOW, _PASSES, _AGENTS, _TRUST),
)
