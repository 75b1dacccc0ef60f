"""The product's estimator and what others would have used, behind one signature.

`taught` are whole sweeps of other work, `probed` the few clocks known of the work asked
about; each learner answers at the clocks asked. Rivals are scikit-learn's, with its defaults
but for a seed; where other work is taught they learn ratios to the highest clock, which suits
them better than absolute values of work that they have never seen.
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from joulecut_engine.estimate.evidence import Evidence
from joulecut_engine.estimate.fitting import fit as fit_physics
from joulecut_engine.estimate.physics import Floats
from joulecut_lab.sweep_fit import fit_judged
from prediction.scores import Predicted

Learner = Callable[[Sequence[Evidence], Sequence[Evidence], Sequence[Floats]], list[Predicted]]

SEED = 0
SCATTER = 0.0  # no GPU of its own: the sweep is the only one


def product(
    taught: Sequence[Evidence], probed: Sequence[Evidence], clocks_mhz: Sequence[Floats]
) -> list[Predicted]:
    """`fit_judged`, what `joulecut fit` calls."""
    curves = fit_judged((*taught, *probed))
    said = []
    for one, asked in zip(probed, clocks_mhz, strict=True):
        curve = curves[one.work]
        band_s = curve.band_s(asked, SCATTER)
        said.append(Predicted(curve.time_s(asked), curve.power_w(asked), band_s))
    return said


def physics(
    taught: Sequence[Evidence],  # noqa: ARG001  physics know no other work
    probed: Sequence[Evidence],
    clocks_mhz: Sequence[Floats],
) -> list[Predicted]:
    """The form alone, of the probed work together."""
    curves = fit_physics([one.sweep for one in probed])
    return [
        Predicted(curve.time_s(asked), curve.power_w(asked))
        for curve, asked in zip(curves, clocks_mhz, strict=True)
    ]


def forest(
    taught: Sequence[Evidence], probed: Sequence[Evidence], clocks_mhz: Sequence[Floats]
) -> list[Predicted]:
    return _learnt(lambda: RandomForestRegressor(random_state=SEED), taught, probed, clocks_mhz)


def boosting(
    taught: Sequence[Evidence], probed: Sequence[Evidence], clocks_mhz: Sequence[Floats]
) -> list[Predicted]:
    return _learnt(lambda: GradientBoostingRegressor(random_state=SEED), taught, probed, clocks_mhz)


def process(
    taught: Sequence[Evidence], probed: Sequence[Evidence], clocks_mhz: Sequence[Floats]
) -> list[Predicted]:
    """A Gaussian process: of each curve alone, or of ratios where other work is known."""
    if taught:
        return _learnt(_process, taught, probed, clocks_mhz)
    said = []
    for one, asked in zip(probed, clocks_mhz, strict=True):
        rows = one.sweep.clocks_mhz[:, None] / one.top_mhz
        guesses = []
        for target in (one.sweep.time_s, one.sweep.power_w):
            model = _process()
            _fit(model, rows, np.log(target))
            guesses.append(np.exp(model.predict(asked[:, None] / one.top_mhz)))
        said.append(Predicted(*guesses))
    return said


def _process() -> GaussianProcessRegressor:
    kernel = ConstantKernel() * RBF(0.3) + WhiteKernel(1e-3, (1e-8, 1.0))
    return GaussianProcessRegressor(kernel, normalize_y=True, random_state=SEED)


def _fit(model: object, rows: Floats, target: Floats) -> None:
    with warnings.catch_warnings():  # a length at the edge of its range is still a model
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(rows, target)


def _learnt(
    make: Callable[[], object],
    taught: Sequence[Evidence],
    probed: Sequence[Evidence],
    clocks_mhz: Sequence[Floats],
) -> list[Predicted]:
    """Absolute values over clock, stage and kind; ratios to the highest clock where taught."""
    everything = (*taught, *probed)
    ratios = bool(taught)
    rows = np.concatenate([_features(one, one.sweep.clocks_mhz, ratios) for one in everything])
    targets = [
        np.concatenate([getattr(one.sweep, name) / _scale(one, name, ratios) for one in everything])
        for name in ("time_s", "power_w")
    ]
    models = [make(), make()]
    for model, target in zip(models, targets, strict=True):
        _fit(model, rows, target)
    said = []
    for one, asked in zip(probed, clocks_mhz, strict=True):
        seen = _features(one, asked, ratios)
        guesses = [
            model.predict(seen) * _scale(one, name, ratios)
            for model, name in zip(models, ("time_s", "power_w"), strict=True)
        ]
        said.append(Predicted(*guesses))
    return said


def _scale(one: Evidence, name: str, ratios: bool) -> float:
    return float(getattr(one.sweep, name)[-1]) if ratios else 1.0


def _features(one: Evidence, clocks_mhz: Floats, ratios: bool) -> Floats:
    clock = clocks_mhz / one.top_mhz if ratios else clocks_mhz
    kind = 1.0 if one.work.kind == "backward" else 0.0
    same = np.ones_like(clock)
    return np.column_stack([clock, kind * same, one.work.stage * same])


LEARNERS: dict[str, Learner] = {
    "random forest": forest,
    "gradient boosting": boosting,
    "Gaussian process": process,
    "physics alone": physics,
    "Joulecut": product,
}
