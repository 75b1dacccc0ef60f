"""Applications seen only at the highest clock: counters, one power probe, nothing else."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor, GradientBoostingRegressor, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from joulecut_engine.estimate import application
from joulecut_engine.estimate.application import ApplicationModel
from joulecut_engine.estimate.estimator import Floats
from prediction.scores import PERCENT, percent_off
from prediction.sweeps import Application, applications

SEED = 0
PROCESS_EVERY = 6  # clocks; a Gaussian process costs the cube of its rows
Curves = tuple[Floats, Floats]  # time over that at the highest clock, watts
Asked = Callable[[Sequence[Application], Application], Curves]


@dataclass(frozen=True, slots=True)
class Off:
    """Of one application: mean absolute error in percent, and all errors of the energy."""

    name: str
    time: float
    power: float
    energy: float
    energies: Floats


def left_out(learner: Asked) -> tuple[Off, ...]:
    """Every application predicted from all others."""
    everything = applications()
    return tuple(
        _off(one, learner([other for other in everything if other is not one], one))
        for one in everything
    )


def _off(one: Application, said: Curves) -> Off:
    sweep = one.swept.sweep
    ratio, power_w = said
    real = sweep.time_s / sweep.time_s[-1]
    energies = PERCENT * np.abs(ratio * power_w / (real * sweep.power_w) - 1.0)
    time, power = percent_off(ratio, real), percent_off(power_w, sweep.power_w)
    return Off(one.name, time, power, float(energies.mean()), energies)


@cache
def _model(names: tuple[str, ...]) -> ApplicationModel:
    """The product's, fitted once for both learners that use it."""
    return application.fit([one.swept for one in applications() if one.name in names])


def ours(others: Sequence[Application], one: Application) -> Curves:
    model = _model(tuple(other.name for other in others))
    sweep = one.swept.sweep
    return (
        model.time_ratio(one.swept.counters, sweep.clocks_mhz),
        model.power_w(one.swept.counters, float(sweep.power_w[-1]), sweep.clocks_mhz),
    )


def typical(others: Sequence[Application], one: Application) -> Curves:
    """Physics without counters: shares and static power as the median of the others."""
    model = _model(tuple(other.name for other in others))
    sweep = one.swept.sweep
    typical_ratio = np.median(
        [other.swept.sweep.time_s / other.swept.sweep.time_s[-1] for other in others], axis=0
    )
    return typical_ratio, model.physics_w(float(sweep.power_w[-1]), sweep.clocks_mhz)


def plain(make: Callable[[], object], every: int = 1) -> Asked:
    """A learner on ratios to the highest clock, over counters, power probe and clock."""

    def asked(others: Sequence[Application], one: Application) -> Curves:
        rows = np.concatenate([_rows(other)[::every] for other in others])
        said = []
        for target in ("time_s", "power_w"):
            model = make()
            known = [getattr(other.swept.sweep, target) for other in others]
            model.fit(rows, np.concatenate([np.log(one / one[-1])[::every] for one in known]))
            said.append(np.exp(model.predict(_rows(one))))
        return said[0], said[1] * float(one.swept.sweep.power_w[-1])

    return asked


def _rows(one: Application) -> Floats:
    sweep, counters = one.swept.sweep, one.swept.counters
    row = (*counters.row, float(np.log(sweep.power_w[-1])))
    ratio = sweep.clocks_mhz / sweep.clocks_mhz[-1]
    return np.column_stack([np.tile(row, (ratio.size, 1)), ratio])


def learners() -> Iterator[tuple[str, Asked]]:
    kernel = ConstantKernel() * RBF(np.ones(6)) + WhiteKernel(1e-3)
    yield "random forest", plain(lambda: RandomForestRegressor(random_state=SEED))
    yield "extra trees", plain(lambda: ExtraTreesRegressor(random_state=SEED))
    yield "gradient boosting", plain(lambda: GradientBoostingRegressor(random_state=SEED))
    yield (
        "Gaussian process",
        plain(
            lambda: GaussianProcessRegressor(kernel, optimizer=None, random_state=SEED),
            PROCESS_EVERY,
        ),
    )
    yield "physics alone, no counters", typical
    yield "Joulecut", ours


def medians(found: Sequence[Off]) -> tuple[float, float, float]:
    """Median over applications of the error of time, power and energy."""
    return (
        float(np.median([one.time for one in found])),
        float(np.median([one.power for one in found])),
        float(np.median([one.energy for one in found])),
    )


def means(found: Sequence[Off]) -> tuple[float, float, float]:
    return (
        float(np.mean([one.time for one in found])),
        float(np.mean([one.power for one in found])),
        float(np.mean([one.energy for one in found])),
    )


def pooled_energy(found: Sequence[Off]) -> float:
    """Median over all applications and clocks."""
    return float(np.median(np.concatenate([one.energies for one in found])))
