"""What `joulecut report` prints, as text to be read: tables, CSV, JSON."""

import json
from dataclasses import replace
from pathlib import Path

import savings_store
from golden_text import same_as_golden

from joulecut_cli.report.table import report_text
from joulecut_controller.policy.policy import Cost
from joulecut_controller.savings.changes import changes
from joulecut_controller.savings.record import REPORT
from joulecut_controller.savings.report import Known, Report, report

KEPT = Path(__file__).parent / "report"
URL = "sqlite:///controller.db"
PRICES = Cost(gpu_hour=2.5, kwh=0.12, host_power_w=150.0, pue=1.2, co2_g_per_kwh=380.0)
KNOWN = {
    "gpt3-175b": Known("train", 0.05),
    "llama-70b": Known("train", 0.05),
    "new": Known("research", 0.05),
    "unmeasured": Known("research", 0.0),
}


def made(prices: Cost = PRICES, *, empty: bool = False, job: str = "") -> Report:
    windows = [] if empty else savings_store.week()
    return report(
        [one for one in windows if job in {"", one.job}],
        since_unix_s=savings_store.UNTIL_UNIX_S - 7 * savings_store.DAY_S,
        until_unix_s=savings_store.UNTIL_UNIX_S,
        prices=prices,
        known={} if empty else KNOWN,
        job=job,
    )


def test_the_report_reads_as_kept() -> None:
    same_as_golden(KEPT / "report.txt", report_text(REPORT.json(made()), URL))


def test_without_prices_money_is_unknown() -> None:
    text = report_text(REPORT.json(made(Cost())), URL)
    same_as_golden(KEPT / "report-without-prices.txt", text)


def test_an_empty_report_says_what_to_switch_on() -> None:
    text = report_text(REPORT.json(made(empty=True)), URL)
    assert "holdout: 5%" in text
    same_as_golden(KEPT / "report-empty.txt", text)


def test_one_job_reads_as_kept() -> None:
    job, trail = "gpt3-175b", savings_store.trail()[::-1]
    found = made(job=job)
    one = replace(found, changes=changes(trail, job, found.since_unix_s))
    same_as_golden(KEPT / "one-job.txt", report_text(REPORT.json(one), URL))


def test_the_json_reads_as_kept() -> None:
    """Of one job; eight digits, since the last ones differ between machines."""
    job = REPORT.json(made())["jobs"][0]
    rounded = json.loads(json.dumps(job), parse_float=lambda text: float(f"{float(text):.8g}"))
    same_as_golden(KEPT / "job.json", json.dumps(rounded, indent=2))
