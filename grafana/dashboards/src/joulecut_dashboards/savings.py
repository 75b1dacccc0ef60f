"""The dashboard of savings, measured and predicted, in energy, money and CO2."""

from joulecut_dashboards.job import JOB, OF_JOB
from joulecut_dashboards.panels import Dashboard, Entry, Panel, Query, Row, stat

PRICE = Entry("price", "Price of a kWh", "0.10", "In your currency; multiplies measured savings.")
PUE = Entry("pue", "PUE", "1.0", "Facility power over IT power; 1.0 counts the GPUs alone.")
CO2 = Entry("co2", "g CO2 a kWh", "400", "Of your grid; multiplies measured savings.")
J_PER_KWH = "3.6e6"


def _saved(basis: str, over: str = "$__range") -> str:
    series = f'joulecut_job_energy_saved_joules_total{{{OF_JOB}, basis="{basis}"}}'
    return f"increase({series}[{over}])"


_SUM = Row(
    "Over the time shown",
    (
        stat(
            "Measured",
            "From energy counters and the measured baseline; never from a prediction.",
            "kwatth",
            f"sum({_saved('measured')}) / {J_PER_KWH}",
            width=6,
        ),
        stat(
            "Predicted",
            "Prediction of the plans in force.",
            "kwatth",
            f"sum({_saved('predicted')}) / {J_PER_KWH}",
            width=6,
        ),
        stat(
            "Money",
            "Measured kWh times PUE times the price above.",
            "short",
            f"sum({_saved('measured')}) / {J_PER_KWH} * $pue * $price",
            width=6,
        ),
        stat(
            "CO2 in grams",
            "Measured kWh times PUE times the factor above.",
            "short",
            f"sum({_saved('measured')}) / {J_PER_KWH} * $pue * $co2",
            width=6,
        ),
    ),
)

_COURSE = Row(
    "Course",
    (
        Panel(
            "Saved power",
            "Measured and predicted, against default clocks; two separate counters.",
            "watt",
            (
                Query(
                    "sum by (basis) (rate(joulecut_job_energy_saved_joules_total"
                    f"{{{OF_JOB}}}[$__rate_interval]))",
                    "{{basis}}",
                ),
            ),
        ),
        Panel(
            "Share saved",
            "Measured savings over the power of a job at default clocks.",
            "percentunit",
            (
                Query(
                    "sum by (job) (rate(joulecut_job_energy_saved_joules_total"
                    f'{{{OF_JOB}, basis="measured"}}[$__rate_interval]))'
                    f' / sum by (job) (joulecut_job_power_watts{{{OF_JOB}, kind="baseline"}})',
                    "{{job}}",
                ),
            ),
        ),
        Panel(
            "Power of jobs",
            "Sum of the energy counters of their GPUs.",
            "watt",
            (
                Query(
                    "sum by (job)"
                    f" (rate(joulecut_job_energy_joules_total{{{OF_JOB}}}[$__rate_interval]))",
                    "{{job}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Possible saving",
            "Bloat at the current clocks: the saving of a plan. Predicted, not measured.",
            "watt",
            (
                Query(
                    f"sum by (job, kind) (joulecut_job_energy_bloat_watts{{{OF_JOB}}})",
                    "{{job}} {{kind}}",
                ),
            ),
            stacked=True,
        ),
    ),
)

_NO_WINDOWS = "only jobs with verify.holdout have windows, and the first figure takes three of them"

_WINDOWS = Row(
    "Hold-out windows",
    (
        Panel(
            "Saved, by hold-out windows",
            "Energy per iteration against default clocks, with its 95 % interval (low, high).",
            "percentunit",
            (
                Query(
                    f"max by (job, bound) (joulecut_job_energy_saved_ratio{{{OF_JOB}}})",
                    "{{job}} {{bound}}",
                    _NO_WINDOWS,
                ),
            ),
        ),
        Panel(
            "Windows",
            "Kept windows over the time shown, by clocks.",
            "short",
            (
                Query(
                    "sum by (job, arm) (increase(joulecut_job_holdout_windows_total"
                    f'{{{OF_JOB}, outcome="kept"}}[$__range]))',
                    "{{job}} {{arm}}",
                    _NO_WINDOWS,
                ),
            ),
        ),
    ),
)

_JOBS = Row(
    "Jobs",
    (
        Panel(
            "Savings and slowdown by job",
            "Over the time shown; slowdown as measured now.",
            "short",
            (
                Query(f"sum by (job) ({_saved('measured')}) / {J_PER_KWH}"),
                Query(f"sum by (job) ({_saved('predicted')}) / {J_PER_KWH}"),
                Query(
                    f"sum by (job) (increase(joulecut_job_energy_joules_total{{{OF_JOB}}}"
                    f"[$__range])) / {J_PER_KWH}"
                ),
                Query(f"max by (job) (joulecut_job_slowdown_ratio{{{OF_JOB}}})"),
            ),
            kind="table",
            width=24,
            by=("job",),
            columns=(
                ("Saved, measured", "kwatth"),
                ("Saved, predicted", "kwatth"),
                ("Used", "kwatth"),
                ("Slowdown", "percentunit"),
            ),
        ),
    ),
)

DASHBOARD = Dashboard(
    "joulecut-savings",
    "Joulecut / Savings",
    "Savings against default clocks, measured and predicted.",
    (_SUM, _COURSE, _WINDOWS, _JOBS),
    choices=(JOB,),
    entries=(PRICE, PUE, CO2),
)
