"""Savings predicted from counters: of jobs without a profile, at clocks nobody holds."""

import pytest

from joulecut_lab.audit.auditor import Auditor, OwnerTotals
from joulecut_lab.audit.first_saving import first_savings, predicted_saving
from joulecut_lab.audit.reading import Frame, GpuReading

MODEL = "NVIDIA A100-SXM4-80GB"
STEP_S = 60.0


def totals(
    memory: float, *, on_purpose: bool = False, power_w: float | None = 300.0
) -> OwnerTotals:
    auditor = Auditor()
    for number in range(5):
        reading = GpuReading(
            "g",
            "job",
            energy_j=300.0 * STEP_S * number,
            power_w=power_w,
            clock_mhz=1410.0,
            busy_ratio=1.0,
            memory_ratio=memory,
            on_purpose=on_purpose,
        )
        auditor.take(Frame(number * STEP_S, STEP_S, (reading,)))
    (job,) = auditor.jobs()
    return job


MODELS = {"g": MODEL}


def test_work_that_waits_for_memory_could_save_more() -> None:
    found = [predicted_saving(totals(memory), MODEL, 0.05) for memory in (0.1, 0.8)]
    ratios = [one.ratio for one in found if one is not None]
    assert len(ratios) == 2
    assert ratios[0] < ratios[1]
    for one in found:
        assert one.low <= one.ratio <= one.high
        assert one.joules == pytest.approx(one.ratio * 4 * 300.0 * STEP_S)


def test_clocks_that_this_product_holds_say_nothing_of_default_clocks() -> None:
    assert predicted_saving(totals(0.5, on_purpose=True), MODEL, 0.05) is None


def test_a_job_without_power_has_no_prediction() -> None:
    assert predicted_saving(totals(0.5, power_w=None), MODEL, 0.05) is None


def test_a_saving_is_predicted_at_each_budget() -> None:
    found = first_savings(totals(0.5), MODELS)
    assert len(found) == 2
    assert all("from counters, before any probe" in one.text for one in found)
