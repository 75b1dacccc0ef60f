"""Savings predicted from counters: of jobs without a profile, at clocks nobody holds."""

from pathlib import Path

import pytest

from joulecut_controller.known_jobs import NAME, encoded
from joulecut_controller.store.database import open_store
from joulecut_engine.estimate.other_jobs import ClockShares, Counters, KnownJob, OtherJobs
from joulecut_lab.audit.auditing import predictor
from joulecut_lab.audit.auditor import Auditor, OwnerTotals
from joulecut_lab.audit.first_saving import first_savings, predicted_saving
from joulecut_lab.audit.reading import Frame, GpuReading
from joulecut_wire.errors import BadInput

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


def known(count: int) -> list[KnownJob]:
    return [
        KnownJob(f"job{i}", Counters(MODEL, 1.0, 0.7, 1.0, i / count), ClockShares(0.1, 0.5))
        for i in range(count)
    ]


def test_work_that_waits_for_memory_could_save_more() -> None:
    model = OtherJobs(())
    found = [predicted_saving(totals(memory), MODEL, 0.05, model) for memory in (0.1, 0.8)]
    ratios = [one.ratio for one in found if one is not None]
    assert len(ratios) == 2
    assert ratios[0] < ratios[1]
    for one in found:
        assert one.low <= one.ratio <= one.high
        assert one.joules == pytest.approx(one.ratio * 4 * 300.0 * STEP_S)


def test_clocks_that_this_product_holds_say_nothing_of_default_clocks() -> None:
    assert predicted_saving(totals(0.5, on_purpose=True), MODEL, 0.05, OtherJobs(())) is None


def test_a_job_without_power_has_no_prediction() -> None:
    assert predicted_saving(totals(0.5, power_w=None), MODEL, 0.05, OtherJobs(())) is None


def test_the_jobs_of_a_store_narrow_the_band(tmp_path: Path) -> None:
    job = totals(0.5)
    alone = first_savings(job, MODELS, predictor(None))
    assert len(alone) == 2
    assert all("from counters, before any probe" in one.text for one in alone)
    url = f"sqlite:///{tmp_path}/controller.db"
    store = open_store(url)
    store.keep_learnt(NAME, encoded(known(20)))
    store.close()
    taught = first_savings(job, MODELS, predictor(url))
    assert taught[0].high - taught[0].low < alone[0].high - alone[0].low
    assert taught[1].ratio > alone[1].ratio


def test_a_store_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no file"):
        predictor(f"sqlite:///{tmp_path}/none.db")
    url = f"sqlite:///{tmp_path}/controller.db"
    store = open_store(url)
    store.keep_learnt(NAME, "{")
    store.close()
    with pytest.raises(BadInput, match="known jobs cannot be read"):
        predictor(url)
