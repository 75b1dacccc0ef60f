"""What the estimators learn of a job whose work varies from iteration to iteration."""

import math
import random
import statistics
from dataclasses import replace

import pytest
from life import LifeWorld, Phase

from joulecut_controller.observe.iteration_stats import Fresh
from joulecut_controller.reconcile.training_samples import POWER_CAP, teach
from joulecut_controller.view import GpuView, JobState, Measured, Placement, StageLoad, Window
from joulecut_engine.estimate.estimator import Subject
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.graph.pipeline import Kind
from joulecut_wire.messages import GpuDescription, GpuSnapshot

STAGES, TOP_MHZ, CAPPED_MHZ, LOW_MHZ = 4, 1410, 1365, 1200
KINDS: tuple[Kind, ...] = ("forward", "backward")


def _learnt(seed: int, spread: float, longer: float) -> tuple[float, float]:
    """Mean error of the learnt effects of a clock, and the largest one of a GPU's own pace.

    Under the lower clocks the work is `longer`, as in an hour of long sequences.
    """
    world = LifeWorld((Phase("train"),), knows="profile", stages=STAGES, microbatches=4)
    (policy,) = world.asked().jobs
    profile = policy.profile
    assert profile is not None
    chance = random.Random(seed)
    own = [chance.gauss(1.0, 0.01) for _ in range(STAGES)]
    estimator = OnlineEstimator({policy.name: profile})
    uuids = tuple(f"GPU-{stage}" for stage in range(STAGES))

    def predicted_s(stage: int, kind: Kind, clock_mhz: int) -> float:
        found = estimator.predict(Subject(policy.name, uuids[stage], stage, kind), (clock_mhz,))
        return float(found.time_s[0])

    def swept_s(stage: int, kind: Kind, clock_mhz: int) -> float:
        menu = profile.options[stage, kind]
        return next(one.time_s for one in menu if one.clock_mhz == clock_mhz)

    for spell in range(8):
        clock_mhz = LOW_MHZ if spell % 2 else TOP_MHZ
        for _ in range(40):
            length = math.exp(chance.gauss(0.0, spread)) * (longer if spell % 2 else 1.0)
            loads = tuple(
                StageLoad(
                    uuid=uuid,
                    stage=stage,
                    clock_mhz=clock_mhz,
                    busy_s={
                        kind: swept_s(stage, kind, clock_mhz)
                        * own[stage]
                        * length
                        * chance.gauss(1.0, 0.005)
                        for kind in KINDS
                    },
                    samples=4,
                    power_w=None,
                )
                for stage, uuid in enumerate(uuids)
            )
            measured = Measured(
                current=Window(64, 1.0, spread, None, None, work_sd_ratio=spread), loads=loads
            )
            placement = Placement(tuple((uuid,) for uuid in uuids), 0.0, 10.0)
            job = JobState(policy, placement, measured)
            teach(job, Fresh((1.0,), loads, 1), estimator, gpus={}, before=None)
        estimator.fit()
    effects = [
        predicted_s(stage, kind, LOW_MHZ)
        / predicted_s(stage, kind, TOP_MHZ)
        / (swept_s(stage, kind, LOW_MHZ) / swept_s(stage, kind, TOP_MHZ))
        for stage in range(STAGES)
        for kind in KINDS
    ]
    told_apart = [
        predicted_s(s, "backward", TOP_MHZ) / swept_s(s, "backward", TOP_MHZ) for s in range(STAGES)
    ]
    middle, mean_own = statistics.fmean(told_apart), statistics.fmean(own)
    apart = (
        abs(seen / middle - true / mean_own) for seen, true in zip(told_apart, own, strict=True)
    )
    return statistics.fmean(effects) - 1.0, max(apart)


@pytest.mark.parametrize(
    ("spread", "longer"), [(0.03, 0.8), (0.03, 1.3), (0.12, 1.3), (0.2, 0.8), (0.2, 1.0)]
)
def test_work_that_varies_is_not_learnt_as_the_effect_of_a_clock(
    spread: float, longer: float
) -> None:
    effect, apart = _learnt(1, spread, longer)
    assert abs(effect) < 0.003
    assert apart < 0.004, "a GPU's own pace is learnt"


def test_a_power_cap_at_default_clocks_changes_nothing_of_a_predicted_profile() -> None:
    """It was predicted from the clock that the cap leaves: times as predicted are no news."""
    world = LifeWorld((Phase("train"),), knows="profile", stages=STAGES, microbatches=4)
    (policy,) = world.asked().jobs
    assert policy.profile is not None
    menus = policy.profile.options.items()
    below = {key: tuple(o for o in menu if o.clock_mhz <= CAPPED_MHZ) for key, menu in menus}
    profile = replace(policy.profile, options=below, predicted=True)
    estimator = OnlineEstimator({policy.name: profile})
    uuids = tuple(f"GPU-{stage}" for stage in range(STAGES))
    table = tuple(range(LOW_MHZ, TOP_MHZ + 1, 15))
    gpus = {
        uuid: GpuView(
            GpuDescription(uuid, stage, "sim", table),
            "n:1",
            "n",
            GpuSnapshot(uuid, clock_sm_mhz=CAPPED_MHZ, event_reasons=frozenset({POWER_CAP})),
            0.0,
        )
        for stage, uuid in enumerate(uuids)
    }

    def predicted_s(stage: int) -> float:
        subject = Subject(policy.name, uuids[stage], stage, "forward")
        return float(estimator.predict(subject, (CAPPED_MHZ,)).time_s[0])

    before = [predicted_s(stage) for stage in range(STAGES)]
    shown_s = {key: min(one.time_s for one in menu) for key, menu in below.items()}
    loads = tuple(
        StageLoad(uuid, stage, CAPPED_MHZ, {k: shown_s[stage, k] for k in KINDS}, 4, None)
        for stage, uuid in enumerate(uuids)
    )
    measured = Measured(current=Window(64, 1.0, 0.0, None, None), loads=loads)
    placement = Placement(tuple((uuid,) for uuid in uuids), 0.0, 10.0)
    job = JobState(replace(policy, profile=profile), placement, measured)
    for _ in range(40):
        teach(job, Fresh((1.0,), loads, 1), estimator, gpus=gpus, before=None)
    estimator.fit()
    assert [predicted_s(stage) for stage in range(STAGES)] == pytest.approx(before, rel=0.002)


@pytest.mark.nightly
@pytest.mark.parametrize("longer", [0.8, 1.0, 1.3])
@pytest.mark.parametrize("spread", [0.03, 0.12, 0.2])
def test_it_is_learnt_as_such_in_no_direction(spread: float, longer: float) -> None:
    """A single one is off by a standard deviation of 0.1 %; their mean is not."""
    effects, apart = zip(*(_learnt(seed, spread, longer) for seed in range(20)), strict=True)
    assert abs(statistics.fmean(effects)) < 0.001
    assert sum(abs(effect) < 0.003 for effect in effects) >= 18
    assert sum(one < 0.004 for one in apart) >= 18
