"""The dashboard of one GPU: energy, clocks set and seen, causes of low clocks."""

from joulecut_dashboards.fleet import NODE, ON_NODE
from joulecut_dashboards.panels import Choice, Dashboard, Panel, Query, Row, stat

GPU = Choice("uuid", "GPU", 'joulecut_gpu_info{instance=~"$instance"}', "uuid", "GPUs by UUID.")
THIS = f'{ON_NODE}, uuid=~"$uuid"'
NAMED = f"* on (instance, uuid) group_left (index) joulecut_gpu_info{{{THIS}}}"
NAME = "{{instance}} GPU {{index}}"

_NOW = Row(
    "Now",
    (
        Panel(
            "GPUs",
            "Each GPU, and whether it can be controlled here; if not, the reason.",
            "short",
            (
                Query(f"joulecut_gpu_info{{{THIS}}}"),
                Query(f'sum by (uuid) (joulecut_gpu_power_watts{{kind="average", {THIS}}})'),
                Query(f'max by (uuid) (joulecut_gpu_clock_hertz{{domain="sm", {THIS}}})'),
            ),
            kind="table",
            width=24,
            by=("instance", "index", "uuid", "model", "controllable", "reason"),
            columns=(("", "none"), ("Power", "watt"), ("SM clock", "hertz")),
        ),
    ),
)

_ENERGY = Row(
    "Energy",
    (
        Panel(
            "Power",
            "From the energy counter: mean power of each interval.",
            "watt",
            (
                Query(
                    f"rate(joulecut_gpu_energy_joules_total{{{THIS}}}[$__rate_interval]) {NAMED}",
                    NAME,
                ),
            ),
        ),
        Panel(
            "Power as the driver shows it",
            "Its average over a second, or its newest reading, by device.",
            "watt",
            (Query(f"joulecut_gpu_power_watts{{{THIS}}} {NAMED}", NAME + " {{kind}}"),),
        ),
        Panel(
            "Power limit",
            "The limit in force.",
            "watt",
            (
                Query(
                    f'joulecut_gpu_power_limit_watts{{kind="enforced", {THIS}}} {NAMED}',
                    NAME,
                ),
            ),
            width=8,
        ),
        Panel(
            "Temperature",
            "Of the GPU.",
            "celsius",
            (Query(f"joulecut_gpu_temperature_celsius{{{THIS}}} {NAMED}", NAME),),
            width=8,
        ),
        Panel(
            "Memory in use",
            "Device memory.",
            "bytes",
            (Query(f"joulecut_gpu_memory_used_bytes{{{THIS}}} {NAMED}", NAME),),
            width=8,
        ),
    ),
)

_CLOCKS = Row(
    "Clocks",
    (
        Panel(
            "SM clock, seen",
            "Clock that the device shows.",
            "hertz",
            (Query(f'joulecut_gpu_clock_hertz{{domain="sm", {THIS}}} {NAMED}', NAME),),
        ),
        Panel(
            "SM clock, set",
            "Highest clock of a lease; absent for a GPU without a lock.",
            "hertz",
            (
                Query(
                    f'joulecut_gpu_clock_limit_hertz{{bound="max", {THIS}}} {NAMED}',
                    NAME,
                ),
            ),
        ),
        Panel(
            "Busy",
            "Share of time in which an engine was busy, from the driver.",
            "percentunit",
            (Query(f"joulecut_gpu_utilization_ratio{{{THIS}}} {NAMED}", NAME + " {{engine}}"),),
        ),
        Panel(
            "Causes of low clocks",
            "1 while the device names this reason. idle and sw_power_cap are ordinary; thermal and"
            " power brake reasons are not.",
            "none",
            (
                Query(
                    f"joulecut_gpu_clock_event_active{{{THIS}}} {NAMED}",
                    NAME + " {{reason}}",
                    quiet_because="a busy GPU at the clock it was asked names no reason",
                ),
            ),
        ),
    ),
)

_CONTROL = Row(
    "Control",
    (
        stat(
            "Under a lease",
            "Number of these GPUs that a plan holds.",
            "none",
            f"count(joulecut_control_lease_expires_timestamp_seconds{{{THIS}}}) or vector(0)",
            width=8,
        ),
        stat(
            "Restored",
            "Number of restores to default, over the time shown.",
            "none",
            f"sum(increase(joulecut_control_restores_total{{{THIS}}}[$__range])) or vector(0)",
            width=8,
        ),
        stat(
            "Drifted",
            "Number of times they did not show their setting, over the time shown.",
            "none",
            f"sum(increase(joulecut_control_drift_total{{{THIS}}}[$__range])) or vector(0)",
            width=8,
        ),
        Panel(
            "Restores by cause",
            "cleared, job_ended and shutdown are ordinary; lease_expired: nobody renewed.",
            "none",
            (
                Query(
                    f"sum by (cause) (joulecut_control_restores_total{{{THIS}}})",
                    "{{cause}}",
                    quiet_because="nothing was restored yet",
                ),
            ),
        ),
        Panel(
            "Drift by cause",
            "Times a device did not show its setting.",
            "none",
            (
                Query(
                    f"sum by (cause) (joulecut_control_drift_total{{{THIS}}})",
                    "{{cause}}",
                    quiet_because="nothing drifts on a healthy cluster",
                ),
            ),
        ),
    ),
)

DASHBOARD = Dashboard(
    "joulecut-gpu",
    "Joulecut / GPU",
    "Single GPUs: energy, clocks and control.",
    (_NOW, _ENERGY, _CLOCKS, _CONTROL),
    choices=(NODE, GPU),
)
