"""The predictors a study puts to the test, behind one small face.

`Curves` is the product's own (physics, forest and own measurements of each layer); for a
layer never measured, `Layers` goes from its shape; `PlainForest` is what people try first.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from joulecut_engine.estimate.card import named
from joulecut_engine.estimate.estimator import WorkShape
from joulecut_engine.estimate.evidence import Evidence, Work
from joulecut_engine.estimate.forest import Fitted, fit_work
from joulecut_engine.estimate.physics import Sweep
from joulecut_lab.study.row import Row
from joulecut_lab.study.scores import Floats
from joulecut_sim.layer import DTYPES

TREES = 60
SEED = 0  # same rows, same numbers
# Numbers of the layer as an engineer writes them, and the clock: nothing derived.
PLAIN_FEATURES = ("clock", "d_model", "heads", "d_ffn", "sequence", "batch", "data type", "card")


class Learner(Protocol):
    """Learns from rows, predicts others at their asked clock."""

    name: str

    def learn(self, rows: Sequence[Row]) -> None: ...

    def predict(self, rows: Sequence[Row]) -> tuple[Floats, Floats]:
        """Seconds and watts of each row, from its layer and asked clock alone; not a number
        where nothing can be said."""
        ...


def clock_mhz(row: Row) -> float:
    """What was asked; where nothing was, what was seen."""
    return float(row.clock_asked_mhz or row.clock_mhz)


class Curves:
    """`predict.forest.fit_work`, one piece of evidence per layer and data type."""

    name = "physics + forest"

    def __init__(self) -> None:
        self._fitted: Fitted = Fitted()
        self._works: dict[tuple[object, ...], Work] = {}

    def learn(self, rows: Sequence[Row]) -> None:
        curves: dict[tuple[object, ...], list[Row]] = {}
        for row in rows:
            curves.setdefault(row.setting, []).append(row)
        highest: dict[str, float] = {}
        for row in rows:
            highest[row.card] = max(highest.get(row.card, 0.0), clock_mhz(row))
        pieces = [_evidence(curve, highest) for curve in curves.values()]
        self._works = {setting: one.work for setting, one in zip(curves, pieces, strict=True)}
        self._fitted = fit_work(pieces)

    def predict(self, rows: Sequence[Row]) -> tuple[Floats, Floats]:
        time_s, power_w = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        curves: dict[tuple[object, ...], list[int]] = {}
        for i, row in enumerate(rows):
            curves.setdefault(row.setting, []).append(i)
        for setting, places in curves.items():
            work = self._works.get(setting)
            curve = self._fitted.curve(work) if work else None
            if curve is None:
                continue
            clocks = np.array([clock_mhz(rows[i]) for i in places])
            time_s[places], power_w[places] = curve.time_s(clocks), curve.power_w(clocks)
        return time_s, power_w


def _evidence(curve: Sequence[Row], highest_mhz: dict[str, float]) -> Evidence:
    first = curve[0]
    by_clock = {clock_mhz(row): row for row in curve}  # one uuid's row where several were swept
    ordered = [by_clock[clock] for clock in sorted(by_clock)]
    return Evidence(
        work=Work(" ".join(map(str, first.setting)), 0, "forward"),
        sweep=Sweep(
            clocks_mhz=np.array(sorted(by_clock)),
            time_s=np.array([row.time_s for row in ordered]),
            power_w=np.array([row.power_w for row in ordered]),
        ),
        card=named(first.card),
        clock_max_mhz=highest_mhz[first.card],
        shape=WorkShape(
            flops=first.flops,
            sequence=first.sequence,
            width=first.d_model,
            heads=first.heads,
            inner=first.d_ffn,
        ),
    )


class PlainForest:
    """A forest on the layer's own numbers: good on rows between others, lost elsewhere."""

    name = "plain forest"

    def __init__(self) -> None:
        self._cards: dict[str, int] = {}
        self._forest = RandomForestRegressor(n_estimators=TREES, random_state=SEED, n_jobs=1)

    def learn(self, rows: Sequence[Row]) -> None:
        self._cards = {name: i for i, name in enumerate(sorted({row.card for row in rows}))}
        truth = np.array([(row.time_s, row.power_w) for row in rows])
        self._forest.fit(self._features(rows), np.log(truth))

    def predict(self, rows: Sequence[Row]) -> tuple[Floats, Floats]:
        said = np.exp(self._forest.predict(self._features(rows)))
        return said[:, 0], said[:, 1]

    def importances(self) -> tuple[tuple[str, float], ...]:
        """Largest first; they sum up to 1."""
        found = zip(PLAIN_FEATURES, map(float, self._forest.feature_importances_), strict=True)
        return tuple(sorted(found, key=lambda one: -one[1]))

    def _features(self, rows: Sequence[Row]) -> Floats:
        unknown = len(self._cards)
        return np.array(
            [
                (
                    clock_mhz(row),
                    row.d_model,
                    row.heads,
                    row.d_ffn,
                    row.sequence,
                    row.batch,
                    DTYPES.index(row.dtype),
                    self._cards.get(row.card, unknown),
                )
                for row in rows
            ],
            dtype=np.float64,
        )
