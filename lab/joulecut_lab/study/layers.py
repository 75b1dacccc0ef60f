"""Time and power of a layer that was never run, at any clock: data-sheet physics and a forest.

    t(f) = sum of data-sheet times, those of arithmetic stretched by f_max / f
    P(f) = limit * (a * useful work per second * V^2 + b * f * V^2 + c + d * traffic per second)

with coefficients that cannot be negative, V = 1 + s * max(0, f - knee), and a forest on what
is left over. Where P(f) would exceed the card's limit, the layer runs at the clock where it
meets it: so a prediction saturates as the card does. The same coefficients split a measured
card's energy into its parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from sklearn.ensemble import RandomForestRegressor

from joulecut_engine.estimate.card import LIMIT_HELD, Card, find_card
from joulecut_lab.study.roofline import BYTES_HALF, GIGA, TERA, Ceiling, Matmul, terms
from joulecut_lab.study.row import Row
from joulecut_lab.study.scoring import Floats
from joulecut_sim.layer import OPERAND_BYTES, WIDTH_BYTES, Dtype, Shape

BACKWARD = 2.0  # each product twice more: gradients of its input and of its weights


@dataclass(frozen=True, slots=True)
class Demand:
    """One layer's data-sheet times in seconds at the card's highest clock, and its sizes.

    `parts_s` of shape (8,): products at the roofline, the same in whole rounds of tiles,
    their arithmetic, their traffic, streamed bytes, launches; then arithmetic and traffic
    of attention. The first three and attention's arithmetic follow the clock.
    """

    parts_s: Floats
    flops: float
    bytes: float
    peak_flops_per_s: float


FOLLOWS = np.array([True, True, True, False, False, False, True, False])


@lru_cache(maxsize=4096)  # as many layers as any sweep has; rows repeat them at every clock
def _demand(layer: Shape, dtype: Dtype, training: bool, card: Card) -> Demand:
    peak, bandwidth = _peak_tflops(card, dtype) * TERA, card.memory_gb_s * GIGA
    wide = WIDTH_BYTES[dtype]
    # `terms` counts two bytes a number: a bandwidth in numbers of this width corrects it.
    ceiling = Ceiling(peak, bandwidth * BYTES_HALF / OPERAND_BYTES[dtype], card.processors)
    tokens, width, inner = float(layer.tokens), float(layer.d_model), float(layer.d_ffn)
    products = [
        Matmul(tokens, 3.0 * width, width), Matmul(tokens, width, width),
        Matmul(tokens, inner, width), Matmul(tokens, width, inner),
    ]  # fmt: skip
    scores = float(layer.batch * layer.heads) * layer.sequence**2
    # Two norms and two sums go over the width, the activation over the inner width, the
    # softmax over the scores: read and written.
    streamed = wide * (10.0 * tokens * width + 2.0 * tokens * inner + 3.0 * scores)
    attention_flops = 4.0 * scores * layer.d_model / layer.heads
    attention_s = [attention_flops / peak, 4.0 * scores * wide / bandwidth]
    products_again = 1.0 + BACKWARD if training else 1.0
    streamed *= 2.0 if training else 1.0
    # A launch takes a microsecond; its coefficient counts them.
    parts_s = products_again * np.array([*terms(products, ceiling), 0.0, 1e-6, *attention_s])
    parts_s[4] = streamed / bandwidth
    moved = OPERAND_BYTES[dtype] * sum(one.bytes for one in products) / BYTES_HALF
    flops = sum(one.flops for one in products) + attention_flops
    return Demand(parts_s, products_again * flops, products_again * moved + streamed, peak)


def _peak_tflops(card: Card, dtype: Dtype) -> float:
    """Of matrix products; tf32 has half the 16-bit peak, fp8 twice (data sheets)."""
    factors: dict[Dtype, float] = {"tf32": 0.5, "fp8": 2.0}
    return card.single_tflops if dtype == "fp32" else card.half_tflops * factors.get(dtype, 1.0)


@dataclass(frozen=True, slots=True)
class Table:
    """Demands of many rows, as arrays over rows; `speed` is clock over the highest."""

    parts_s: Floats  # (rows, 8), at the highest clock
    flops: Floats
    bytes: Floats
    peak: Floats
    ratios: Floats  # (rows, 5): the card's, see `Card.ratios`
    limit_w: Floats
    clock_max_mhz: Floats
    asked_mhz: Floats
    tokens: Floats
    sizes: Floats  # (rows, 4): d_model, heads, d_ffn, sequence, as they are


def table(rows: Sequence[Row], cards: Sequence[Card]) -> Table:
    """`cards` are the data sheets of the rows' cards, one each."""
    found = [
        _demand(row.layer, row.dtype, row.which == "training", card)
        for row, card in zip(rows, cards, strict=True)
    ]
    return Table(
        parts_s=np.array([one.parts_s for one in found]),
        flops=np.array([one.flops for one in found]),
        bytes=np.array([one.bytes for one in found]),
        peak=np.array([one.peak_flops_per_s for one in found]),
        ratios=np.array([card.ratios() for card in cards]),
        limit_w=np.array([card.power_limit_w for card in cards]),
        clock_max_mhz=np.array([float(card.clock_max_mhz) for card in cards]),
        asked_mhz=np.array([row.nominal_mhz for row in rows]),
        tokens=np.array([float(row.layer.tokens) for row in rows]),
        sizes=np.array([(r.d_model, r.heads, r.d_ffn, r.sequence) for r in rows], dtype=np.float64),
    )


Places = NDArray[np.intp]

TREES, LEAF, SEED = 40, 2, 0
FEATURES_SHARE = 1.0 / 3.0  # per split; usual for regression, and it matters little
LEFT_MAX = 0.7  # of a logarithm: twice or half; a row further off teaches nothing
KNEES = np.linspace(0.45, 0.85, 9)  # of the highest clock; 0.51 (Hopper) to 0.79 (A100) are known
SLOPES = np.linspace(0.2, 2.2, 11)  # relative voltage per relative clock; 0.8 to 1.6 are known
GRID = np.linspace(0.2, 1.0, 41)  # of the highest clock, where the limit is looked for
ROWS_MIN = 16  # fewer rows than two numbers each for eight terms fit anything

FEATURES = (
    "clock over highest", "clock over knee", "log flops", "log bytes", "intensity", "peak ratio",
    "tokens", "tiles over roofline", "traffic share", "attention share", "power over limit",
    "d_model", "heads", "d_ffn", "sequence", "card: clock", "card: limit", "card: memory",
    "card: half", "card: single",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Power:
    knee: float  # of the highest clock
    slope: float
    coefficients: Floats  # (4,): useful, clock, constant, traffic


class Layers:
    """Learns from rows of cards with a known data sheet; predicts any layer on such a card."""

    name = "physics + forest"

    def __init__(self) -> None:
        self._time: Floats = np.zeros(len(FOLLOWS))
        self._power = _Power(0.7, 1.0, np.zeros(4))
        self._cap_w: dict[str, float] = {}
        self._forest: RandomForestRegressor | None = None

    def learn(self, rows: Sequence[Row]) -> None:
        """Rows of unknown cards are passed over; fewer than `ROWS_MIN` teach nothing."""
        known = [(row, card) for row in rows if (card := find_card(row.card)) is not None]
        if len(known) < ROWS_MIN:
            return
        kept, cards = [row for row, _ in known], [card for _, card in known]
        self._cap_w = _caps(kept, cards)
        seen = table(kept, cards)
        # What a card really ran at teaches; only predictions must find it themselves.
        speed = np.array([row.clock_mhz for row in kept]) / seen.clock_max_mhz
        time_s = np.array([row.time_s for row in kept])
        power_w = np.array([row.power_w for row in kept])
        # Coefficients that are never negative, best in relative squares.
        terms = _time_terms(seen, speed) / time_s[:, None]
        self._time = np.asarray(nnls(terms, np.ones_like(time_s))[0])
        self._power = _fit_power(seen, speed, time_s, power_w)
        predicted = self._time_s(seen, speed), self._power_w(seen, speed, time_s)
        left = np.log(np.stack([time_s / predicted[0], power_w / predicted[1]], axis=1))
        self._forest = RandomForestRegressor(
            n_estimators=TREES, min_samples_leaf=LEAF, max_features=FEATURES_SHARE,
            random_state=SEED, n_jobs=1,
        )  # fmt: skip
        self._forest.fit(self._features(seen, speed), np.clip(left, -LEFT_MAX, LEFT_MAX))

    def predict(self, rows: Sequence[Row]) -> tuple[Floats, Floats]:
        time_s, power_w = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        known = [
            (i, card) for i, row in enumerate(rows) if (card := find_card(row.card)) is not None
        ]
        if self._forest is None or not known:
            return time_s, power_w
        places, cards = [i for i, _ in known], [card for _, card in known]
        kept = [rows[i] for i in places]
        asked = table(kept, cards)
        pairs = zip(kept, cards, strict=True)
        cap_w = np.array([self._cap_w.get(row.card, card.power_limit_w) for row, card in pairs])
        speed = asked.asked_mhz / asked.clock_max_mhz
        found_s, found_w = self._at(asked, speed)
        over = np.flatnonzero(found_w > cap_w)
        if over.size:
            speed[over] = self._capped(asked, over, speed[over], cap_w[over])
            found_s, found_w = self._at(asked, speed)
        time_s[places], power_w[places] = found_s, np.minimum(found_w, cap_w)
        return time_s, power_w

    def importances(self) -> tuple[tuple[str, float], ...]:
        """Of what the physics leave over; largest first, they sum up to 1."""
        if self._forest is None:
            return ()
        found = zip(FEATURES, map(float, self._forest.feature_importances_), strict=True)
        return tuple(sorted(found, key=lambda one: -one[1]))

    def parts(self, rows: Sequence[Row]) -> Floats | None:
        """Shares of useful switching, clock and overhead, leakage and other constant power,
        memory traffic in each row's power, of shape (rows, 4). An estimate: the constant
        holds leakage and uncore alike, which no sweep over clocks separates."""
        known = [card for row in rows if (card := find_card(row.card)) is not None]
        if self._forest is None or len(known) != len(rows):
            return None
        seen = table(rows, known)
        speed = np.array([row.clock_mhz for row in rows]) / seen.clock_max_mhz
        time_s = np.array([row.time_s for row in rows])
        terms = _power_terms(seen, speed, time_s, self._power.knee, self._power.slope)
        each = terms * self._power.coefficients
        return np.asarray(each / each.sum(axis=1, keepdims=True))

    def _time_s(self, seen: Table, speed: Floats) -> Floats:
        return np.asarray(_time_terms(seen, speed) @ self._time)

    def _power_w(self, seen: Table, speed: Floats, time_s: Floats) -> Floats:
        terms = _power_terms(seen, speed, time_s, self._power.knee, self._power.slope)
        return np.asarray(terms @ self._power.coefficients)

    def _at(self, asked: Table, speed: Floats) -> tuple[Floats, Floats]:
        assert self._forest is not None
        left = self._forest.predict(self._features(asked, speed))
        time_s = self._time_s(asked, speed) * np.exp(left[:, 0])
        return time_s, self._power_w(asked, speed, time_s) * np.exp(left[:, 1])

    def _capped(self, asked: Table, over: Places, speed: Floats, cap_w: Floats) -> Floats:
        """The relative clock at which each of these rows meets its limit."""
        some = _taken(asked, np.repeat(over, GRID.size))
        _, power_w = self._at(some, np.tile(GRID, over.size))
        # A forest has steps; power does not fall with the clock.
        rising = np.maximum.accumulate(power_w.reshape(over.size, GRID.size), axis=1)
        found = [np.interp(cap, one, GRID) for cap, one in zip(cap_w, rising, strict=True)]
        return np.minimum(speed, found)

    def _features(self, seen: Table, speed: Floats) -> Floats:
        terms = _time_terms(seen, speed)
        total = terms[:, 0] + terms[:, 4] + terms[:, 6]
        time_s = np.maximum(self._time_s(seen, speed), 1e-12)
        half = np.exp(seen.ratios[:, 3]) * 312e12  # ratios are to an A100's 312 TFLOP/s
        columns = [speed, speed / self._power.knee, np.log(seen.flops), np.log(seen.bytes)]
        columns += [np.log(seen.flops / seen.bytes), np.log(seen.peak / half)]
        columns += [np.log(seen.tokens), terms[:, 1] / terms[:, 0]]
        columns += [(terms[:, 3] + terms[:, 4]) / total, (terms[:, 6] + terms[:, 7]) / total]
        columns += [self._power_w(seen, speed, time_s) / seen.limit_w]
        return np.concatenate([np.stack(columns, axis=1), seen.sizes, seen.ratios], axis=1)


def _taken(seen: Table, places: Places) -> Table:
    return Table(*(getattr(seen, name)[places] for name in Table.__dataclass_fields__))


def _caps(rows: Sequence[Row], cards: Sequence[Card]) -> dict[str, float]:
    """The limit of each card: the data sheet's, unless it was seen above it."""
    found: dict[str, float] = {}
    limits = {row.card: card.power_limit_w for row, card in zip(rows, cards, strict=True)}
    for row in rows:
        if row.power_w > LIMIT_HELD * limits[row.card]:
            found[row.card] = max(found.get(row.card, 0.0), row.power_w)
    return limits | found


def _time_terms(seen: Table, speed: Floats) -> Floats:
    """(rows, 8): what follows the clock is stretched; the roofline where it binds."""
    stretched = np.where(FOLLOWS, seen.parts_s / speed[:, None], seen.parts_s)
    # A product held by memory does not follow the clock: no longer than either allows.
    roofline = np.maximum(stretched[:, 2], seen.parts_s[:, 0])
    tiles = np.maximum(stretched[:, 2] * seen.parts_s[:, 1] / seen.parts_s[:, 0], roofline)
    return np.column_stack([roofline, tiles, stretched[:, 2:]])


def _power_terms(seen: Table, speed: Floats, time_s: Floats, knee: float, slope: float) -> Floats:
    """(rows, 4) watts: useful, clock, constant, traffic, each with a coefficient of about 1."""
    volts = 1.0 + slope * np.maximum(0.0, speed - knee)
    bandwidth = np.exp(seen.ratios[:, 2]) * 2039e9  # ratios are to an A100's 2,039 GB/s
    each = (volts**2 * seen.flops / time_s / seen.peak, volts**2 * speed, np.ones_like(speed),
            seen.bytes / time_s / bandwidth)  # fmt: skip
    return np.asarray(np.stack(each, axis=1) * seen.limit_w[:, None])


def _fit_power(seen: Table, speed: Floats, time_s: Floats, power_w: Floats) -> _Power:
    best, found = np.inf, _Power(0.7, 1.0, np.ones(4))
    for knee in KNEES:
        for slope in SLOPES:
            terms = _power_terms(seen, speed, time_s, float(knee), float(slope))
            coefficients, misfit = nnls(terms / power_w[:, None], np.ones_like(power_w))
            if misfit < best:
                best, found = misfit, _Power(float(knee), float(slope), coefficients)
    return found
