"""The controller's estimator: curves of every profile, corrected by the running work.

A profile gives curves at once; samples of running work move a bias per GPU, and a fit of profile
and samples together corrects the curves. `learn` is cheap and runs in the control loop. A fit is
expensive and pure, so the caller runs it elsewhere:

    if estimator.due():
        snapshot = estimator.snapshot()
        fitted = await asyncio.to_thread(refit, snapshot)
        estimator.adopt(snapshot, fitted)

Without a profile there is no prediction, and a sample that cannot belong to the profile is refused
with a reason.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from joulecut_engine.estimate.admission import (
    Plausibility,
    Refusal,
    Separation,
    refusal,
    values_refused,
)
from joulecut_engine.estimate.bias import (
    LOG_MAX,
    RATIO_MAX,
    Biases,
    GpuBias,
)
from joulecut_engine.estimate.estimator import NOMINAL_SDS, Prediction, Sample, Subject
from joulecut_engine.estimate.evidence import Work, fingerprint
from joulecut_engine.estimate.grid import Grid, Grids
from joulecut_engine.estimate.refit import WORKS_MAX, Snapshot, fit_profile, refit
from joulecut_engine.estimate.sample_window import Cell, Reading, Window
from joulecut_engine.estimate.work_fit import Fitted, WorkCurve
from joulecut_engine.graph.pipeline import Kind, Profile

STATE_VERSION = 2
REFIT_EVERY = 25  # accepted samples; as in the public stream experiment
UNSEEN_GPU = 0.08  # half width for a GPU without samples: cards of one kind differ by 8 %
STEP_MHZ = 15  # of clock tables: tolerance between asked and observed clock
ERROR_WEIGHT = 0.05  # of the newest error in the mean; about forty count


@dataclass(frozen=True, slots=True)
class LearningStats:
    """Learning so far of one workload.

    `error` is the mean absolute relative error of time, before each sample was learnt.
    """

    taken: int = 0  # samples learnt from
    error: float | None = None
    refused: tuple[tuple[str, int], ...] = ()  # by reason; with samples filed elsewhere


class OnlineEstimator:
    """Curves from profiles and running work, times a bias per GPU; see `estimator.Estimator`.

    Samples are filed in cells by (GPU, work, clock). All memory is bounded.
    """

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        """`profiles` by workload. Raises ValueError if one has unusable numbers."""
        self._profiles: dict[str, Profile] = {}
        self._fingerprints: dict[str, str] = {}
        self._window = Window()
        self._biases = Biases()
        self._plausibility = Plausibility()
        self._current = CurrentFit()
        self._number = 0
        self._since_snapshot = 0
        self._new_clock = False
        self._taken: Counter[str] = Counter()
        self._errors: dict[str, float] = {}
        self._refused: dict[str, Counter[str]] = {}
        self.set_profiles(profiles)

    # -- learning ------------------------------------------------------------------------

    def learn(self, samples: tuple[Sample, ...]) -> tuple[str, ...]:
        """See `estimator.Estimator`; refusals are counted by workload and reason."""
        return tuple(found.text for one in samples if (found := self._learn(one)))

    def learning_stats(self, workload: str) -> LearningStats:
        """Counts and errors of one workload."""
        return LearningStats(
            taken=self._taken[workload],
            error=self._errors.get(workload),
            refused=tuple(sorted(self._refused.get(workload, Counter()).items())),
        )

    def _learn(self, sample: Sample) -> Refusal | None:
        workload = sample.subject.workload
        cell, separated = _filed(sample)
        judged = self._refusal(sample) or self._plausibility.judge(sample, cell, self._window)
        if isinstance(judged, Refusal):
            if workload in self._profiles:  # bounded: only known workloads are counted
                self._count(workload, judged.reason)
            return judged
        if judged == "shape-changed":
            self._start_over(workload)
        filed = judged or separated
        if filed is not None:
            self._count(workload, filed)
        self._number += 1
        self._taken[workload] += 1
        reading = Reading(
            self._number, sample.time_s, sample.power_w, sample.weight, sample.clock_mhz
        )
        self._compare(cell, reading)
        self._new_clock |= self._window.add(cell, reading)
        self._since_snapshot += 1
        self._move_bias(cell, reading)
        return None

    def _count(self, workload: str, reason: str) -> None:
        self._refused.setdefault(workload, Counter())[reason] += 1

    def _refusal(self, sample: Sample) -> Refusal | None:
        """Why a sample cannot belong to the profile; None if it can."""
        subject, clock_mhz = sample.subject, sample.clock_mhz
        refused = values_refused(sample)
        if refused is not None:
            return refused
        known_mhz = self.known_clocks_mhz(subject)
        if not known_mhz:
            return refusal("no-profile", subject, "no profile for it")
        if not known_mhz[0] <= clock_mhz <= known_mhz[-1]:
            what = f"is outside the profiled {known_mhz[0]}-{known_mhz[-1]} MHz"
            return refusal("clock", subject, f"{clock_mhz} MHz {what}")
        grid = self._current.grid(_work(subject), (clock_mhz,))
        assert grid is not None
        ratios = {"time": sample.time_s / float(grid.time_s[0])}
        if sample.power_w is not None:
            ratios["power"] = sample.power_w / float(grid.power_w[0])
        for quantity, ratio in ratios.items():
            if not 1.0 / RATIO_MAX <= ratio <= RATIO_MAX:
                what = f"{quantity} is {ratio:.3g} times the profile's; beyond {RATIO_MAX:g} times"
                return refusal("other-work", subject, f"{what} it is other work, no bias")
        return None

    def _compare(self, cell: Cell, reading: Reading) -> None:
        """Adds the reading's error to the mean one of its workload."""
        predicted_s = self._current.at(cell).time_s[0]
        predicted_s *= math.exp(self._biases.get(cell.workload, cell.uuid).time.mean)
        before = self._errors.get(cell.workload)
        off = abs(predicted_s / reading.time_s - 1.0)
        mean = off if before is None else before + ERROR_WEIGHT * (off - before)
        self._errors[cell.workload] = mean

    def _move_bias(self, cell: Cell, reading: Reading) -> None:
        """Move the GPU's bias by one reading."""
        grid = self._current.at(cell)
        old = self._biases.get(cell.workload, cell.uuid)
        time = old.time.after(_log(reading.time_s / grid.time_s[0]), reading.weight)
        power = old.power
        if reading.power_w is not None:
            power = power.after(_log(reading.power_w / grid.power_w[0]), reading.weight)
        self._biases.put(cell.workload, cell.uuid, GpuBias(time, power))

    def _replay(self, workload: str, uuid: str) -> None:
        """Compute a bias from the readings in the window, against the current curves."""
        self._biases.put(workload, uuid, GpuBias())
        for cell, reading in self._window.of_gpu(workload, uuid):
            self._move_bias(cell, reading)

    # -- workloads -----------------------------------------------------------------------

    def set_profiles(self, profiles: Mapping[str, Profile]) -> None:
        """Replace all profiles. A workload whose profile changed or disappears is forgotten."""
        prints = {workload: fingerprint(profile) for workload, profile in profiles.items()}
        made = {
            workload: fit_profile(workload, profiles[workload])
            for workload in sorted(prints)
            if self._fingerprints.get(workload) != prints[workload]
        }
        for workload in made.keys() | (self._fingerprints.keys() - prints.keys()):
            self._forget(workload)
        for workload, fitted in made.items():
            self._profiles[workload] = profiles[workload]
            self._current.put_profile(workload, fitted)
        self._fingerprints = prints

    def _forget(self, workload: str) -> None:
        """Drop everything about a workload."""
        self._start_over(workload)
        self._current.drop(workload)
        self._profiles.pop(workload, None)
        self._taken.pop(workload, None)
        self._errors.pop(workload, None)
        self._refused.pop(workload, None)

    def _start_over(self, workload: str) -> None:
        """Drop what was learnt of a workload beside its profile."""
        self._window.forget(workload)
        self._biases.forget(workload)
        self._plausibility.forget(workload)
        self._current.start_over(workload)
        self._new_clock = True  # curves of other work were fitted together with it

    def forget_gpu(self, workload: str, uuid: str) -> None:
        """Drop what was learnt of one GPU, which works at another pace from now on."""
        self._window.forget_before(workload, uuid, self._number + 1)
        self._biases.put(workload, uuid, GpuBias())
        self._new_clock = True

    # -- fitting -------------------------------------------------------------------------

    def due(self) -> bool:
        """Whether a fit would know more: a new clock, or enough new samples."""
        return self._new_clock or self._since_snapshot >= REFIT_EVERY

    def snapshot(self) -> Snapshot:
        """Everything the next fit uses, immutable: of WORKS_MAX kinds of work at most, by turns."""
        self._since_snapshot, self._new_clock = 0, False
        turn = self._turn()
        return Snapshot(
            number=self._number,
            cells=tuple(pair for pair in self._window.cells() if pair[0].workload in turn),
            profiles={name: self._profiles[name] for name in sorted(turn)},
        )

    def _turn(self) -> set[str]:
        """The workloads of the next fit: those with new readings, the one fitted longest ago
        first, as many as WORKS_MAX allows and one at least.
        """
        counts = {
            name: sum(1 for options in profile.options.values() if options)
            for name, profile in self._profiles.items()
        }
        newest, fitted = self._window.newest(), self._current.fitted_at

        def wait(name: str) -> tuple[bool, int, int, str]:
            at, last = fitted.get(name, 0), newest.get(name, 0)
            return last <= at, at, -last, name

        turn: set[str] = set()
        room = WORKS_MAX
        for name in sorted(counts, key=wait):
            if not turn or counts[name] <= room:
                turn.add(name)
                room -= counts[name]
        return turn

    def adopt(self, snapshot: Snapshot, fitted: Fitted) -> None:
        """Use the curves of a fit from now on, and recompute the biases against them.

        Workloads out of their turn keep their curves, and so do those whose profile came, went or
        changed since the snapshot.
        """
        same = {name for name, one in snapshot.profiles.items() if self._profiles.get(name) is one}
        self._current.put(snapshot, fitted, same)
        for workload in same:
            self._biases.forget(workload)
        for workload, uuid in self._window.gpus():
            if workload in same:
                self._replay(workload, uuid)

    # -- predicting ----------------------------------------------------------------------

    def predict(self, subject: Subject, clocks_mhz: tuple[int, ...]) -> Prediction | None:
        """See `estimator.Estimator`. Raises ValueError if a clock is not above 0."""
        grid = self._current.grid(_work(subject), clocks_mhz)
        if grid is None:
            return None
        bias = self._biases.get(subject.workload, subject.uuid)
        return grid.predicted(clocks_mhz, bias, self._scatter(bias))

    def known_clocks_mhz(self, subject: Subject) -> tuple[int, ...]:
        """Clocks of the profile, ascending; empty without one."""
        return self._current.swept_mhz(_work(subject))

    def _scatter(self, bias: GpuBias) -> float:
        """Half width (a logarithm) that a GPU adds to the band of its work."""
        if not bias.time.count:
            return UNSEEN_GPU
        return NOMINAL_SDS * math.sqrt(bias.time.variance / max(1.0, bias.time.count))

    # -- persistence ---------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Readings as JSON-able values; curves and biases follow from them."""
        return {
            "version": STATE_VERSION,
            "profiles": dict(sorted(self._fingerprints.items())),
            "number": self._number,
            "window": self._window.state(),
            "watch": [],  # read by the version before
            "taken": dict(sorted(self._taken.items())),
            "errors": dict(sorted(self._errors.items())),
            "refused": {name: dict(sorted(c.items())) for name, c in sorted(self._refused.items())},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Read `state` back completely and fit once, or raise ValueError and change nothing.

        Set profiles before: a workload whose profile is not the one in `state` is forgotten.
        """
        made = OnlineEstimator({})
        made._profiles, made._fingerprints = self._profiles, self._fingerprints
        made._current = self._current.of_profiles()
        try:
            made._read(_migrated(state))
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise ValueError(f"not the state of an estimator: {error}") from None
        self.__dict__.update(made.__dict__)

    def _read(self, state: Mapping[str, Any]) -> None:
        if state["version"] != STATE_VERSION:
            raise ValueError(f"version {state['version']!r}, not {STATE_VERSION}")
        self._number = int(state["number"])
        self._window.restore(state["window"])
        self._taken.update({str(name): int(count) for name, count in state["taken"].items()})
        for name, error in state["errors"].items():
            if not (math.isfinite(error) and error >= 0.0):
                raise ValueError(f"{error} is no error")
            self._errors[str(name)] = float(error)
        for name, counts in state["refused"].items():
            self._refused[str(name)] = Counter({str(r): int(n) for r, n in counts.items()})
        stored = state["profiles"]
        for name in sorted(stored.keys() | self._fingerprints.keys()):
            if stored.get(name) != self._fingerprints.get(name):
                self._start_over(name)
                for counts in (self._taken, self._errors, self._refused):
                    counts.pop(name, None)
        snapshot = self.snapshot()
        self.adopt(snapshot, refit(snapshot))


def joined(
    mine: Mapping[str, Any], others: Mapping[str, Any], own: Callable[[str], bool]
) -> Mapping[str, Any]:
    """One state of two: the workloads that are `own` from `mine`, all others from `others`. Raises
    ValueError for a state of another version or form.
    """
    if others.get("version") != mine.get("version"):
        raise ValueError(f"version {others.get('version')!r}, not {mine.get('version')!r}")
    try:
        rows = {
            name: [row for row in mine[name] if own(of(row))]
            + [row for row in others[name] if not own(of(row))]
            for name, of in _WORKLOAD_OF.items()
        }
        by_name = {
            name: {key: one for key, one in others[name].items() if not own(key)}
            | {key: one for key, one in mine[name].items() if own(key)}
            for name in ("profiles", "taken", "errors", "refused")
        }
        return {**mine, "number": max(mine["number"], others["number"]), **rows, **by_name}
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not the state of an estimator: {error}") from None


# Of a row of a state, by its key.
_WORKLOAD_OF: Mapping[str, Callable[[Any], str]] = {
    "window": lambda row: row[0][0],
    "watch": lambda row: row[0],
}


def _migrated(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state of this version from one of version 1, which also had a second model.

    Its biases follow from the readings again; the comparison of the two models has no meaning.
    """
    if state["version"] != 1:
        return state
    if state["profile"]["version"] != 1 or state["online"]["version"] != 2:
        raise ValueError("its parts are of other versions")
    return {
        **{key: state["online"][key] for key in ("number", "window")},
        **{key: state[key] for key in ("taken", "refused")},
        "version": STATE_VERSION,
        "profiles": state["profile"]["profiles"],
        "errors": {},
    }


class CurrentFit:
    """Curves in use: of the profile, until a fit to readings replaces them."""

    def __init__(self) -> None:
        self.fitted_at: dict[str, int] = {}  # by workload, the number of its newest snapshot
        self._swept: dict[str, Mapping[Work, WorkCurve]] = {}  # of the profiles alone
        self._curves: dict[str, Mapping[Work, WorkCurve]] = {}
        self._grids = Grids()

    def of_profiles(self) -> "CurrentFit":
        """The curves of the profiles alone."""
        made = CurrentFit()
        made._swept, made._curves = dict(self._swept), dict(self._swept)
        return made

    def put_profile(self, workload: str, fitted: Fitted) -> None:
        """Use the curves of a profile."""
        self._swept[workload] = self._curves[workload] = fitted.curves
        self._grids.clear()

    def put(self, snapshot: Snapshot, fitted: Fitted, workloads: set[str]) -> None:
        """Use the curves of `workloads` of a fit; others in it keep theirs."""
        for name in workloads:
            own = {work: curve for work, curve in fitted.curves.items() if work.workload == name}
            self._curves[name] = {**self._curves[name], **own}
        self.fitted_at |= dict.fromkeys(workloads, snapshot.number)
        self._grids.clear()

    def start_over(self, workload: str) -> None:
        """Return to the curves of the profile."""
        if workload in self._swept:
            self._curves[workload] = self._swept[workload]
        self.fitted_at.pop(workload, None)
        self._grids.clear()

    def drop(self, workload: str) -> None:
        self._swept.pop(workload, None)
        self._curves.pop(workload, None)

    def swept_mhz(self, work: Work) -> tuple[int, ...]:
        """Clocks of the profile, ascending."""
        curve = self._swept.get(work.workload, {}).get(work)
        return () if curve is None else tuple(map(int, curve.clocks_mhz))

    def at(self, cell: Cell) -> Grid:
        """The curve at a cell, whose work has a profile."""
        found = self.grid(
            Work(cell.workload, cell.stage, cast("Kind", cell.kind)), (cell.clock_mhz,)
        )
        assert found is not None
        return found

    def grid(self, work: Work, clocks_mhz: tuple[int, ...]) -> Grid | None:
        curve = self._curves.get(work.workload, {}).get(work)
        return None if curve is None else self._grids.of(work, curve, clocks_mhz)


def _work(subject: Subject) -> Work:
    return Work(subject.workload, subject.stage, subject.kind)


def _filed(sample: Sample) -> tuple[Cell, Separation | None]:
    """File a capped sample under the asked clock, one that missed it under the observed."""
    clock_mhz, asked_mhz = sample.clock_mhz, sample.asked_mhz
    separated: Separation | None = None
    if asked_mhz is not None:
        if sample.capped or abs(asked_mhz - clock_mhz) <= STEP_MHZ:
            clock_mhz = asked_mhz
        else:
            separated = "clock-not-reached"
    one = sample.subject
    return Cell(one.workload, one.uuid, one.stage, one.kind, clock_mhz, sample.capped), separated


def _log(ratio: float) -> float:
    return max(-LOG_MAX, min(LOG_MAX, math.log(ratio)))
