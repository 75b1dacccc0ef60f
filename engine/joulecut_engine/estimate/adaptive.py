"""The controller's estimator: the profile at once, the online model once it has proven better.

A profile describes the work from the first pass on; the online model, fitted to profile and
running work, describes it better on cards that differ. Both learn from every sample, and both
answer at the profile's clocks. `ChampionChallenger` decides by workload which one answers.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from joulecut_engine.estimate.admission import Refusal
from joulecut_engine.estimate.drift import Drift
from joulecut_engine.estimate.estimator import Prediction, Sample, Subject
from joulecut_engine.estimate.online import OnlineModel
from joulecut_engine.estimate.profile_estimator import ProfileEstimator
from joulecut_engine.estimate.refit import Snapshot
from joulecut_engine.estimate.work_fit import Fitted
from joulecut_engine.graph.pipeline import Profile

WEIGHT = 0.05  # of the newest comparison; about forty count
COMPARED_MIN = 30  # comparisons before the challenger can lead
# The challenger takes the lead when its mean error exceeds the champion's by at most LEADS, and
# loses it beyond LOSES: what times may differ for planning (`plan.costs.TIME_TOLERANCE`).
LEADS, LOSES = 0.0005, 0.002


@dataclass(slots=True)
class _MeanErrors:
    """Mean absolute errors (logarithms) of champion and challenger."""

    champion: float = 0.0
    challenger: float = 0.0
    count: int = 0

    def add(self, champion: float, challenger: float) -> None:
        share = max(WEIGHT, 1.0 / (self.count + 1))
        self.champion += share * (champion - self.champion)
        self.challenger += share * (challenger - self.challenger)
        self.count = min(self.count + 1, COMPARED_MIN)

    def worse_by(self, allowed: float) -> bool:
        return self.challenger > self.champion + allowed


@dataclass(slots=True)
class _Score:
    known: _MeanErrors
    new: _MeanErrors
    leads: bool = False


class ChampionChallenger:
    """Which of two models has described a workload better so far.

    Both predict each sample before it is learnt. The challenger leads if it was no further off, at
    clocks a GPU had run at before and at clocks new to it.
    """

    def __init__(self) -> None:
        self._scores: dict[str, _Score] = {}

    def compare(self, workload: str, champion: float, challenger: float, *, new: bool) -> None:
        """Record log(predicted / measured) of both; `new` at a clock new to the GPU."""
        score = self._scores.setdefault(workload, _Score(_MeanErrors(), _MeanErrors()))
        (score.new if new else score.known).add(abs(champion), abs(challenger))
        means = (score.known, score.new)
        if score.leads:
            score.leads = not any(errors.worse_by(LOSES) for errors in means)
        else:
            enough = sum(errors.count for errors in means) >= COMPARED_MIN
            score.leads = enough and not any(errors.worse_by(LEADS) for errors in means)

    def leads(self, workload: str) -> bool:
        """Whether the challenger leads on this workload."""
        score = self._scores.get(workload)
        return score is not None and score.leads

    def errors(self, workload: str) -> tuple[float, float] | None:
        """Mean absolute errors of champion and challenger at known clocks; None before any."""
        score = self._scores.get(workload)
        if score is None or not score.known.count:
            return None
        return score.known.champion, score.known.challenger

    def forget(self, workload: str) -> None:
        self._scores.pop(workload, None)

    def state(self) -> list[list[Any]]:
        return [
            [workload, *_row(score.known), *_row(score.new), score.leads]
            for workload, score in self._scores.items()
        ]

    def restore(self, rows: Iterable[Iterable[Any]]) -> None:
        """Read rows of `state`. Raises TypeError or ValueError if one is malformed."""
        for workload, *numbers, leads in rows:
            a, b, known, c, d, new = numbers
            if not all(math.isfinite(x) and x >= 0 for x in (a, b, c, d)):
                raise ValueError(f"{numbers} is not a score")
            score = _Score(_MeanErrors(a, b, int(known)), _MeanErrors(c, d, int(new)), bool(leads))
            self._scores[str(workload)] = score


def _row(errors: _MeanErrors) -> tuple[float, float, int]:
    return errors.champion, errors.challenger, errors.count


STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class LearningStats:
    """Learning so far of one workload. Errors are mean absolute relative errors of time."""

    taken: int = 0  # samples learnt from
    leads: bool = False  # whether the online model answers
    error_profile: float | None = None
    error_online: float | None = None
    refused: tuple[tuple[str, int], ...] = ()  # by reason; with samples filed elsewhere
    drifts: tuple[Drift, ...] = ()


class AdaptiveEstimator:
    """Profile and online model side by side; see `estimator.Estimator`."""

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        """`profiles` by workload. Raises ValueError if one has unusable numbers."""
        self._profile = ProfileEstimator({})
        self._online = OnlineModel()
        self._comparisons = ChampionChallenger()
        self._taken: Counter[str] = Counter()
        self._refused: dict[str, Counter[str]] = {}
        self.set_profiles(profiles)

    def set_profiles(self, profiles: Mapping[str, Profile]) -> None:
        """Replace all profiles. A workload whose profile changed is forgotten."""
        before = self._profile.fingerprints
        self._profile.set_profiles(profiles)
        self._online.set_profiles(profiles)
        after = self._profile.fingerprints
        for name in before.keys() | after.keys():
            if before.get(name) != after.get(name):
                self._forget(name)

    # -- learning ------------------------------------------------------------------------

    def learn(self, samples: tuple[Sample, ...]) -> tuple[str, ...]:
        """See `estimator.Estimator`; refusals are counted by workload and reason."""
        return tuple(refusal.text for one in samples if (refusal := self._learn(one)))

    def forget_gpu(self, workload: str, uuid: str) -> None:
        """Drop what was learnt of one GPU, which works at another pace from now on."""
        if workload in self._profile.fingerprints:
            self._profile.forget_gpu(workload, uuid)
            self._online.forget_gpu(workload, uuid)

    def learning_stats(self, workload: str) -> LearningStats:
        """Counts and errors of one workload."""
        errors = self._comparisons.errors(workload)
        return LearningStats(
            taken=self._taken[workload],
            leads=self._leads(workload),
            error_profile=errors[0] if errors else None,
            error_online=errors[1] if errors else None,
            refused=tuple(sorted(self._refused.get(workload, Counter()).items())),
            drifts=self._online.drifts(workload),
        )

    def due(self) -> bool:
        """Whether a new fit would know more."""
        return self._online.due()

    def snapshot(self) -> Snapshot:
        """Everything a fit (`refit.refit`) uses; immutable."""
        return self._online.snapshot()

    def adopt(self, snapshot: Snapshot, fitted: Fitted) -> None:
        """Use a fit from now on where the online model leads."""
        self._online.adopt(snapshot, fitted)

    # -- predicting ----------------------------------------------------------------------

    def predict(self, subject: Subject, clocks_mhz: tuple[int, ...]) -> Prediction | None:
        """See `estimator.Estimator`. Raises ValueError if a clock is not above 0."""
        if self._leads(subject.workload):
            found = self._online.predict(subject, clocks_mhz)
            if found is not None:
                return found
        return self._profile.predict(subject, clocks_mhz)

    def known_clocks_mhz(self, subject: Subject) -> tuple[int, ...]:
        """The clocks of the profile, ascending; empty without one."""
        return self._profile.known_clocks_mhz(subject)

    # -- remembering ---------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything learnt, as JSON-able values."""
        return {
            "version": STATE_VERSION,
            "profile": self._profile.state(),
            "online": self._online.state(),
            "contest": self._comparisons.state(),
            "taken": dict(sorted(self._taken.items())),
            "refused": {name: dict(sorted(c.items())) for name, c in sorted(self._refused.items())},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Read `state` back completely and fit once, or raise ValueError and change nothing.

        Set profiles before: a workload whose profile is not the one in `state` is forgotten.
        """
        made = AdaptiveEstimator({})
        made._profile = self._profile.without_biases()
        made._online.set_profiles(self._online.profiles)
        try:
            if state["version"] != STATE_VERSION:
                raise ValueError(f"version {state['version']!r}, not {STATE_VERSION}")
            made._read(state)
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise ValueError(f"not the state of an estimator: {error}") from None
        self.__dict__.update(made.__dict__)

    def _read(self, state: Mapping[str, Any]) -> None:
        stored, marks = state["profile"]["profiles"], self._profile.fingerprints
        changed = {
            name for name in stored.keys() | marks.keys() if stored.get(name) != marks.get(name)
        }
        self._profile.restore(state["profile"], changed)
        self._online.restore(state["online"], changed)
        self._comparisons.restore(state["contest"])
        self._taken.update({str(name): int(count) for name, count in state["taken"].items()})
        for name, counts in state["refused"].items():
            self._refused[str(name)] = Counter({str(r): int(n) for r, n in counts.items()})
        for name in changed:
            self._forget(name)

    # -- inside --------------------------------------------------------------------------

    def _leads(self, workload: str) -> bool:
        return self._comparisons.leads(workload) and self._online.knows(workload)

    def _learn(self, sample: Sample) -> Refusal | None:
        workload = sample.subject.workload
        judged = self._profile.judge(sample)
        if isinstance(judged, Refusal):
            return self._refuse(workload, judged)
        comparison = self._comparison(sample)
        new = not self._online.seen(sample.subject, sample.clock_mhz)
        taken = self._online.take(sample)
        if isinstance(taken, Refusal):
            return self._refuse(workload, taken)
        if taken is not None:
            self._refused.setdefault(workload, Counter())[taken] += 1
        if comparison is not None:
            self._comparisons.compare(workload, *comparison, new=new)
        self._profile.learn((sample,))
        self._taken[workload] += 1
        return None

    def _refuse(self, workload: str, refusal: Refusal) -> Refusal:
        if workload in self._profile.fingerprints:  # bounded: only known workloads are counted
            self._refused.setdefault(workload, Counter())[refusal.reason] += 1
        return refusal

    def _comparison(self, sample: Sample) -> tuple[float, float] | None:
        """Errors of both models before they learn; None until both predict."""
        subject = sample.subject
        if not self._online.knows(subject.workload):
            return None
        # A capped sample is the cost of the asked clock, which plans ask for.
        asked = sample.asked_mhz if sample.capped else None
        clocks = (asked or sample.clock_mhz,)
        both = (self._profile.predict(subject, clocks), self._online.predict(subject, clocks))
        if both[0] is None or both[1] is None:
            return None
        measured = math.log(sample.time_s)
        champion, challenger = (math.log(float(p.time_s[0])) - measured for p in both if p)
        return champion, challenger

    def _forget(self, workload: str) -> None:
        self._comparisons.forget(workload)
        self._taken.pop(workload, None)
        self._refused.pop(workload, None)
