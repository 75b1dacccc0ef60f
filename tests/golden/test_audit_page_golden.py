"""What `joulecut audit` prints, writes as JSON, as text to be read."""

import json
from pathlib import Path

from golden_text import same_as_golden

from joulecut_engine.money import Prices
from joulecut_lab.audit import report
from joulecut_lab.audit.auditor import Auditor
from joulecut_lab.audit.finding import Audit, FirstSaving
from joulecut_lab.audit.reading import SHARED, Frame, GpuReading

KEPT = Path(__file__).parent / "day0"
NOON_UNIX_S = 1_767_268_800.0  # 2026-01-01 12:00:00 UTC
STEP_S, STEPS = 600.0, 144
ABOUT = report.About(
    source="http://prometheus:9090 (dcgm-exporter series)",
    ended_unix_s=NOON_UNIX_S,
    step_s=STEP_S,
    prices=Prices(gpu_hour=2.0, kwh=0.08, pue=1.2),
)


def _gpu(number: int, step: int) -> GpuReading:
    """Two jobs, one GPU of nobody and one of many."""
    hours = step * STEP_S / 3600.0
    uuid = f"GPU-{number}"
    if number == 8:
        return GpuReading(uuid, "", None, 55.0, 210.0, 0.0)
    if number == 9:
        return GpuReading(uuid, SHARED, None, 140.0, 1100.0, 0.6)
    owner = "train/gpt3" if number < 4 else "4711"
    if owner == "4711" and hours >= 12:
        return GpuReading(uuid, owner, None, 62.0, 210.0, 0.0)
    hot = number == 2 and hours >= 6
    clock_mhz, power_w = (1185.0, 290.0) if hot else (1410.0, 372.0 + number)
    return GpuReading(uuid, owner, None, power_w, clock_mhz, 0.97, None, 400.0)


def audited() -> Audit:
    auditor = Auditor()
    for step in range(STEPS + 1):
        readings = tuple(_gpu(number, step) for number in range(10))
        auditor.take(Frame(step * STEP_S, STEP_S, readings))
    [gpt3] = [job for job in auditor.jobs() if job.name == "train/gpt3"]
    text = "from counters, before any probe: {} MHz"
    savings = tuple(
        FirstSaving(
            ratio, ratio - 0.02, ratio + 0.03, ratio * gpt3.work_j, slowdown, text.format(mhz)
        )
        for ratio, slowdown, mhz in ((0.06, 0.018, 1290), (0.09, 0.047, 1155))
    )
    return auditor.finish({"train/gpt3": savings})


def test_page() -> None:
    same_as_golden(KEPT / "page.txt", report.text(audited(), ABOUT))


def test_json() -> None:
    shown = json.dumps(report.as_json(audited(), ABOUT), indent=2, allow_nan=False)
    rounded = json.loads(shown, parse_float=lambda text: float(f"{float(text):.9g}"))
    same_as_golden(KEPT / "audit.json", json.dumps(rounded, indent=2))
