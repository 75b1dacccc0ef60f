"""What default clocks say about new work, and how many probes a prior from other work saves.

    python benchmarks/fleet_prior.py

Each of the 21 applications on an A100 (Ali et al., read in place) is left out in turn. Learners
predict from what it shows at default clocks, taught by the others: k, the share of the time that
follows the clock, and the static share of the power. Then it is probed on its smoothed curve: the
cheapest clock whose upper 95 % band keeps the budget, and whose worst case (time grows as much as
the clock falls) exceeds it by at most `dare`, until 90 % of the possible saving is measured.
Windows have 0.07 % noise. Public data is required; without it the exit status is 1.
"""

import csv
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from prediction.sweeps import APPLICATIONS_AT
from sklearn.ensemble import RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

Floats = NDArray[np.float64]
NVML = ("power_usage", "gpu_utilization", "mem_copy_utilization")
COUNTERS = ("gr_engine_active", "sm_active", "sm_occupancy", "dram_active")
COUNTERS += ("fp64_active", "fp32_active", "fp16_active")
OTHER_NAMES = {"mem_copy_utilization": "MCUTL"}
FITTED_ABOVE = 0.6  # of the highest clock: where budgets of up to 10 % end
KNEE, SLOPE = 0.77, 1.4  # of the card's voltage, as shares of its highest clock
NOISE, POWER_NOISE, SHAPE_SD = 0.0007, 0.002, 0.01
PROBES_MAX, SEEDS = 15, 3
PHYSICS = (np.array([0.7, 0.0, 0.3]), np.diag([0.3, 0.03, 0.12]) ** 2)  # of GPUs in general
LEARNERS: dict[str, Callable[[], object] | None] = {
    "fleet mean": None,
    "random forest": lambda: RandomForestRegressor(
        100, min_samples_leaf=2, max_features=0.5, random_state=0
    ),
    "ridge": lambda: make_pipeline(StandardScaler(), Ridge(3.0)),
    "3 nearest": lambda: make_pipeline(StandardScaler(), KNeighborsRegressor(3)),
}


@dataclass(frozen=True, slots=True)
class Fleet:
    """Smoothed ratios to default clocks (applications, clocks), and features at default clocks."""

    names: tuple[str, ...]
    clocks_mhz: Floats
    time: Floats
    power: Floats
    features: dict[str, Floats]

    @property
    def stretch(self) -> Floats:
        return np.asarray(self.clocks_mhz[-1] / self.clocks_mhz - 1.0)

    @property
    def swing(self) -> Floats:
        ratio = self.clocks_mhz / self.clocks_mhz[-1]
        found = ratio * (1.0 + SLOPE * np.maximum(0.0, ratio - KNEE)) ** 2
        return np.asarray(found / found[-1])

    def numbers(self) -> Floats:
        """k, curvature in 1/f and static share of every application."""
        kept = self.clocks_mhz > FITTED_ABOVE * self.clocks_mhz[-1]
        basis = np.column_stack([self.stretch, self.stretch**2])[kept]
        shape = np.linalg.lstsq(basis, self.time[:, kept].T - 1.0, rcond=None)[0].T
        fall = 1.0 - self.swing[kept]
        static = ((self.power[:, kept] - self.swing[kept]) @ fall) / (fall @ fall)
        return np.column_stack([shape, static])


def read() -> Fleet:
    rows: dict[str, list[dict[str, str]]] = {}
    for path in sorted(APPLICATIONS_AT.glob("*-dcgm.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                rows.setdefault(row["application"], []).append(row)
    names = tuple(sorted(rows))
    for name in names:
        rows[name].sort(key=lambda row: float(row["sm_app_clock"]))
    clocks = np.array([float(row["sm_app_clock"]) for row in rows[names[0]]])
    stretch = clocks[-1] / clocks - 1.0
    times = [_smooth(stretch, [float(r["run_time"]) for r in rows[name]], 1) for name in names]
    powers = [_smooth(stretch, [float(r["power_usage"]) for r in rows[name]], -1) for name in names]

    def shown(columns: tuple[str, ...]) -> Floats:
        last = [rows[name][-1] for name in names]
        return np.array(
            [[float(row.get(c) or row[OTHER_NAMES.get(c, c)]) for c in columns] for row in last]
        )

    features = {"NVML": shown(NVML), "counters": shown(NVML + COUNTERS)}
    return Fleet(names, clocks, np.array(times), np.array(powers), features)


def _smooth(stretch: Floats, values: list[float], sign: int) -> Floats:
    """Ratio to the highest clock of a monotone smooth curve through noisy values."""
    kernel = ConstantKernel(0.1) * RBF(0.4, (0.15, 3.0)) + WhiteKernel(1e-4, (1e-8, 1e-2))
    rows, target = stretch[:, None], sign * np.log(values)
    mean = GaussianProcessRegressor(kernel).fit(rows, target).predict(rows)
    rising = IsotonicRegression(increasing=True).fit_transform(stretch[::-1], mean[::-1])[::-1]
    return np.asarray(np.exp(sign * (rising - rising[-1])))


def predicted(learner: str, seen: Floats, known: Floats, asked: Floats) -> Floats:
    make = LEARNERS[learner]
    if make is None:
        return np.asarray(known.mean(axis=0))
    scale = known.std(axis=0)
    return np.asarray(make().fit(seen, known / scale).predict(asked[None])[0] * scale)  # type: ignore[attr-defined]


def prior(learner: str, features: Floats, numbers: Floats, left: int) -> tuple[Floats, Floats]:
    """Mean for one left out, and the covariance of errors among the others, left out in turn."""
    others = [i for i in range(len(numbers)) if i != left]
    missed = []
    for one in others:
        rest = [i for i in others if i != one]
        mean = predicted(learner, features[rest], numbers[rest], features[one])
        missed.append(numbers[one] - mean)
    errors = np.array(missed)
    mean = predicted(learner, features[others], numbers[others], features[left])
    return mean, errors.T @ errors / len(errors)


def probes_taken(
    fleet: Fleet, one: int, known: tuple[Floats, Floats], budget: float, dare: float, seed: int
) -> tuple[float, list[float]]:
    """Probes until 90 % of the saving (infinite: never), and points over the budget of each."""
    dice = np.random.default_rng((one, seed))
    clocks, stretch, swing = fleet.clocks_mhz, fleet.stretch, fleet.swing
    basis = np.column_stack([stretch, stretch**2])
    time, power = fleet.time[one], fleet.power[one]
    energy = time * power
    possible = 1.0 - energy[time <= 1.0 + budget].min()
    at, times, powers, over = [len(clocks) - 1], [1.0], [1.0], list[float]()
    for count in range(1, PROBES_MAX + 1):
        mean, cov, static = known[0][:2], known[1][:2, :2], known[0][2]
        if count > 1:
            rows = basis[at[1:]]
            noise = np.diag(2.0 * NOISE**2 + (SHAPE_SD * stretch[at[1:]]) ** 2)
            gain = cov @ rows.T @ np.linalg.inv(rows @ cov @ rows.T + noise)
            mean, cov = (
                mean + gain @ (np.array(times[1:]) - 1.0 - rows @ mean),
                cov - gain @ rows @ cov,
            )
            fall, precision = 1.0 - swing[at[1:]], 1.0 / known[1][2, 2]
            pull = (fall * (np.array(powers[1:]) - swing[at[1:]])).sum() / POWER_NOISE**2
            static = (static * precision + pull) / (precision + (fall**2).sum() / POWER_NOISE**2)
        likely = np.maximum(1.0, 1.0 + basis @ mean)
        apart = SHAPE_SD * np.abs(stretch - stretch[min(at)])
        sd = np.sqrt(np.einsum("ij,jk,ik->i", basis, cov, basis) + apart**2)
        worst = np.min([t * np.maximum(1.0, clocks[i] / clocks) for i, t in zip(at, times)], axis=0)  # noqa: B905
        tried = (np.minimum(likely + 1.645 * sd, worst) <= 1.0 + budget) & (
            worst <= 1.0 + budget + dare
        )
        cost = np.where(tried, likely * (static + (1.0 - static) * swing), np.inf)
        cost[at] = np.inf
        chosen = int(cost.argmin())
        best = min(t * p for t, p in zip(times, powers) if t <= 1.001 + budget)  # noqa: B905
        if not cost[chosen] < best * 0.999:
            return np.inf, over
        at.append(chosen)
        times.append(time[chosen] + dice.normal(0.0, NOISE))
        powers.append(power[chosen] + dice.normal(0.0, POWER_NOISE))
        over.append(100.0 * (time[chosen] - 1.0 - budget))
        if over[-1] <= 0.05 and 1.0 - energy[chosen] >= 0.9 * possible:
            return count, over
    return np.inf, over


def main() -> int:
    if not APPLICATIONS_AT.is_dir():
        print(f"no {APPLICATIONS_AT}: nothing to judge", file=sys.stderr)
        return 1
    fleet = read()
    numbers, every = fleet.numbers(), range(len(fleet.names))
    print("| prior | features | k error | static error |\n| --- | --- | ---: | ---: |")
    missed = numbers - PHYSICS[0]
    priors = {"physics alone": [PHYSICS for _ in every]}
    print(f"| physics alone | none | {_rms(missed)[0]:.2f} | {_rms(missed)[2]:.2f} |")
    for shown, features in fleet.features.items():
        for learner in LEARNERS:
            found = [prior(learner, features, numbers, i) for i in every]
            missed = numbers - np.array([mean for mean, _ in found])
            print(f"| {learner} | {shown} | {_rms(missed)[0]:.2f} | {_rms(missed)[2]:.2f} |")
            priors[f"{learner}, {shown}"] = found
    print("\n| prior | budget | dare | probes, mean | never | late by over 0.5 points | worst |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, found in priors.items():
        for budget in (0.05, 0.1):
            for dare in (0.0045, 0.02, 9.0):
                runs = [
                    probes_taken(fleet, i, found[i], budget, dare, seed)
                    for seed in range(SEEDS)
                    for i in every
                ]
                taken = np.array([count for count, _ in runs])
                over = np.concatenate([points for _, points in runs])
                bound = "none" if dare > 1.0 else f"{100 * dare:g} points"
                print(
                    f"| {name} | {budget:.0%} | {bound} "
                    f"| {np.minimum(taken, PROBES_MAX).mean():.1f} | {np.isinf(taken).mean():.0%} "
                    f"| {(over > 0.5).mean():.1%} | {max(0.0, over.max()):.1f} |"
                )
    return 0


def _rms(missed: Floats) -> Floats:
    return np.asarray(np.sqrt((missed**2).mean(axis=0)))


if __name__ == "__main__":
    sys.exit(main())
