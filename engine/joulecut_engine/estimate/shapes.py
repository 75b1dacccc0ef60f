"""How long a layer takes that nobody has run: roofline physics times a random forest.

Physics carries from one shape and card to the next, the forest learns what it leaves over
(which tiles a library picks, how well caches do), from ratios alone: no model or card has a
name here. Attention scores are not part of the layer: their time follows the length of the
sequence rather than the number of tokens, and public measurements of it are missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from joulecut_engine.estimate.estimator import NOMINAL, Floats
from joulecut_engine.estimate.roofline import (
    BYTES_HALF,
    Ceiling,
    Matmul,
    coefficients,
    terms,
)

TREES = 60  # more change the second digit of the error
# Neighbouring token counts repeat each other, so leaves of one learn their noise; with few
# samples there are no neighbours.
LEAF, LEAF_FEW, FEW = 3, 1, 200
FEATURES_SHARE = 0.4  # per split; chosen on the A40 alone, the A100 only confirmed it
SEED = 0


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One decoder layer of a transformer, of which a GPU holds 1 / `tensor_parallel`.

    `tokens` are those of one pass: microbatch times sequence. All at least 1.
    """

    tokens: int
    d_model: int
    heads: int
    kv_heads: int
    d_ffn: int
    gated: bool
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        numbers = (self.tokens, self.d_model, self.heads, self.kv_heads, self.d_ffn)
        if min(*numbers, self.tensor_parallel) < 1:
            raise ValueError(f"every number of {self} must be at least 1")


@dataclass(frozen=True, slots=True)
class LayerSample:
    """The measured time of one layer (projections, MLP, norms) at default clocks."""

    shape: LayerShape
    ceiling: Ceiling
    time_s: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.time_s) and self.time_s > 0.0):
            raise ValueError(f"time {self.time_s} s must be finite and above 0")


@dataclass(frozen=True, slots=True)
class ShapeModel:
    """Fitted; `time_s` answers for any shape on any card."""

    coefficients: Floats
    forest: RandomForestRegressor
    factor: float = 1.0  # of the card at hand, from `calibrated`

    def physics_s(self, shapes: Sequence[LayerShape], ceiling: Ceiling) -> Floats:
        """Without the forest; shape (len(shapes),)."""
        return np.asarray(_terms(shapes, ceiling) @ self.coefficients * self.factor)

    def time_s(self, shapes: Sequence[LayerShape], ceiling: Ceiling) -> Floats:
        """Seconds of each layer; shape (len(shapes),)."""
        bent = np.exp(self.forest.predict(features(shapes, ceiling)))
        return np.asarray(self.physics_s(shapes, ceiling) * bent)

    def calibrated(self, samples: Sequence[LayerSample]) -> "ShapeModel":
        """The same model for a card of which only a few layers were run.

        One factor, the median ratio: with 20 samples, fitting the coefficients anew was no
        better in either direction between the A100 and the A40.
        """
        return replace(self, factor=self.factor * float(np.exp(-np.median(off_by(self, samples)))))


def fit(samples: Sequence[LayerSample]) -> ShapeModel:
    """Physics by least squares, then a forest on log(time / physics).

    Raises ValueError without samples.
    """
    if not samples:
        raise ValueError("no samples to fit")
    time_s = np.array([sample.time_s for sample in samples])
    rows_s, seen = _by_card(samples)
    found = coefficients(rows_s, time_s)
    forest = RandomForestRegressor(
        n_estimators=TREES,
        min_samples_leaf=LEAF if len(samples) > FEW else LEAF_FEW,
        max_features=FEATURES_SHARE,
        random_state=SEED,
    )
    forest.fit(seen, np.log(time_s / (rows_s @ found)))
    return ShapeModel(found, forest)


def band(samples: Sequence[LayerSample], families: Sequence[str]) -> float:
    """Half width, as a logarithm, that holds `NOMINAL` of the layers of a family never seen.

    Conformal by family, because families are what is exchangeable: each in turn is predicted
    from the others, which gives one width that would have held `NOMINAL` of its layers, and
    the widest of them counts (of six families it holds the seventh with 6/7). Left out row
    by row, neighbours would vouch for each other: such bands hold 72-85 % of the next model.
    Raises ValueError with fewer than two families.
    """
    names = list(dict.fromkeys(families))
    if len(names) < 2:
        raise ValueError(f"{len(names)} family: at least two are needed to judge the next one")
    halves = []
    for name in names:
        inside = [s for s, family in zip(samples, families, strict=True) if family == name]
        outside = [s for s, family in zip(samples, families, strict=True) if family != name]
        off = np.abs(off_by(fit(outside), inside))
        halves.append(float(np.quantile(off, NOMINAL, method="higher")))
    return max(halves)


def off_by(model: ShapeModel, samples: Sequence[LayerSample]) -> Floats:
    """log(predicted / measured) of each sample, in their order."""
    found = np.empty(len(samples))
    for ceiling in dict.fromkeys(sample.ceiling for sample in samples):
        places = [i for i, sample in enumerate(samples) if sample.ceiling == ceiling]
        said_s = model.time_s([samples[i].shape for i in places], ceiling)
        found[places] = np.log(said_s / np.array([samples[i].time_s for i in places]))
    return found


def _by_card(samples: Sequence[LayerSample]) -> tuple[Floats, Floats]:
    """Terms and features of all samples, in their order."""
    parts_s, parts, order = [], [], []
    for ceiling in dict.fromkeys(sample.ceiling for sample in samples):
        places = [i for i, sample in enumerate(samples) if sample.ceiling == ceiling]
        shapes = [samples[i].shape for i in places]
        parts_s.append(_terms(shapes, ceiling))
        parts.append(features(shapes, ceiling))
        order += places
    back = np.argsort(order)
    return np.concatenate(parts_s)[back], np.concatenate(parts)[back]


def features(shapes: Sequence[LayerShape], ceiling: Ceiling) -> Floats:
    """What the forest sees, of shape (n, 14): no size of the model itself, no card's name.

    Logarithms of floating-point operations, bytes, intensity, roofline time and tokens;
    how much whole rounds of tiles cost over the roofline, for all and for each of the four
    products; arithmetic over memory time of each.
    """
    matmuls, streamed = _kernels(shapes)
    arithmetic = [one.arithmetic_s(ceiling) for one in matmuls]
    memory = [one.memory_s(ceiling) for one in matmuls]
    rows_s = terms(matmuls, streamed, ceiling)
    flops = np.sum([one.flops for one in matmuls], axis=0)
    moved = np.sum([one.bytes for one in matmuls], axis=0) + streamed
    roofline_s = rows_s[:, 0] + rows_s[:, 4]
    tokens = np.array([float(shape.tokens) for shape in shapes])
    columns = [np.log(flops), np.log(moved), np.log(flops / moved), np.log(roofline_s)]
    columns += [np.log(tokens), (rows_s[:, 1] + rows_s[:, 4]) / roofline_s]
    columns += [
        one.tiled_s(ceiling) / spent for one, spent in zip(matmuls, arithmetic, strict=True)
    ]
    columns += [np.log(a / m) for a, m in zip(arithmetic, memory, strict=True)]
    return np.stack(columns, axis=1)


def _terms(shapes: Sequence[LayerShape], ceiling: Ceiling) -> Floats:
    return terms(*_kernels(shapes), ceiling)


def _kernels(shapes: Sequence[LayerShape]) -> tuple[tuple[Matmul, ...], Floats]:
    """The four matrix products of each layer, and the bytes that the rest streams."""
    table = np.array(
        [(s.tokens, s.d_model, s.heads, s.kv_heads, s.d_ffn, s.tensor_parallel) for s in shapes],
        dtype=np.float64,
    )
    tokens, d_model, heads, kv_heads, d_ffn, split = table.T
    gates = np.array([2.0 if shape.gated else 1.0 for shape in shapes])
    width = d_model / heads
    matmuls = (
        Matmul(tokens, (heads + 2.0 * kv_heads) * width / split, d_model),
        Matmul(tokens, d_model, d_model / split),
        Matmul(tokens, gates * d_ffn / split, d_model),
        Matmul(tokens, d_model, d_ffn / split),
    )
    moved = (
        4.0 * tokens * d_model  # two norms, each reads and writes
        + 2.0 * tokens * (heads + kv_heads) * width / split  # rotary positions
        + (gates + 1.0) * tokens * d_ffn / split  # activation
        + 3.0 * tokens * d_model  # residual sum
    )
    return matmuls, BYTES_HALF * moved
