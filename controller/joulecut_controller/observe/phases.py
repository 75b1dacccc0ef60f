"""Phases of a job: stretches of iterations of one shape.

The shape of an iteration is how many operations of each kind a GPU runs: a training step, an
evaluation (forwards alone) and a step of more microbatches differ in it. A job that reports no
operations shows another phase by iterations of another length. A phase begins once IN_ROW
iterations in a row are of its shape, so that a single odd iteration (a checkpoint) is none. The
same stream gives the same phases. Pure and bounded.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from joulecut_controller.chunk import robust
from joulecut_controller.view import Phase
from joulecut_engine.graph.pipeline import EVALUATION, Pipeline

Busy = Mapping[str, tuple[float, float]]  # kind of operation -> (busy seconds, operations)
FACTOR_MAX = 16.0  # of an iteration; beyond it the report is damaged, or another kind of iteration
IN_ROW = 3  # one odd iteration is a pause, two may be a checkpoint and its upload
LENGTHS = 32  # iterations whose lengths make the usual one
# No clock that a budget allows makes an iteration this much longer or shorter, and usual noise of
# single iterations stays within SPREADS deviations.
LENGTH_RATIO, SPREADS = 1.25, 4.0
LENGTHS_IN_ROW = 5  # lengths scatter, shapes do not
ALIKE_RATIO = 1.15  # a known phase of about this length is the same one
PHASES_MAX = 8  # of one job; the one not seen for longest is forgotten
ONE_PART = ("1f1b", "gpipe")  # schedules with one part of the model per GPU
TRAINING = frozenset(("backward", "input", "weight"))  # an evaluation runs none of them


def shape_of(operations: Mapping[str, Busy]) -> str:
    """The most operations of each kind that a GPU ran, as text: `24 backward, 24 forward`; empty
    where no GPU reports operations.
    """
    most: dict[str, float] = {}
    for busy in operations.values():
        for kind, (_, count) in busy.items():
            most[kind] = max(most.get(kind, 0.0), count)
    return ", ".join(f"{count:g} {kind}" for kind, count in sorted(most.items()) if count > 0.0)


@dataclass(slots=True)
class _Known:
    """One phase: its usual iterations, and the time spent in it."""

    phase: Phase
    lengths_s: deque[float] = field(default_factory=lambda: deque(maxlen=LENGTHS))
    spent_s: float = 0.0

    def fits(self, length_s: float, ratio: float) -> bool:
        """Whether an iteration of this length is a usual one."""
        if len(self.lengths_s) < LENGTHS_IN_ROW:
            return True
        usual_s, sd_s = robust(self.lengths_s)
        most = max(math.log(ratio), SPREADS * sd_s / usual_s)
        return abs(math.log(length_s / usual_s)) <= most


class Phases:
    """The phases of one job, newest last."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._now: _Known | None = None
        self._odd: list[tuple[str, float]] = []  # shape and length of the newest, where not usual
        self._lengths = 0  # phases told apart by length so far

    @property
    def now(self) -> Phase:
        return self._now.phase if self._now else Phase()

    @property
    def spent_s(self) -> tuple[tuple[str, float], ...]:
        """Seconds of iterations by kind of phase."""
        spent: dict[str, float] = {}
        for known in self._known.values():
            spent[known.phase.kind] = spent.get(known.phase.kind, 0.0) + known.spent_s
        return tuple(sorted(spent.items()))

    def take(self, operations: Mapping[str, Busy], length_s: float) -> bool:
        """Adds an iteration; whether it is one of the present phase."""
        shape = shape_of(operations)
        if self._now is None:
            self._enter(shape, [length_s])
        now = self._now
        assert now is not None
        usual = shape == now.phase.shape if shape else now.fits(length_s, LENGTH_RATIO)
        if usual or (not shape and now.phase.shape):  # an iteration whose operations were lost
            self._odd.clear()
            now.lengths_s.append(length_s)
            now.spent_s += length_s
            return usual
        self._odd.append((shape, length_s))
        needed = IN_ROW if shape else LENGTHS_IN_ROW
        newest = self._odd[-needed:]
        self._odd = newest
        if len(newest) < needed or any(one != shape for one, _ in newest):
            return False
        lengths_s = [one for _, one in newest]
        if not shape and max(lengths_s) > ALIKE_RATIO**2 * min(lengths_s):
            return False  # they are not of one length either
        self._enter(shape, lengths_s)
        return True

    def _enter(self, shape: str, lengths_s: list[float]) -> None:
        found = self._of_shape(shape) if shape else self._of_length(statistics.median(lengths_s))
        if found is None:
            self._lengths += not shape
            found = _Known(self._phase(shape))
        key = found.phase.key
        self._known.pop(key, None)
        self._known[key] = found  # newest last
        while len(self._known) > PHASES_MAX:
            del self._known[next(iter(self._known))]
        found.lengths_s.extend(lengths_s)
        self._now, self._odd = found, []

    def _of_shape(self, shape: str) -> _Known | None:
        return next((one for one in self._known.values() if one.phase.shape == shape), None)

    def _of_length(self, length_s: float) -> _Known | None:
        near = [
            (abs(math.log(length_s / statistics.median(one.lengths_s))), one)
            for one in self._known.values()
            if not one.phase.shape and one.lengths_s
        ]
        apart, found = min(near, key=lambda pair: pair[0], default=(math.inf, None))
        return found if apart <= math.log(ALIKE_RATIO) else None

    def _phase(self, shape: str) -> Phase:
        """Forwards alone are an evaluation where the job has trained, else what it is there for."""
        if not shape:
            return Phase("train") if self._lengths == 1 else Phase("other", length=self._lengths)
        trained = any(_trains(known.phase.shape) for known in self._known.values())
        return Phase("evaluate" if trained and not _trains(shape) else "train", shape)


def _trains(shape: str) -> bool:
    return any(part.rpartition(" ")[2] in TRAINING for part in shape.split(", "))


def as_run(pipeline: Pipeline, phase: Phase) -> Pipeline:
    """The pipeline with as many microbatches as the phase has forwards, and nothing else where it
    evaluates; as it is where a GPU has several parts of the model, or the work is unknown.
    """
    count = forwards(phase.shape)
    if phase.kind not in ("train", "evaluate") or pipeline.schedule not in ONE_PART or not count:
        return pipeline
    if phase.kind == "train":
        return replace(pipeline, microbatches=count)
    return replace(
        pipeline,
        schedule=EVALUATION,
        microbatches=count,
        data_collective=False,
        optimizer=False,
    )


def forwards(shape: str) -> int:
    """Forwards of one GPU; 0 where the shape has none."""
    for part in filter(None, shape.split(", ")):
        count, kind = part.split(" ", 1)
        if kind == "forward":
            return round(float(count))
    return 0


class InferredWork:
    """How long an iteration's operations take beside the first ones at the same clocks.

    A longer sequence lengthens the operations of every GPU alike. Times divided by that factor vary
    less, so that fewer of them tell the effect of a clock (covariate adjustment: Deng et al., WSDM
    2013). A wrong report is a wrong factor: breaker and savings take times as measured.
    """

    def __init__(self) -> None:
        self._first: dict[str, Busy] = {}

    def factor(self, operations: Mapping[str, Busy]) -> float | None:
        """The median over GPUs of the time of their operations over that of the same operations in
        the first iteration; None where no GPU reports operations.
        """
        known = {uuid: busy for uuid, busy in operations.items() if busy}
        if not known:
            return None
        for uuid, busy in known.items():
            self._first.setdefault(uuid, busy)
        factors = [_over(busy, self._first[uuid]) for uuid, busy in known.items()]
        usable = [factor for factor in factors if 1.0 / FACTOR_MAX < factor < FACTOR_MAX]
        return statistics.median(usable) if usable else None


def _over(busy: Busy, first: Busy) -> float:
    """Mean times of single operations, weighted as in the first iteration; 0 where none is in both.

    How many operations ran is counted work and cancels out.
    """
    now_s = first_s = 0.0
    for kind, (seconds, count) in busy.items():
        usual_s, usual = first.get(kind, (0.0, 0.0))
        if count > 0.0 and usual > 0.0:
            now_s += usual * seconds / count
            first_s += usual_s
    return now_s / first_s if first_s > 0.0 else 0.0
