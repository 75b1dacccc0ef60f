"""Layer times of shapes, lengths and cards never seen, against learners on raw numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from joulecut_engine.estimate import shapes
from joulecut_engine.estimate.estimator import Floats
from joulecut_engine.estimate.shapes import LayerSample
from prediction.scores import PERCENT
from prediction.sweeps import Layer, layers

SEED = 0
PROCESS_ROWS = 400  # a Gaussian process costs their cube
CALIBRATION = 20  # layers run on a new card
DRAWS = 5  # of which few training layers; the mean counts
OTHER = {"A100": "A40", "A40": "A100"}
EXTRAPOLATED_FROM = 1024  # tokens: longer passes are not in the training rows
EVERY_FOURTH = 4


@dataclass(frozen=True, slots=True)
class Off:
    """Absolute errors in percent."""

    mean: float
    median: float
    p90: float

    @classmethod
    def of(cls, logs: Floats) -> "Off":
        percent = PERCENT * np.abs(np.expm1(logs))
        return cls(
            float(percent.mean()), float(np.median(percent)), float(np.percentile(percent, 90))
        )


@dataclass(frozen=True, slots=True)
class Split:
    name: str
    taught: tuple[LayerSample, ...]
    asked: tuple[LayerSample, ...]


def unseen_models(card: str) -> tuple[Split, ...]:
    """Each family of shapes in turn is held out with all its lengths and splits."""
    rows = layers(card)
    return tuple(
        Split(
            f"{family} ({_models(rows, family)})",
            tuple(row.sample for row in rows if row.family != family),
            tuple(row.sample for row in rows if row.family == family),
        )
        for family in dict.fromkeys(row.family for row in rows)
    )


def _models(rows: Sequence[Layer], family: str) -> str:
    names = dict.fromkeys(row.model.split("/")[-1] for row in rows if row.family == family)
    return ", ".join(names)


def unseen_lengths(card: str) -> tuple[Split, Split]:
    """Every fourth number of tokens held out; and all above `EXTRAPOLATED_FROM`."""
    rows = [row.sample for row in layers(card)]
    lengths = sorted({row.shape.tokens for row in rows})
    held = set(lengths[EVERY_FOURTH // 2 :: EVERY_FOURTH])
    return (
        Split(
            "every fourth number of tokens",
            tuple(row for row in rows if row.shape.tokens not in held),
            tuple(row for row in rows if row.shape.tokens in held),
        ),
        Split(
            f"more than {EXTRAPOLATED_FROM} tokens",
            tuple(row for row in rows if row.shape.tokens <= EXTRAPOLATED_FROM),
            tuple(row for row in rows if row.shape.tokens > EXTRAPOLATED_FROM),
        ),
    )


def few_rows(card: str, count: int) -> tuple[Split, ...]:
    """Only `count` layers were run, drawn at random, `DRAWS` times."""
    rows = [row.sample for row in layers(card)]
    return tuple(Split(f"{count} layers run", *_drawn(rows, count, seed)) for seed in range(DRAWS))


def _drawn(
    rows: Sequence[LayerSample], count: int, seed: int
) -> tuple[tuple[LayerSample, ...], tuple[LayerSample, ...]]:
    order = np.random.default_rng(seed).permutation(len(rows))
    chosen = {int(i) for i in order[:count]}
    drawn = tuple(rows[i] for i in sorted(chosen))
    return drawn, tuple(row for i, row in enumerate(rows) if i not in chosen)


def unseen_card(card: str) -> tuple[Off, Off]:
    """Taught on the other card alone; and with `CALIBRATION` layers run on this one."""
    rows = [row.sample for row in layers(card)]
    model = shapes.fit([row.sample for row in layers(OTHER[card])])
    calibrated = []
    for seed in range(DRAWS):
        few, others = _drawn(rows, CALIBRATION, seed)
        calibrated.append(Off.of(shapes.off_by(model.calibrated(few), others)))
    return Off.of(shapes.off_by(model, rows)), mean(calibrated)


def rivals_on_card(card: str) -> dict[str, Off]:
    """The learners on raw numbers, taught on the other card: data-sheet numbers as features."""
    taught = tuple(row.sample for row in layers(OTHER[card]))
    split = Split("", taught, tuple(row.sample for row in layers(card)))
    return {name: Off.of(rival(split, name)) for name in RIVALS}


def ours(split: Split) -> Floats:
    """log(predicted / measured) of what is asked."""
    return shapes.off_by(shapes.fit(split.taught), split.asked)


def physics(split: Split) -> Floats:
    """The roofline with fitted coefficients and no forest."""
    model = shapes.fit(split.taught)
    (ceiling,) = {row.ceiling for row in split.asked}
    said_s = model.physics_s([row.shape for row in split.asked], ceiling)
    return np.log(said_s / np.array([row.time_s for row in split.asked]))


RIVALS = {
    "random forest": lambda: RandomForestRegressor(40, random_state=SEED),
    "gradient boosting": lambda: GradientBoostingRegressor(random_state=SEED),
    "Gaussian process": lambda: GaussianProcessRegressor(
        ConstantKernel() * RBF(np.ones(10)) + WhiteKernel(1e-2),
        normalize_y=True,
        random_state=SEED,
        optimizer=None,
    ),
}


def rival(split: Split, name: str) -> Floats:
    """A learner on the logarithm of time over raw shape and data-sheet numbers."""
    taught = split.taught
    if name == "Gaussian process" and len(taught) > PROCESS_ROWS:
        order = np.random.default_rng(SEED).permutation(len(taught))[:PROCESS_ROWS]
        taught = tuple(taught[i] for i in sorted(order))
    rows, asked = _raw(taught), _raw(split.asked)
    centre, spread = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-9)
    model = RIVALS[name]()
    model.fit((rows - centre) / spread, np.log([row.time_s for row in taught]))
    said = model.predict((asked - centre) / spread)
    return np.asarray(said - np.log([row.time_s for row in split.asked]))


def _raw(samples: Sequence[LayerSample]) -> Floats:
    return np.array(
        [
            (
                row.shape.tokens,
                row.shape.d_model,
                row.shape.heads,
                row.shape.kv_heads,
                row.shape.d_ffn,
                row.shape.gated,
                row.shape.tensor_parallel,
                row.ceiling.flops_per_s / 1e12,
                row.ceiling.bytes_per_s / 1e9,
                row.ceiling.processors,
            )
            for row in samples
        ],
        dtype=np.float64,
    )


def covered(card: str, thinning: int = 1) -> dict[str, tuple[float, float]]:
    """Of each family never seen: percent of layers in the 90 % band, and its half width in percent.

    Model and band know the other families alone. `thinning` keeps every so many rows.
    """
    rows = layers(card)[::thinning]
    found = {}
    for family in dict.fromkeys(row.family for row in rows):
        taught = [row for row in rows if row.family != family]
        samples = [row.sample for row in taught]
        half = shapes.band(samples, [row.family for row in taught])
        asked = [row.sample for row in rows if row.family == family]
        off = shapes.off_by(shapes.fit(samples), asked)
        found[family] = (
            PERCENT * float((np.abs(off) <= half).mean()),
            PERCENT * float(np.expm1(half)),
        )
    return found


def mean(found: Sequence[Off]) -> Off:
    return Off(
        float(np.mean([one.mean for one in found])),
        float(np.mean([one.median for one in found])),
        float(np.mean([one.p90 for one in found])),
    )
