"""What was measured of one job without a profile, and the advice that follows from it.

The notebook is the whole memory: everything else is computed from it again, so that a
controller that starts anew in the middle of learning goes on with the same numbers. It is
bounded, refuses what cannot be true, and starts over where the job is no longer the one that
was measured. Pure: values in, values out.
"""

import json
import math
from dataclasses import asdict, dataclass, replace

from joulecut_controller.learn.advice import Advice
from joulecut_controller.learn.evidence import Facts
from joulecut_controller.learn.probing import advise
from joulecut_controller.learn.rate_cap import capped_mhz
from joulecut_controller.learn.rate_model import RateModel
from joulecut_controller.learn.rate_paths import Paths
from joulecut_controller.learn.rate_window import Reading

READINGS_MAX = 96  # distinct settings; a job of 8 stages is learnt in some 40
ITERATIONS_MAX = 800  # of one setting: later windows still move its mean by a sixteenth ...
STDERR_ENOUGH = 0.0005  # ... or as many as tell its mean so well; a hundredth of a usual budget
ITERATIONS_MIN = 8  # fewer give no standard deviation worth the name
# A window at clocks measured before that is off by more is another job, or another machine.
MOVED_RATIO = 0.015
MOVED_STDERRS = 5.0
VERSION = 1

# A window lasts 50 iterations; of slow jobs fewer, so that learning takes minutes and not hours.
WINDOW_ITERATIONS = 50
WINDOW_ITERATIONS_MIN = 12
WINDOW_S = 12.0


def window_iterations(iteration_s: float) -> int:
    """How many iterations a window has, of a job whose iteration takes that many seconds."""
    fit = int(WINDOW_S / iteration_s) if iteration_s > 0.0 else WINDOW_ITERATIONS
    return max(WINDOW_ITERATIONS_MIN, min(WINDOW_ITERATIONS, fit))


@dataclass(frozen=True, slots=True)
class Notebook:
    """Readings of one job in one `shape` (pipeline, GPUs), one per setting, oldest first."""

    shape: str = ""
    readings: tuple[Reading, ...] = ()
    refused: int = 0  # windows that could not be true
    restarts: int = 0  # how often the job turned out to be another

    def noted(self, reading: Reading) -> tuple["Notebook", str]:
        """With one more window; the second is why it was refused or what it overturned."""
        complaint = _complaint(reading)
        if complaint:
            return replace(self, refused=self.refused + 1), f"window refused: {complaint}"
        old = next((r for r in self.readings if r.clocks_mhz == reading.clocks_mhz), None)
        if old is not None and bool(old.busy_s) == bool(reading.busy_s):
            moved = reading.time_s / old.time_s - 1.0
            doubt = math.hypot(old.stderr_ratio, reading.stderr_ratio)
            if abs(moved) > max(MOVED_RATIO, MOVED_STDERRS * doubt):
                # The first reading is the baseline: it is either this one or to be measured again.
                again = (reading,) if old is self.readings[0] else ()
                new = replace(self, readings=again, restarts=self.restarts + 1)
                return new, (
                    f"an iteration takes {moved:+.1%} of what it took at the same clocks: what "
                    "was learnt no longer holds, learning anew"
                )
            reading = _merged(old, reading)
        kept = [r for r in self.readings if r.clocks_mhz != reading.clocks_mhz]
        if kept and bool(kept[0].busy_s) != bool(reading.busy_s):
            if reading.clocks_mhz != self.readings[0].clocks_mhz:
                return replace(self, readings=()), "what the job tells has changed: learning anew"
            kept = []  # the job began, or ceased, to tell its operations
        if len(kept) >= READINGS_MAX:
            del kept[1]  # the first one is the baseline
        where = next((i for i, r in enumerate(self.readings) if r is old), len(kept))
        kept.insert(min(where, len(kept)), reading)
        return replace(self, readings=tuple(kept)), ""

    def state(self) -> str:
        """Everything, as text for a store."""
        return json.dumps({"version": VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def restored(cls, text: str, shape: str) -> "Notebook":
        """From `state()`; an empty one where the text is of another shape, or damaged."""
        try:
            held = json.loads(text)
            if held["version"] != VERSION or held["shape"] != shape:
                return cls(shape)
            readings = tuple(_reading(one) for one in held["readings"])
            made = cls(shape, readings[:READINGS_MAX], int(held["refused"]), int(held["restarts"]))
        except (ValueError, KeyError, TypeError):
            return cls(shape)
        return cls(shape) if any(_complaint(reading) for reading in made.readings) else made


class Prober:
    """Turns a notebook into advice; keeps the last fit, which is dear. Not thread-safe."""

    def __init__(self) -> None:
        self._paths: tuple[object, Paths] | None = None
        self._fitted: tuple[object, RateModel] | None = None
        self._advised: tuple[object, Advice] | None = None

    def advise(self, facts: Facts, notebook: Notebook) -> Advice:
        """Raises ValueError where the pipeline cannot be laid out."""
        asked = (facts, notebook.readings)
        if self._advised is None or self._advised[0] != asked:
            model = self._model(facts, notebook.readings) if notebook.readings else None
            self._advised = (asked, advise(facts, notebook.readings, model))
        return self._advised[1]

    def _model(self, facts: Facts, readings: tuple[Reading, ...]) -> RateModel:
        told = facts.ground
        if self._paths is None or self._paths[0] != told.pipeline:
            self._paths = (told.pipeline, Paths(told.pipeline))
        ground = replace(told, default_mhz=capped_mhz(told.default_mhz, readings, facts.alike))
        if self._fitted is None or self._fitted[0] != (ground, readings):
            self._fitted = ((ground, readings), RateModel(ground, readings, self._paths[1]))
        return self._fitted[1]


def _complaint(reading: Reading) -> str:
    """What cannot be true of a window; empty where nothing is wrong."""
    numbers = [reading.time_s, *reading.energy_j, *(s for each in reading.busy_s for s in each)]
    stages = len(reading.clocks_mhz)
    if not all(math.isfinite(n) and n > 0.0 for n in numbers):
        return "a time or an energy is no number above 0"
    spreads = (reading.time_sd_s, reading.operation_sd_ratio or 0.0)
    if not all(math.isfinite(spread) and spread >= 0.0 for spread in spreads):
        return "its spread is no number"
    if reading.iterations < ITERATIONS_MIN:
        return f"only {reading.iterations} iterations"
    if len(reading.energy_j) != stages or (reading.busy_s and len(reading.busy_s) != stages):
        return "it does not cover every stage"
    if min(reading.clocks_mhz, default=0) <= 0:
        return "a clock is unknown"
    return ""


def _merged(old: Reading, new: Reading) -> Reading:
    """Both windows as one, each weighing as many iterations as it has."""
    total = old.iterations + new.iterations
    share = new.iterations / total

    def mean(a: float, b: float) -> float:
        return a + share * (b - a)

    time_s = mean(old.time_s, new.time_s)
    sd_s = math.sqrt(mean(old.time_sd_s**2, new.time_sd_s**2))
    enough = math.ceil((sd_s / time_s / STDERR_ENOUGH) ** 2)
    spreads = old.operation_sd_ratio, new.operation_sd_ratio
    told = [spread for spread in spreads if spread is not None]
    return Reading(
        new.clocks_mhz,
        min(total, max(ITERATIONS_MAX, enough)),
        time_s,
        sd_s,
        tuple(map(mean, old.energy_j, new.energy_j)),
        tuple(tuple(map(mean, a, b)) for a, b in zip(old.busy_s, new.busy_s, strict=True)),
        math.sqrt(mean(told[0] ** 2, told[1] ** 2)) if len(told) == len(spreads) else None,
    )


def _reading(held: dict[str, object]) -> Reading:
    clocks, energies, busy = held["clocks_mhz"], held["energy_j"], held["busy_s"]
    if not (isinstance(clocks, list) and isinstance(energies, list) and isinstance(busy, list)):
        raise TypeError("not a reading")
    iterations, time_s, sd_s = held["iterations"], held["time_s"], held["time_sd_s"]
    if not (isinstance(iterations, int) and isinstance(time_s, float) and isinstance(sd_s, float)):
        raise TypeError("not a reading")
    spread = held.get("operation_sd_ratio")  # older texts have none
    if not (spread is None or isinstance(spread, float)):
        raise TypeError("not a reading")
    return Reading(
        tuple(int(mhz) for mhz in clocks),
        iterations,
        time_s,
        sd_s,
        tuple(float(joules) for joules in energies),
        tuple(tuple(float(s) for s in each) for each in busy),
        spread,
    )
