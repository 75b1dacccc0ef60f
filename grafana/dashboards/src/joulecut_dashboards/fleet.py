"""The dashboard of the fleet: power, bloat, savings and firing alerts."""

from joulecut_dashboards.panels import Choice, Dashboard, Panel, Query, Row, above, stat

NODE = Choice(
    "instance",
    "Node",
    "joulecut_collect_success",
    "instance",
    "Agents by scrape address.",
)
ON_NODE = 'instance=~"$instance"'
GPU_POWER = f'joulecut_gpu_power_watts{{kind="average", {ON_NODE}}}'
SM_CLOCK = f'joulecut_gpu_clock_hertz{{domain="sm", {ON_NODE}}}'

_NOW = Row(
    "Now",
    (
        stat("Power", "Of all GPUs, by the driver's average.", "watt", f"sum({GPU_POWER})"),
        stat("GPUs", "Readable GPUs.", "none", f"count(joulecut_gpu_info{{{ON_NODE}}})"),
        stat(
            "Under a lease",
            "GPUs whose clocks a plan holds. None in recommend mode.",
            "none",
            f"count(joulecut_control_lease_expires_timestamp_seconds{{{ON_NODE}}}) or vector(0)",
        ),
        stat(
            "Saved now",
            "Measured against default clocks, over all jobs.",
            "watt",
            'sum(rate(joulecut_job_energy_saved_joules_total{basis="measured"}[$__rate_interval]))',
        ),
        stat(
            "Agents lost",
            "Agents that the controller cannot reach.",
            "none",
            'sum(joulecut_reconcile_agents{state="lost"})',
            thresholds=above(1, 2),
        ),
        stat(
            "Alerts",
            "Firing Joulecut alerts; the list is at the end of this dashboard.",
            "none",
            'count(ALERTS{alertname=~"Joulecut.+", alertstate="firing"}) or vector(0)',
            thresholds=above(1, 2),
        ),
    ),
)

_POWER = Row(
    "Power",
    (
        Panel(
            "Power by node",
            "Sum of the driver's averages of all readable GPUs.",
            "watt",
            (Query(f"sum by (instance) ({GPU_POWER})", "{{instance}}"),),
            stacked=True,
        ),
        Panel(
            "Power by job",
            "Measured over whole iterations, all GPUs of a job together.",
            "watt",
            (Query('joulecut_job_power_watts{kind="measured"}', "{{job}}"),),
            stacked=True,
        ),
        Panel(
            "Bloat",
            "Power above the frontier. Intrinsic: at the jobs' iteration time. Extrinsic:"
            " by running faster than a straggler. Predicted, not measured.",
            "watt",
            (Query("sum by (kind) (joulecut_job_energy_bloat_watts)", "{{kind}}"),),
            stacked=True,
        ),
        Panel(
            "Saved: measured and predicted",
            "Power saved against default clocks; two separate counters.",
            "watt",
            (
                Query(
                    "sum by (basis)"
                    " (rate(joulecut_job_energy_saved_joules_total[$__rate_interval]))",
                    "{{basis}}",
                ),
            ),
        ),
    ),
)

_GPUS = Row(
    "GPUs",
    (
        Panel(
            "SM clocks",
            "Lowest, middle and highest clock that the devices show.",
            "hertz",
            (
                Query(f"min({SM_CLOCK})", "lowest"),
                Query(f"quantile(0.5, {SM_CLOCK})", "middle"),
                Query(f"max({SM_CLOCK})", "highest"),
            ),
            width=8,
        ),
        Panel(
            "Busy",
            "Share of time in which a GPU was busy, mean over the GPUs of a node.",
            "percentunit",
            (
                Query(
                    "avg by (instance)"
                    f' (joulecut_gpu_utilization_ratio{{engine="gpu", {ON_NODE}}})',
                    "{{instance}}",
                ),
            ),
            width=8,
        ),
        Panel(
            "Hottest GPU",
            "Highest temperature on a node.",
            "celsius",
            (
                Query(
                    f"max by (instance) (joulecut_gpu_temperature_celsius{{{ON_NODE}}})",
                    "{{instance}}",
                ),
            ),
            width=8,
        ),
    ),
)

_LISTS = Row(
    "Jobs and nodes",
    (
        Panel(
            "Jobs",
            "Every job of the policy, with its mode.",
            "short",
            (
                Query("joulecut_controller_mode == 1"),
                Query('sum by (job) (joulecut_job_power_watts{kind="measured"})'),
                Query("sum by (job) (joulecut_job_energy_bloat_watts)"),
                Query("max by (job) (joulecut_job_slowdown_ratio)"),
                Query("max by (job) (joulecut_job_slo_margin_ratio)"),
            ),
            kind="table",
            by=("job", "mode"),
            columns=(
                ("", "none"),
                ("Power", "watt"),
                ("Bloat", "watt"),
                ("Slowdown", "percentunit"),
                ("SLO margin", "percentunit"),
            ),
        ),
        Panel(
            "Nodes",
            "Every scraped agent.",
            "short",
            (
                Query(f"count by (instance) (joulecut_gpu_info{{{ON_NODE}}})"),
                Query(f"sum by (instance) ({GPU_POWER})"),
                Query(f"max by (instance) (joulecut_collect_success{{{ON_NODE}}})"),
                Query(f"max by (instance) (joulecut_keeper_up{{{ON_NODE}}})"),
            ),
            kind="table",
            by=("instance",),
            columns=(
                ("GPUs", "none"),
                ("Power", "watt"),
                ("Reads all", "none"),
                ("Keeper up", "none"),
            ),
        ),
        Panel(
            "Firing alerts",
            "Each has an entry of the same name in docs/runbook.md.",
            "short",
            (
                Query(
                    'ALERTS{alertname=~"Joulecut.+", alertstate="firing"}',
                    quiet_because="no alert fires on a healthy cluster",
                ),
            ),
            kind="table",
            width=24,
            by=("alertname", "severity", "instance", "uuid", "cause"),
            columns=(("", "none"),),
        ),
    ),
)

DASHBOARD = Dashboard(
    "joulecut-fleet",
    "Joulecut / Fleet",
    "Power, bloat and savings of the whole fleet, and firing alerts.",
    (_NOW, _POWER, _GPUS, _LISTS),
    choices=(NODE,),
)
