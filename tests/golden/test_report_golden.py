"""What `joulecut report` prints, as text to be read: tables, CSV, JSON."""

import json
from pathlib import Path

import savings_store
from golden_text import same_as_golden

from joulecut_cli.report.record import Json, Known, changes_json, record
from joulecut_cli.report.table import report_text
from joulecut_controller.policy.policy import Cost
from joulecut_controller.savings.job_saving import job_saving

KEPT = Path(__file__).parent / "report"
URL = "sqlite:///controller.db"
PRICES = Cost(gpu_hour=2.5, kwh=0.12, host_power_w=150.0, pue=1.2, co2_g_per_kwh=380.0)
KNOWN = {
    "gpt3-175b": Known("train", 0.05),
    "llama-70b": Known("train", 0.05),
    "new": Known("research", 0.05),
    "unmeasured": Known("research", 0.0),
}


def made(prices: Cost = PRICES, *, empty: bool = False, job: str = "") -> Json:
    windows = [] if empty else savings_store.week()
    names = {one.job for one in windows} | ({} if empty else KNOWN).keys()
    trail = savings_store.trail()[::-1] if job else []
    since_s = savings_store.UNTIL_UNIX_S - 7 * savings_store.DAY_S
    return record(
        {
            name: job_saving(one for one in windows if one.job == name)
            for name in sorted(names)
            if job in {"", name}
        },
        since_unix_s=since_s,
        until_unix_s=savings_store.UNTIL_UNIX_S,
        prices=prices,
        known=KNOWN,
    ) | {
        "truncated": False,
        "changes": changes_json(trail, job, since_s),
        "changes_cut": False,
    }


def test_the_report_reads_as_kept() -> None:
    same_as_golden(KEPT / "report.txt", report_text(made(), URL))


def test_without_prices_money_is_unknown() -> None:
    same_as_golden(KEPT / "report-without-prices.txt", report_text(made(Cost()), URL))


def test_an_empty_report_says_what_to_switch_on() -> None:
    text = report_text(made(empty=True), URL)
    assert "holdout: 5%" in text
    same_as_golden(KEPT / "report-empty.txt", text)


def test_one_job_reads_as_kept() -> None:
    same_as_golden(KEPT / "one-job.txt", report_text(made(job="gpt3-175b"), URL))


def test_the_json_reads_as_kept() -> None:
    """Of one job; eight digits, since the last ones differ between machines."""
    job = made()["jobs"][0]
    rounded = json.loads(json.dumps(job), parse_float=lambda text: float(f"{float(text):.8g}"))
    same_as_golden(KEPT / "job.json", json.dumps(rounded, indent=2))
