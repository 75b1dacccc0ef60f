"""Phases of a job: stretches of iterations of one shape.

The shape of an iteration is how many operations of each kind a GPU runs: a training step, an
evaluation (forwards alone) and a step of more microbatches differ in it. A job that reports no
operations has one phase. A phase begins once IN_ROW iterations in a row are of its shape, so that a
single odd iteration (a checkpoint) is none. The same stream gives the same phases. Pure.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from joulecut_controller.view import Phase
from joulecut_engine.graph.pipeline import EVALUATION, Pipeline

Busy = Mapping[str, tuple[float, float]]  # kind of operation -> (busy seconds, operations)
FACTOR_MAX = 16.0  # of an iteration; beyond it the report is damaged, or another kind of iteration
IN_ROW = 3  # one odd iteration is a pause, two may be a checkpoint and its upload
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
    """One phase, and the time spent in it."""

    phase: Phase
    spent_s: float = 0.0


class Phases:
    """The phases of one job, newest last."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._now: _Known | None = None
        self._odd: list[str] = []  # shapes of the newest, where not usual

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
            self._enter(shape)
        now = self._now
        assert now is not None
        usual = shape == now.phase.shape
        if usual or not shape:  # an iteration whose operations were lost
            self._odd.clear()
            now.spent_s += length_s
            return usual
        self._odd = [*self._odd, shape][-IN_ROW:]
        if self._odd != [shape] * IN_ROW:
            return False
        self._enter(shape)
        return True

    def _enter(self, shape: str) -> None:
        found = self._known.pop(shape, None) or _Known(self._phase(shape))
        self._known[shape] = found  # newest last
        while len(self._known) > PHASES_MAX:
            del self._known[next(iter(self._known))]
        self._now, self._odd = found, []

    def _phase(self, shape: str) -> Phase:
        """Forwards alone are an evaluation where the job has trained, else what it is there for."""
        if not shape:
            return Phase()
        trained = any(_trains(known.phase.shape) for known in self._known.values())
        return Phase("evaluate" if trained and not _trains(shape) else "train", shape)


def _trains(shape: str) -> bool:
    return any(part.rpartition(" ")[2] in TRAINING for part in shape.split(", "))


def as_run(pipeline: Pipeline, phase: Phase) -> Pipeline:
    """The pipeline with as many microbatches as the phase has forwards, and nothing else where it
    evaluates; as it is where a GPU has several parts of the model.
    """
    count = forwards(phase.shape)
    if pipeline.schedule not in ONE_PART or not count:
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
