"""The predictors under test and their scores over every split.

`Curves` is the product's estimator (physics and measurements of the layer itself),
`PlainForest` is the common baseline.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecut_engine.estimate.card import find_card
from joulecut_engine.estimate.evidence import Evidence, Work
from joulecut_engine.estimate.physics import Sweep
from joulecut_lab.study.row import Row, curves
from joulecut_lab.study.scoring import (
    TARGETS,
    Choices,
    Floats,
    Score,
    Split,
    by_curve,
    choices,
    score,
    splits,
    targets,
)
from joulecut_lab.sweep_fit import JudgedCurve, fit_judged
from joulecut_sim.layer import DTYPES

TREES = 60
SEED = 0  # same rows, same numbers
# Numbers of the layer as an engineer writes them, and the clock: nothing derived.
PLAIN_FEATURES = ("clock", "d_model", "heads", "d_ffn", "sequence", "batch", "data type", "card")


class Curves:
    """`fit_judged`, one piece of evidence per layer and data type."""

    name = "physics"

    def __init__(self) -> None:
        self._curves: dict[Work, JudgedCurve] = {}
        self._works: dict[tuple[object, ...], Work] = {}

    def learn(self, rows: Sequence[Row]) -> None:
        found = curves(rows)
        highest: dict[str, float] = {}
        for row in rows:
            highest[row.card] = max(highest.get(row.card, 0.0), row.nominal_mhz)
        pieces = [_evidence(curve, highest) for curve in found.values()]
        self._works = {setting: one.work for setting, one in zip(found, pieces, strict=True)}
        self._curves = fit_judged(pieces)

    def predict(self, rows: Sequence[Row]) -> tuple[Floats, Floats]:
        """Seconds and watts of each row; not a number where nothing can be said."""
        time_s, power_w = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        for places in by_curve(rows):
            work = self._works.get(rows[places[0]].setting)
            curve = self._curves.get(work) if work else None
            if curve is None:
                continue
            clocks = np.array([rows[i].nominal_mhz for i in places])
            time_s[places], power_w[places] = curve.time_s(clocks), curve.power_w(clocks)
        return time_s, power_w


def _evidence(curve: Sequence[Row], highest_mhz: dict[str, float]) -> Evidence:
    first = curve[0]
    by_clock = {row.nominal_mhz: row for row in curve}  # one uuid's row where several were swept
    ordered = [by_clock[clock] for clock in sorted(by_clock)]
    work = Work(" ".join(map(str, first.setting)), 0, "forward")
    times = np.array([row.time_s for row in ordered])
    sweep = Sweep(np.array(sorted(by_clock)), times, np.array([row.power_w for row in ordered]))
    return Evidence(work, sweep, find_card(first.card), highest_mhz[first.card])


def _forest() -> Any:
    from sklearn.ensemble import RandomForestRegressor  # 2 s: a table that is refused needs none

    return RandomForestRegressor(n_estimators=TREES, random_state=SEED, n_jobs=1)


class PlainForest:
    """A forest on the layer's own numbers: good on rows between others, lost elsewhere."""

    name = "plain forest"

    def __init__(self) -> None:
        self._cards: dict[str, int] = {}
        self._forest = _forest()

    def learn(self, rows: Sequence[Row]) -> None:
        self._cards = {name: i for i, name in enumerate(sorted({row.card for row in rows}))}
        truth = np.array([(row.time_s, row.power_w) for row in rows])
        self._forest.fit(self._features(rows), np.log(truth))

    def predict(self, rows: Sequence[Row]) -> tuple[Floats, Floats]:
        said = np.exp(self._forest.predict(self._features(rows)))
        return said[:, 0], said[:, 1]

    def importances(self, rows: Sequence[Row]) -> dict[str, dict[str, float]]:
        """By target, of a forest that learns it alone from these rows; each sums up to 1."""
        self._cards = {name: i for i, name in enumerate(sorted({row.card for row in rows}))}
        found = {}
        for target, truth in targets(rows).items():
            one = _forest()
            one.fit(self._features(rows), np.log(truth))
            found[target] = dict(zip(PLAIN_FEATURES, map(float, one.feature_importances_),
                                     strict=True))  # fmt: skip
        return found

    def _features(self, rows: Sequence[Row]) -> Floats:
        unknown = len(self._cards)
        return np.array(
            [
                (row.nominal_mhz, row.d_model, row.heads, row.d_ffn, row.sequence, row.batch,
                 DTYPES.index(row.dtype), self._cards.get(row.card, unknown))
                for row in rows
            ],
            dtype=np.float64,
        )  # fmt: skip


OURS = Curves.name


@dataclass(frozen=True, slots=True)
class Result:
    """One predictor under one split. `silent` rows it could say nothing of; `time_s` and
    `power_w` are its answers for all rows, not a number where a row was not judged. Without
    any answer (`judged` is 0) there are no scores.
    """

    split: Split
    predictor: str
    judged: int
    silent: int
    scores: dict[str, Score]
    choices: Choices | None
    time_s: Floats
    power_w: Floats

    @property
    def silence(self) -> str:
        """One line where it said nothing of some rows, else empty."""
        if not self.silent:
            return ""
        asked = self.judged + self.silent
        return (
            f"{self.split.name}: {self.predictor} says nothing of {self.silent} of {asked} rows "
            "(no other row of their layer teaches)"
        )


def evaluate(
    rows: Sequence[Row],
    seed: int,
    only: Collection[str] = (),
    predictors: Sequence[type[Curves | PlainForest]] = (Curves, PlainForest),
) -> list[Result]:
    """Our predictor and a plain forest, by split, all or those named; deterministic."""
    found = []
    for split in splits(rows, seed):
        if only and split.name not in only:
            continue
        found += [_result(rows, split, make) for make in predictors]
    return found


def _result(rows: Sequence[Row], split: Split, make: type[Curves | PlainForest]) -> Result:
    time_s, power_w = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    judged = {i for fold in split.folds for i in fold.judge}
    # A choice is among all clocks of a curve, also those that taught it.
    whole_s, whole_w = time_s.copy(), power_w.copy()
    for fold in split.folds:
        learner = make()
        learner.learn([rows[i] for i in fold.teach])
        places = list(fold.judge)
        time_s[places], power_w[places] = learner.predict([rows[i] for i in places])
        settings = {rows[i].setting for i in places}
        beside = [i for i in fold.teach if i not in judged and rows[i].setting in settings]
        if beside:
            whole_s[beside], whole_w[beside] = learner.predict([rows[i] for i in beside])
    said = np.isfinite(time_s) & np.isfinite(power_w)
    places = [int(i) for i in np.flatnonzero(said)]
    whole_s[places], whole_w[places] = time_s[places], power_w[places]
    known = [int(i) for i in np.flatnonzero(np.isfinite(whole_s))]
    truth = targets([rows[i] for i in places])
    answers = {"power": power_w, "time": time_s, "energy": time_s * power_w}
    return Result(
        split=split,
        predictor=make.name,
        judged=len(places),
        silent=len(judged) - len(places),
        scores={t: score(truth[t], answers[t][places]) for t in TARGETS} if places else {},
        choices=choices([rows[i] for i in known], whole_s[known], whole_w[known]),
        time_s=time_s,
        power_w=power_w,
    )


def by_clock(rows: Sequence[Row], result: Result) -> dict[float, tuple[float, float]]:
    """By clock asked, ascending, of the judged rows: mean errors of time and energy, fractions."""
    errors: dict[float, list[tuple[float, float]]] = {}
    for row, time_s, power_w in zip(rows, result.time_s, result.power_w, strict=True):
        if np.isfinite(time_s) and np.isfinite(power_w):
            pair = abs(time_s / row.time_s - 1.0), abs(time_s * power_w / row.energy_j - 1.0)
            errors.setdefault(row.nominal_mhz, []).append(pair)
    return {
        clock: (float(np.mean([a for a, _ in some])), float(np.mean([b for _, b in some])))
        for clock, some in sorted(errors.items())
    }
