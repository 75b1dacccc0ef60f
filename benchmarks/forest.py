"""What other jobs say of a job before any probe, with and without the forest.

    python benchmarks/forest.py [--jobs 12] [--first-seed 1]

Public sweeps: each of the 21 applications on an A100 (Ali et al., read in place) is left out in
turn and predicted from its counters at the highest clock, taught by the others:
the share of the time that follows the clock and the share of the power that does not. The prior is
fitted to the others as well. Errors are those of time, power and energy at all clocks above 60 % of
the highest; then the clock of least predicted energy within a budget is judged by its measured
saving. Curves are smoothed, because single sweeps have 1 to 5 % noise. Without public data this
part is left out. The last lines are the fit of the prior to all applications.

Drawn jobs, simulated: each seed is a cluster of its own card with eight measured jobs, and one more
job that was never measured. Its recommended saving is compared with what these clocks save on the
plant. Then the job is enforced for LIFE_S: in windows of ten iterations, with the share of what the
best clock per GPU saves. A window is over if it is more than a point above the budget.

Memory: all that is kept of 1,000 predicted jobs, each bound met.
"""

import argparse
import csv
import pickle
import random
import statistics
import sys
import tempfile
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from prediction.sweeps import APPLICATIONS_AT
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.isotonic import IsotonicRegression

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "worlds"))
from drawn import DrawnPlant, case
from possible import search
from unprofiled import UnprofiledWorld
from worlds import Agent, Controller

from joulecut_controller.known_jobs import KNOWN_KEPT, NAME, encoded
from joulecut_controller.plan.plan import Plan
from joulecut_controller.plan.predicted import DefaultWorks, Prediction
from joulecut_controller.policy.policy import ClockPolicy, Mode, Policy, PredictPolicy
from joulecut_controller.reconcile.predictions import prediction
from joulecut_controller.store.database import open_store
from joulecut_controller.view import GpuView
from joulecut_engine.estimate.correction import fit_profile
from joulecut_engine.estimate.estimator import NOMINAL, Sample, Subject
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.estimate.other_jobs import (
    FORM_HALF,
    LOWEST_RATIO,
    Counters,
    DefaultWork,
    KnownJob,
    OtherJobs,
    Prior,
    Voltage,
    measured,
    public_voltage,
)
from joulecut_engine.estimate.sample_window import CELLS_MAX, READINGS_MAX
from joulecut_engine.graph.pipeline import KINDS, Profile
from joulecut_sim.plant import Noise
from joulecut_wire.messages import GpuDescription, GpuSnapshot

Floats = NDArray[np.float64]
CARD = "NVIDIA A100-SXM4-80GB"
PENALTY = 3.0  # of the prior
LIMIT_W = 500.0  # the highest power seen is 476 W
BUDGETS = (0.02, 0.05, 0.1)
SHORT_NAMES = {"mem_copy_utilization": "MCUTL"}  # in one of the files
# Of the application left out: shares as predicted and (with errors of others) possible, and the
# voltage curve of the card.
Learner = Callable[[tuple[KnownJob, ...], Counters], tuple[Floats, Voltage]]
PUBLIC_VOLTAGE = public_voltage(CARD, 1410.0)


@dataclass(frozen=True, slots=True)
class Application:
    """Time and power at each clock, as smoothed ratios to the highest."""

    job: KnownJob
    clocks_mhz: Floats  # ascending, from LOWEST_RATIO on
    time: Floats
    power: Floats


def read() -> tuple[Application, ...]:
    rows: dict[str, list[dict[str, str]]] = {}
    for path in sorted(APPLICATIONS_AT.glob("*-dcgm.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                rows.setdefault(row["application"], []).append(row)
    return tuple(_application(name, rows[name]) for name in sorted(rows))


def _application(name: str, rows: list[dict[str, str]]) -> Application:
    rows.sort(key=lambda row: float(row["sm_app_clock"]))
    clocks = np.array([float(row["sm_app_clock"]) for row in rows])
    stretch = clocks[-1] / clocks - 1.0
    time = _smooth(stretch, [float(row["run_time"]) for row in rows], 1)
    power = _smooth(stretch, [float(row["power_usage"]) for row in rows], -1)
    kept = clocks > LOWEST_RATIO * clocks[-1]
    lower = kept & (clocks < clocks[-1])
    top = rows[-1]

    def shown(column: str, scale: float = 1.0) -> float | None:
        text = top.get(column) or top.get(SHORT_NAMES.get(column, ""))
        return None if not text else float(text) * scale

    counters = Counters(
        card=CARD,
        clock_ratio=1.0,
        power_ratio=(shown("power_usage") or 0.0) / LIMIT_W,
        gpu_ratio=shown("gpu_utilization", 0.01),
        memory_ratio=shown("mem_copy_utilization", 0.01),
        sm_ratio=shown("sm_active"),
        tensor_ratio=shown("tensor_activity"),
        dram_ratio=shown("dram_active"),
    )
    ratios = (clocks[lower] / clocks[-1], time[lower], power[lower])
    job = measured(name, counters, *ratios, default_mhz=clocks[-1], top_mhz=clocks[-1])
    assert job is not None
    return Application(job, clocks[kept], time[kept], power[kept])


def _smooth(stretch: Floats, values: list[float], sign: int) -> Floats:
    """Ratio to the highest clock of a monotone smooth curve through noisy values."""
    kernel = ConstantKernel(0.1) * RBF(0.4, (0.15, 3.0)) + WhiteKernel(1e-4, (1e-8, 1e-2))
    rows, target = stretch[:, None], sign * np.log(values)
    mean = GaussianProcessRegressor(kernel).fit(rows, target).predict(rows)
    rising = IsotonicRegression(increasing=True).fit_transform(stretch[::-1], mean[::-1])[::-1]
    return np.asarray(np.exp(sign * (rising - rising[-1])))


def _targets(known: tuple[KnownJob, ...]) -> Floats:
    return np.array([(one.shares.time, one.shares.power) for one in known])


def fit_prior(known: tuple[KnownJob, ...]) -> Prior:
    """Ridge regression of both shares."""
    rows, targets = np.array([Prior.shown(one.counters) for one in known]), _targets(known)
    at, sd, mean = rows.mean(axis=0), rows.std(axis=0), targets.mean(axis=0)
    scaled = (rows - at) / sd
    normal = scaled.T @ scaled + PENALTY * np.eye(scaled.shape[1])
    return Prior(at, sd, mean, np.linalg.solve(normal, scaled.T @ (targets - mean)))


def _mean(known: tuple[KnownJob, ...], _asked: Counters) -> tuple[Floats, Voltage]:
    return _targets(known).mean(axis=0)[None], PUBLIC_VOLTAGE


def _physics(_known: tuple[KnownJob, ...], asked: Counters) -> tuple[Floats, Voltage]:
    return asked.physics()[None], PUBLIC_VOLTAGE


def _prior(known: tuple[KnownJob, ...], asked: Counters) -> tuple[Floats, Voltage]:
    return OtherJobs((), prior=fit_prior(known)).possible(asked), PUBLIC_VOLTAGE


def _weighted(known: tuple[KnownJob, ...], asked: Counters) -> tuple[Floats, Voltage]:
    model = OtherJobs(known, prior=fit_prior(known))
    return model.possible(asked), model.voltage(CARD, 1410.0)


LEARNERS: dict[str, Learner] = {
    "mean of the others": _mean,
    "physics alone": _physics,
    "prior (forest: off)": _prior,
    "forest by its weight (forest: on)": _weighted,
}


def only_nvml(one: KnownJob) -> KnownJob:
    counters = replace(one.counters, sm_ratio=None, tensor_ratio=None, dram_ratio=None)
    return replace(one, counters=counters)


@dataclass(frozen=True, slots=True)
class LowerClock:
    """Of the clock of least predicted energy within a budget: its saving, and the band of it."""

    clock_mhz: float
    saved: float
    low: float
    high: float


def first_saving(
    shares: Floats, voltage: Voltage, clocks_mhz: Floats, budget: float
) -> LowerClock | None:
    """`shares` (1 + errors, 2), the likely ones first; None where no clock saves. The last of
    `clocks_mhz` is the default.
    """
    top_mhz, lower = float(clocks_mhz[-1]), clocks_mhz[:-1]
    time = 1.0 + shares[:, :1] * (top_mhz / lower - 1.0)
    power = shares[:, 1:] + (1.0 - shares[:, 1:]) * voltage.dynamic(lower, top_mhz)
    saved = 1.0 - time * power
    best = int(np.where(time[0] <= 1.0 + budget, saved[0], -np.inf).argmax())
    if time[0, best] > 1.0 + budget or saved[0, best] <= 0.0:
        return None
    likely, around = float(saved[0, best]), saved[:, best]
    around = np.concatenate([around - FORM_HALF, around, around + FORM_HALF])
    low, high = np.quantile(around, [0.5 - NOMINAL / 2.0, 0.5 + NOMINAL / 2.0])
    return LowerClock(float(lower[best]), likely, min(likely, float(low)), max(likely, float(high)))


def errors(one: Application, shares: Floats, voltage: Voltage) -> Floats:
    """Mean absolute errors of time, power and energy over the clocks, in percent."""
    top = one.clocks_mhz[-1]
    lower, time, power = one.clocks_mhz[:-1], one.time[:-1], one.power[:-1]
    slower = 1.0 + shares[0, 0] * (top / lower - 1.0)
    drawn = shares[0, 1] + (1.0 - shares[0, 1]) * voltage.dynamic(lower, top)
    found = np.array([slower / time, drawn / power, slower * drawn / (time * power)])
    return 100.0 * np.abs(found - 1.0).mean(axis=1)


def chosen(
    one: Application, shares: Floats, voltage: Voltage, budget: float
) -> tuple[LowerClock | None, float, float]:
    """The recommendation, and measured: saving and slowdown at its clock."""
    said = first_saving(shares, voltage, one.clocks_mhz, budget)
    if said is None:
        return None, 0.0, 0.0
    at = int(np.abs(one.clocks_mhz - said.clock_mhz).argmin())
    return said, 1.0 - float(one.time[at] * one.power[at]), float(one.time[at]) - 1.0


def table(applications: tuple[Application, ...], title: str) -> Iterator[str]:
    yield f"\n**{title}**: shares and curves\n"
    yield "| learner | time % | power % | energy % | k, rms | static, rms | in its band |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    said = {
        name: [
            learner(
                tuple(other.job for other in applications if other is not one), one.job.counters
            )
            for one in applications
        ]
        for name, learner in LEARNERS.items()
    }
    truth = _targets(tuple(one.job for one in applications))
    for name, shares in said.items():
        off = np.mean(
            [errors(one, *each) for one, each in zip(applications, shares, strict=True)], 0
        )
        rms = np.sqrt(((np.array([each[0] for each, _ in shares]) - truth) ** 2).mean(axis=0))
        cells = [f"{value:.1f}" for value in off] + [f"{value:.2f}" for value in rms]
        yield f"| {name} | {' | '.join(cells)} | {_held(applications, shares)} |"
    yield "\n| learner | budget | predicted % | measured % | points apart | points late | latest |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for name, shares in said.items():
        for budget in BUDGETS:
            rows = [
                chosen(one, *each, budget) for one, each in zip(applications, shares, strict=True)
            ]
            guess = 100.0 * np.array([0.0 if one is None else one.saved for one, _, _ in rows])
            real = 100.0 * np.array([saved for _, saved, _ in rows])
            late = 100.0 * np.array([max(0.0, slower - budget) for _, _, slower in rows])
            yield (
                f"| {name} | {budget:.0%} | {guess.mean():.1f} | {real.mean():.1f} "
                f"| {np.abs(guess - real).mean():.1f} | {late.mean():.1f} | {late.max():.0f} |"
            )


def _held(applications: tuple[Application, ...], shares: list[tuple[Floats, Voltage]]) -> str:
    """Share of recommendations whose measured saving lies in the band; empty without a band."""
    if len(shares[0][0]) == 1:
        return ""
    held = []
    for one, each in zip(applications, shares, strict=True):
        for budget in BUDGETS:
            said, saved, _ = chosen(one, *each, budget)
            if said is not None:
                held.append(said.low <= saved <= said.high)
    return f"{100.0 * np.mean(held):.0f} %"


# -- drawn jobs ----------------------------------------------------------------------------

OTHERS = 8
COUNTER_SD = 0.08  # of memory utilisation beside what does not follow the clock: assumed
CLOCKS_SEEN = 7  # of each: assumed
TIME_SD, POWER_SD = 0.003, 0.008  # of what a window of iterations says: assumed
JOB_SHARES = (0.35, 0.97)  # of the time of other jobs on the card; of `drawn.CLOCK_SHARES`
BUDGET = 0.05
LIFE_S = 150  # of enforcement: at 0.1 to 0.4 s an iteration some 40 to 120 windows
WINDOW = 10  # iterations
JOBS, FITTED = 1000, 8  # whose memory is measured; of them fitted
GOOD = 0.8  # of the best


class DrawnWorld(UnprofiledWorld):
    """A job on a drawn card. Its memory utilisation: what does not follow the clock, and noise."""

    detailed = True

    def __init__(self, seed: int) -> None:
        made = case(seed)
        super().__init__(stages=made.stages, microbatches=made.microbatches)
        noise = Noise(operation=made.jitter_percent / 100.0)
        self.plant = DrawnPlant(made.stages, made.microbatches, noise=noise, seed=seed)
        self.sku = self.plant.skus[0]
        share = self.plant.curve(0, "forward").clock_bound
        noise_ratio = random.Random(f"counter {seed}").gauss(0.0, COUNTER_SD)
        self.memory_ratio = min(1.0, max(0.0, 1.0 - share + noise_ratio))

    def profile(self, _lowest_mhz: int = 0) -> Profile:
        """None: the simulator's profiles are of cards that are sold."""
        return Profile({})

    def _snapshot(self, agent: Agent, uuid: str) -> GpuSnapshot:
        return replace(super()._snapshot(agent, uuid), utilization_memory_ratio=self.memory_ratio)


def others(seed: int) -> tuple[KnownJob, ...]:
    """Measured jobs on the drawn card."""
    dice, noise, found = random.Random(f"others {seed}"), random.Random(f"noise {seed}"), []
    for number in range(OTHERS):
        plant = DrawnPlant(2, 8, seed=seed)
        share = dice.uniform(*JOB_SHARES)
        memory = min(1.0, max(0.0, 1.0 - share + dice.gauss(0.0, COUNTER_SD)))
        sku = plant.skus[0]
        for kind in KINDS:
            curve = replace(plant.curve(0, kind), clock_bound=share)
            top = min(float(sku.clocks_mhz[-1]), curve.cap_mhz)
            lower = [mhz for mhz in sku.clocks_mhz if 0.6 * top < mhz < top]
            clocks = np.array(lower)[
                np.linspace(0, len(lower) - 1, CLOCKS_SEEN).round().astype(int)
            ]
            time = [curve.time_s(mhz) / curve.time_s(top) for mhz in clocks]
            power = [curve.power_w(mhz) / curve.power_w(top) for mhz in clocks]
            time_noise, power_noise = (
                [1.0 + noise.gauss(0.0, sd) for _ in clocks] for sd in (TIME_SD, POWER_SD)
            )
            drawn = curve.power_w(top) / sku.power_limit_w
            counters = Counters(sku.model, top / sku.clocks_mhz[-1], drawn, 1.0, memory, kind=kind)
            job = measured(
                f"{seed} {number}", counters, clocks / top,
                np.multiply(time, time_noise), np.multiply(power, power_noise),
                default_mhz=top, top_mhz=sku.clocks_mhz[-1],
            )  # fmt: skip
            assert job is not None
            found.append(job)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Lived:
    """One job. `plan` is None where nothing was recommended; ratios of its saving and slowdown on
    the plant. Then enforced: shares of the best in iterations 60 to 80 and in the last half,
    windows until GOOD of the best (None: never), windows over and the longest row of them.
    """

    plan: Plan | None
    achieved: float
    slowdown: float
    at_60: float
    at_end: float
    until: int | None
    over: int
    row: int


def lived(seed: int, *, forest: bool) -> Lived:
    """A dry run until there is a plan, then enforcement."""
    world = DrawnWorld(seed)

    def asked(mode: Mode) -> Policy:
        policy = world.unprofiled(mode, budget=BUDGET, digest=mode)
        job = replace(policy.jobs[0], clocks=ClockPolicy(min_dwell_s=5.0))
        return replace(policy, jobs=(job,), predict=PredictPolicy(forest))

    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/controller.db")
        store.keep_learnt(NAME, encoded(others(seed)))
        controller = Controller(world, store, asked("recommend"))
        controller.run(90, until=lambda: planned(controller))
        plan, begun = controller.job.decision, len(world.history)
        controller.source.put(asked("enforce"))
        controller.run(LIFE_S)
        store.close()
    top_mhz = world.sku.clocks_mhz[-1]
    world.plant.noise = Noise(operation=0.0)

    @cache
    def true(*clocks_mhz: int) -> tuple[float, float]:
        made = world.plant.iterate(list(clocks_mhz))
        return sum(stage.energy_j for stage in made.stages), made.own_s

    base_j, base_s = true(*[top_mhz] * world.stages)

    def effect(ran: list[tuple[float, float]]) -> tuple[float, float]:
        """Saving and slowdown of iterations against default clocks."""
        energy_j, time_s = np.mean(ran, axis=0)
        return 1.0 - energy_j / base_j, time_s / base_s - 1.0

    best = search(world.plant, BUDGET).saved_ratio
    ran = [true(*map(clocks.__getitem__, world.uuids)) for _, _, clocks in world.history[begun:]]
    windows = [effect(ran[at : at + WINDOW]) for at in range(0, len(ran) - WINDOW + 1, WINDOW)]
    late = [slower > BUDGET + 0.01 for _, slower in windows]
    rows = [len(list(group)) for is_late, group in groupby(late) if is_late]
    until = (at for at, (saved, _) in enumerate(windows, 1) if saved >= GOOD * best)
    planned_mhz = dict.fromkeys(world.uuids, top_mhz)
    if plan is None or plan.changes_nothing:
        plan = None
    else:
        planned_mhz |= {one.uuid: one.clock_mhz or top_mhz for one in plan.actions}
    return Lived(
        plan,
        *effect([true(*planned_mhz.values())]),
        effect(ran[60:80])[0] / best,
        effect(ran[len(ran) // 2 :])[0] / best,
        next(until, None),
        sum(late),
        max(rows, default=0),
    )


def planned(controller: Controller) -> bool:
    plan = next((job.decision for job in controller.boards[-1].jobs), None)
    return plan is not None and bool(plan.predicted_from)


def drawn_table(jobs: int, first: int) -> Iterator[str]:
    seeds = range(first, first + jobs)
    lives = {used: [lived(seed, forest=used) for seed in seeds] for used in (True, False)}
    yield f"\n**Drawn jobs** (simulated), seeds {first} to {seeds[-1]}, budget {BUDGET:.0%}\n"
    yield (
        "| forest | plans | recommended % | achieved % | points apart | within 2 points "
        "| in the band | slowdown, mean | points over, worst |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for used, found in lives.items():
        rows = [(one, one.plan.forecast) for one in found if one.plan and one.plan.forecast]
        said = np.array([made.saved_ratio for _, made in rows])
        real = np.array([one.achieved for one, _ in rows])
        slow = np.array([one.slowdown for one, _ in rows])
        held = [
            made.band is not None
            and made.band.saved_low_ratio <= one.achieved <= made.band.saved_high_ratio
            for one, made in rows
        ]
        apart = 100.0 * np.abs(said - real)
        yield (
            f"| {'on' if used else 'off'} | {len(rows)} of {jobs} | {100 * said.mean():.1f} "
            f"| {100 * real.mean():.1f} | {apart.mean():.1f} | {100 * (apart <= 2.0).mean():.0f} % "
            f"| {100 * np.mean(held):.0f} % | {100 * slow.mean():+.1f} % "
            f"| {100 * max(0.0, slow.max() - BUDGET):.1f} |"
        )
    yield (
        "\n| forest | of the best at iterations 60 to 80, mean, least | in the last half "
        f"| windows until {GOOD:.0%} of it, median, most | never | windows over | longest row |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for used, found in lives.items():
        shares = [
            f"{100 * statistics.fmean(each):.0f} %, {100 * min(each):.0f} %"
            for each in ([one.at_60 for one in found], [one.at_end for one in found])
        ]
        until = [one.until for one in found if one.until is not None]
        yield (
            f"| {'on' if used else 'off'} | {shares[0]} | {shares[1]} "
            f"| {statistics.median(until):.0f}, {max(until)} | {len(found) - len(until)} "
            f"| {sum(one.over for one in found)} | {max(one.row for one in found)} |"
        )


def memory(jobs: int = JOBS, stages: int = 8) -> float:
    """MiB of all that is kept of predicted jobs, with their clocks asked and each bound met.

    All stages differ in their work. The profiles of the first FITTED jobs are fitted; the others
    hold copies, since a fit takes a second. Predictions keep no forest, and are made without one.
    """
    known = [one for seed in range(KNOWN_KEPT // (2 * OTHERS)) for one in others(seed)]
    forest, prior = OtherJobs(known), OtherJobs(known, learns=False)
    sku = DrawnWorld(1).sku
    gpu = GpuView(GpuDescription("GPU", 0, sku.model, sku.clocks_mhz), "", "", None, 0.0)
    counters, top_mhz = known[0].counters, sku.clocks_mhz[-1]

    def predicted(job: int) -> Prediction:
        works = {
            (stage, kind): DefaultWork(
                sku.model, top_mhz, top_mhz, 0.01 + 1e-4 * stage + 1e-6 * job, 400.0 - stage
            )
            for stage in range(stages)
            for kind in KINDS
        }
        return prediction(prior, DefaultWorks(works, 90.0, True), counters, [gpu])

    fitted = []
    for job in range(FITTED):
        profile = predicted(job).profile(sure=True)
        fitted.append(pickle.dumps((profile, fit_profile("", profile))))
    tracemalloc.start()
    estimator, made = OnlineEstimator({}), []
    for job in range(jobs):
        made.append(predicted(job))
        profile, curves = pickle.loads(fitted[job % FITTED])
        curves = {replace(work, workload=str(job)): curve for work, curve in curves.items()}
        estimator.add_predicted(str(job), profile, curves)
        for work in curves:
            subject = Subject(work.workload, "", work.stage, work.kind)
            for asked in (sku.clocks_mhz, (top_mhz,), sku.clocks_mhz[-2:-1]):
                estimator.predict(subject, asked)
    for number in range(CELLS_MAX):
        subject = Subject(str(number % jobs), f"GPU-{number}", number % stages, "forward")
        for _ in range(READINGS_MAX):
            estimator.learn((Sample(subject, top_mhz, 0.01, 400.0),))
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (kept + len(pickle.dumps((known, forest)))) / 2**20  # trees are not Python's memory


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--first-seed", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    if APPLICATIONS_AT.is_dir():
        applications = read()
        print("\n".join(table(applications, "With DCGM's counters")))
        nvml = tuple(replace(one, job=only_nvml(one.job)) for one in applications)
        print("\n".join(table(nvml, "With NVML's alone")), flush=True)
        print(f"\nThe prior of all: {fit_prior(tuple(one.job for one in nvml))}", flush=True)
    else:
        print(f"no {APPLICATIONS_AT}: the public sweeps are left out")
    print("\n".join(drawn_table(given.jobs, given.first_seed)), flush=True)
    print(f"\nMemory of {JOBS:,} jobs of eight stages: {memory():.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
