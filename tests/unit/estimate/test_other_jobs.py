"""Shares of a job from its windows, and what counters at default clocks say before any probe."""

import gc
import weakref

import numpy as np
import pytest
from forest import memory
from hypothesis import given
from hypothesis import strategies as st

from joulecut_engine.estimate.estimator import Subject
from joulecut_engine.estimate.fitting import KNEE_PRIOR_RATIO, SLOPE_PRIOR_PER_GHZ
from joulecut_engine.estimate.other_jobs import (
    JUDGES_MIN,
    LOWEST_RATIO,
    PUBLIC,
    ClockShares,
    Counters,
    DefaultWork,
    FromOtherJobs,
    KnownJob,
    OtherJobs,
    Voltage,
    measured,
    public_voltage,
    sure_error,
)
from joulecut_engine.estimate.physics import Physics

TOP_MHZ = 1410.0
CLOCKS = tuple(range(210, 1411, 15))
CARD = "no such card"


def curve(time: float, power: float) -> Physics:
    """Of a card in general; both are 1 at its highest clock."""
    made = Physics(
        TOP_MHZ,
        1.0,
        time,
        power_static_w=power,
        power_w_per_ghz=1.0,
        voltage_slope_per_ghz=SLOPE_PRIOR_PER_GHZ,
        clock_knee_mhz=KNEE_PRIOR_RATIO * TOP_MHZ,
    )
    moved = float(made.power_w(np.array([TOP_MHZ]))[0]) - power
    return Physics(
        TOP_MHZ,
        1.0,
        time,
        power_static_w=power,
        power_w_per_ghz=(1.0 - power) / moved,
        voltage_slope_per_ghz=SLOPE_PRIOR_PER_GHZ,
        clock_knee_mhz=KNEE_PRIOR_RATIO * TOP_MHZ,
    )


def job(memory: float, name: str = "job") -> KnownJob:
    """More memory traffic: less follows the clock, and less than physics says."""
    counters = Counters(CARD, 1.0, 0.9 - 0.3 * memory, gpu_ratio=1.0, memory_ratio=memory)
    return KnownJob(name, counters, ClockShares(0.8 - 0.8 * memory, 0.2 + 0.3 * memory))


def fleet(count: int) -> list[KnownJob]:
    dice = np.random.default_rng(1)
    return [job(memory, f"job{i}") for i, memory in enumerate(dice.uniform(0.1, 0.8, count))]


@given(
    time=st.floats(0.0, 1.0),
    power=st.floats(0.0, 0.99),  # at 1 nothing follows the clock, and the swing has no scale
    ratios=st.lists(st.floats(0.5, 0.94), min_size=1, max_size=8),
)
def test_shares_are_those_of_the_curve(time: float, power: float, ratios: list[float]) -> None:
    clocks, truth = TOP_MHZ * np.array(ratios), curve(time, power)
    found = shown_by(np.array(ratios), truth.time_s(clocks), truth.power_w(clocks)).shares
    assert found.time == pytest.approx(time, abs=1e-9)
    assert found.power == pytest.approx(power, abs=1e-9)


def test_a_job_that_was_never_lowered_teaches_nothing() -> None:
    assert shown_by(np.array([0.99]), np.array([1.01]), np.array([0.97])) is None


def shown_by(ratios, time, power, card: str = CARD, name: str = "job") -> KnownJob | None:
    counters = Counters(card, 1.0, 0.9)
    return measured(name, counters, ratios, time, power, default_mhz=TOP_MHZ, top_mhz=TOP_MHZ)


@pytest.mark.parametrize(("knee_ratio", "slope_per_ghz"), [(0.55, 1.1), (0.8, 0.3)])
def test_jobs_of_a_card_share_its_voltage_curve_and_keep_shares_of_their_own(
    knee_ratio: float, slope_per_ghz: float
) -> None:
    """Measured power of a new job on that card is then predicted, whatever the public prior."""
    card, dice = Voltage(knee_ratio * TOP_MHZ, slope_per_ghz), np.random.default_rng(1)
    ratios, shares, known = np.linspace(0.62, 0.97, 7), np.linspace(0.1, 0.5, 6), []
    for number, still in enumerate(shares):
        drawn = still + (1.0 - still) * card.dynamic(ratios * TOP_MHZ, TOP_MHZ)
        noisy = drawn * (1.0 + dice.normal(0.0, 0.005, drawn.shape))
        known.append(shown_by(ratios, 1.0 / ratios, noisy, name=f"job{number}"))
    asked = TOP_MHZ * np.array([0.7, 0.8, 0.9])
    truth = card.dynamic(asked, TOP_MHZ)
    learnt, public = OtherJobs(known).voltage(CARD, TOP_MHZ), public_voltage(CARD, TOP_MHZ)
    assert learnt.dynamic(asked, TOP_MHZ) == pytest.approx(truth, abs=0.04)
    off = [np.abs(one.dynamic(asked, TOP_MHZ) - truth).mean() for one in (learnt, public)]
    assert off[0] < 0.7 * off[1]
    assert OtherJobs(known, learns=False).voltage(CARD, TOP_MHZ) == public
    assert OtherJobs(known).voltage("NVIDIA A40", 1740.0) == public_voltage("NVIDIA A40", 1740.0)


def test_probed_jobs_teach_what_physics_does_not_know() -> None:
    known = fleet(40)
    taught, alone = OtherJobs(known), OtherJobs(())
    mean = np.mean([one.shares.time for one in known])
    asked = [job(memory) for memory in (0.15, 0.3, 0.45, 0.6, 0.75)]
    off = [abs(taught.shares(one.counters).time - one.shares.time) for one in asked]
    physics = [abs(alone.shares(one.counters).time - one.shares.time) for one in asked]
    assert np.mean(off) < 0.3 * np.mean(physics)
    assert np.mean(off) < 0.3 * np.mean([abs(mean - one.shares.time) for one in asked])


def test_a_forest_that_learns_noise_has_no_weight() -> None:
    dice = np.random.default_rng(3)
    noise = []
    for i in range(30):
        counters = Counters(CARD, *dice.uniform(0.2, 1.0, 4))
        time, power = np.clip(PUBLIC.shares(counters) + dice.normal(0.0, 0.1, 2), 0.0, 1.0)
        noise.append(KnownJob(f"job{i}", counters, ClockShares(float(time), float(power))))
    taught, alone = OtherJobs(noise), OtherJobs(())
    for asked in noise[:5]:
        moved = taught.shares(asked.counters).time - alone.shares(asked.counters).time
        assert abs(moved) < 0.05


@pytest.mark.parametrize("slope", [-8.0, 8.0])
def test_work_unlike_all_known_jobs_is_not_extrapolated(slope: float) -> None:
    """Jobs of one model draw nearly the same power, the next one much more: a line through theirs
    would say that all of its time follows the clock, or none.
    """
    dice, known = np.random.default_rng(1), []
    for number, drawn in enumerate(dice.uniform(0.92, 0.94, 8)):
        shares = ClockShares(0.7 + slope * (drawn - 0.93), 0.2)
        known.append(KnownJob(f"{number}", Counters(CARD, 0.97, drawn, 1.0), shares))
    said = OtherJobs(known).shares(Counters(CARD, 0.97, 1.18, 1.0))
    assert 0.5 < said.time < 0.9


def test_the_band_narrows_as_jobs_are_probed() -> None:
    asked = job(0.5).counters

    def width(known: list[KnownJob]) -> float:
        low, high = np.quantile(OtherJobs(known).possible(asked)[:, 0], [0.05, 0.95])
        return float(high - low)

    assert width(fleet(40)) < 0.6 * width([])


@pytest.mark.parametrize("workloads", [JUDGES_MIN, 40])
def test_four_of_five_next_jobs_stay_below_the_sure_error_also_where_few_were_measured(
    workloads: int,
) -> None:
    """Rows of one job resemble each other: by them, three jobs in four stayed below."""
    dice, held = np.random.default_rng(1), []
    for _ in range(2_000):
        apart = dice.normal(0.0, 0.1, workloads + 1)
        rows = np.repeat(apart, 2) + dice.normal(0.0, 0.01, 2 * (workloads + 1))
        names = [f"job{number // 2}" for number in range(2 * workloads)]
        held.append(rows[-2:].mean() <= sure_error(names, rows[:-2]))
    assert 0.8 <= np.mean(held) <= 0.92


@given(
    time=st.floats(0.0, 1.0),
    power=st.floats(0.0, 0.99),
    default=st.sampled_from([1110, 1260, 1410]),
    card=st.sampled_from([CARD, "NVIDIA A100-SXM4-80GB"]),
)
def test_predicted_work_has_the_shares_it_was_made_of_and_is_flat_above_its_default(
    time: float, power: float, default: int, card: str
) -> None:
    work = DefaultWork(card, default, int(TOP_MHZ), 0.02, 300.0)
    shares = {"forward": ClockShares(time, power)}
    voltages = OtherJobs(()).voltages([work])
    made = FromOtherJobs({(0, "forward"): work}, shares, CLOCKS, voltages)
    asked = Subject("job", "GPU-0", 0, "forward")
    clocks = made.known_clocks_mhz(asked)
    assert min(clocks) >= LOWEST_RATIO * default
    curve = made.predict(asked, clocks)
    above = np.array(clocks) >= default
    assert curve.time_s[above] == pytest.approx(0.02)
    assert curve.power_w[above] == pytest.approx(300.0)
    lower = np.array(clocks)[~above]
    found = measured(
        "job",
        Counters(card, default / TOP_MHZ, 0.9),
        lower / default,
        curve.time_s[~above] / 0.02,
        curve.power_w[~above] / 300.0,
        default_mhz=default,
        top_mhz=TOP_MHZ,
    ).shares
    assert (found.time, found.power) == pytest.approx((time, power), abs=1e-9)
    assert made.predict(Subject("job", "GPU-0", 1, "forward"), clocks) is None


def test_the_same_jobs_give_the_same_numbers_and_each_predictor_is_judged() -> None:
    known = fleet(12)
    one, two = OtherJobs(known), OtherJobs(known[::-1])
    asked = job(0.4).counters
    assert (one.possible(asked) == two.possible(asked)).all()
    assert set(one.erred) == {"prior", "forest"}
    assert all(
        set(each) == {known_job.workload for known_job in known} for each in one.erred.values()
    )
    alone = OtherJobs(known, learns=False)
    assert alone.predicts == "prior"
    assert (alone.possible(asked)[0] == OtherJobs(()).possible(asked)[0]).all()
    mean = {name: np.mean([t for t, _ in each.values()]) for name, each in one.erred.items()}
    assert mean[one.predicts] < mean["prior"]


@pytest.mark.nightly
def test_what_is_kept_of_a_thousand_jobs_is_below_a_hundred_mebibytes() -> None:
    assert memory() <= 100.0


def test_a_prediction_keeps_no_forest_that_was_replaced() -> None:
    model = OtherJobs(fleet(12))
    work = DefaultWork(CARD, 1410, int(TOP_MHZ), 0.02, 300.0)
    shares = {"forward": model.shares(job(0.4).counters)}
    made = FromOtherJobs({(0, "forward"): work}, shares, CLOCKS, model.voltages([work]))
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None
    assert made.predict(Subject("job", "GPU-0", 0, "forward"), (1200,)) is not None
