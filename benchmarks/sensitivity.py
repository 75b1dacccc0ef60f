"""What counters at default clocks say of a job at lower ones, before any probe.

    python benchmarks/sensitivity.py

Each of the 21 applications on an A100 (Ali et al., read in place) is left out in turn, and every
learner predicts it from its counters at the highest clock, taught by the others: the share of the
time that follows the clock and the share of the power that does not. Errors are those of time,
power and energy at all clocks above 60 % of the highest; then the clock of least predicted energy
within a budget is judged by its measured saving. Curves are smoothed, because single sweeps have
1 to 5 % noise. Public data is required; without it the exit status is 1.
"""

import csv
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from prediction.sweeps import APPLICATIONS_AT
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from joulecut_engine.estimate.other_jobs import (
    LOWEST_RATIO,
    Counters,
    FirstSaving,
    KnownJob,
    OtherJobs,
    first_saving,
    measured_shares,
)

Floats = NDArray[np.float64]
CARD = "NVIDIA A100-SXM4-80GB"
LIMIT_W = 500.0  # the highest power seen is 476 W
BUDGETS = (0.02, 0.05, 0.1)
SHORT_NAMES = {"mem_copy_utilization": "MCUTL"}  # in one of the files
# Shares of the application left out: predicted, and (with errors of others) possible.
Learner = Callable[[tuple[KnownJob, ...], Counters], Floats]


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
    ratios = (clocks[lower, None] / clocks[-1], time[lower], power[lower])
    shares = measured_shares(*ratios, CARD, clocks[-1])
    assert shares is not None
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
    return Application(KnownJob(name, counters, shares), clocks[kept], time[kept], power[kept])


def _smooth(stretch: Floats, values: list[float], sign: int) -> Floats:
    """Ratio to the highest clock of a monotone smooth curve through noisy values."""
    kernel = ConstantKernel(0.1) * RBF(0.4, (0.15, 3.0)) + WhiteKernel(1e-4, (1e-8, 1e-2))
    rows, target = stretch[:, None], sign * np.log(values)
    mean = GaussianProcessRegressor(kernel).fit(rows, target).predict(rows)
    rising = IsotonicRegression(increasing=True).fit_transform(stretch[::-1], mean[::-1])[::-1]
    return np.asarray(np.exp(sign * (rising - rising[-1])))


def _targets(known: tuple[KnownJob, ...]) -> Floats:
    return np.array([(one.shares.time, one.shares.power) for one in known])


def _physics(_known: tuple[KnownJob, ...], asked: Counters) -> Floats:
    return OtherJobs(()).possible(asked)


def _mean(known: tuple[KnownJob, ...], _asked: Counters) -> Floats:
    return _targets(known).mean(axis=0)[None]


def _learnt(make: Callable[[], object]) -> Learner:
    def predict(known: tuple[KnownJob, ...], asked: Counters) -> Floats:
        rows = np.array([one.counters.features() for one in known])
        model = make().fit(rows, _targets(known))  # type: ignore[attr-defined]
        return np.clip(model.predict(asked.features()[None]), 0.0, 1.0)

    return predict


def _ours(known: tuple[KnownJob, ...], asked: Counters) -> Floats:
    return OtherJobs(known).possible(asked)


LEARNERS: dict[str, Learner] = {
    "mean of the others": _mean,
    "physics alone": _physics,
    "ridge": _learnt(lambda: make_pipeline(StandardScaler(), Ridge(3.0))),
    "forest alone": _learnt(
        lambda: RandomForestRegressor(100, min_samples_leaf=2, max_features=0.5, random_state=0)
    ),
    "Joulecut": _ours,
}


def only_nvml(one: KnownJob) -> KnownJob:
    counters = replace(one.counters, sm_ratio=None, tensor_ratio=None, dram_ratio=None)
    return replace(one, counters=counters)


def errors(one: Application, shares: Floats) -> Floats:
    """Mean absolute errors of time, power and energy over the clocks, in percent."""
    top = one.clocks_mhz[-1]
    found = []
    for clock, time, power in zip(one.clocks_mhz[:-1], one.time, one.power, strict=False):
        said = first_saving(shares[:1], CARD, top, [int(clock), int(top)], 9.0)
        slower = shares[0, 0] * (top / clock - 1.0) + 1.0
        saved = 0.0 if said is None else said.saved.mean
        drawn = (1.0 - saved) / slower
        found.append((slower / time, drawn / power, slower * drawn / (time * power)))
    return 100.0 * np.abs(np.array(found) - 1.0).mean(axis=0)


def chosen(
    one: Application, shares: Floats, budget: float
) -> tuple[FirstSaving | None, float, float]:
    """The recommendation, and measured: saving and slowdown at its clock."""
    top = one.clocks_mhz[-1]
    said = first_saving(shares, CARD, top, [int(mhz) for mhz in one.clocks_mhz], budget)
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
            [errors(one, each) for one, each in zip(applications, shares, strict=True)], 0
        )
        rms = np.sqrt(((np.array([each[0] for each in shares]) - truth) ** 2).mean(axis=0))
        cells = [f"{value:.1f}" for value in off] + [f"{value:.2f}" for value in rms]
        yield f"| {name} | {' | '.join(cells)} | {_held(applications, shares)} |"
    yield "\n| learner | budget | predicted % | measured % | points apart | points late | latest |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for name, shares in said.items():
        for budget in BUDGETS:
            rows = [
                chosen(one, each, budget) for one, each in zip(applications, shares, strict=True)
            ]
            guess = 100.0 * np.array([0.0 if one is None else one.saved.mean for one, _, _ in rows])
            real = 100.0 * np.array([saved for _, saved, _ in rows])
            late = 100.0 * np.array([max(0.0, slower - budget) for _, _, slower in rows])
            yield (
                f"| {name} | {budget:.0%} | {guess.mean():.1f} | {real.mean():.1f} "
                f"| {np.abs(guess - real).mean():.1f} | {late.mean():.1f} | {late.max():.0f} |"
            )


def _held(applications: tuple[Application, ...], shares: list[Floats]) -> str:
    """Share of recommendations whose measured saving lies in the band; empty without a band."""
    if len(shares[0]) == 1:
        return ""
    held = []
    for one, each in zip(applications, shares, strict=True):
        for budget in BUDGETS:
            said, saved, _ = chosen(one, each, budget)
            if said is not None:
                held.append(said.saved.low <= saved <= said.saved.high)
    return f"{100.0 * np.mean(held):.0f} %"


def main() -> int:
    if not APPLICATIONS_AT.is_dir():
        print(f"no {APPLICATIONS_AT}: nothing to judge", file=sys.stderr)
        return 1
    warnings.simplefilter("ignore", ConvergenceWarning)
    applications = read()
    print("\n".join(table(applications, "With DCGM's counters")))
    nvml = tuple(replace(one, job=only_nvml(one.job)) for one in applications)
    print("\n".join(table(nvml, "With NVML's alone")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
