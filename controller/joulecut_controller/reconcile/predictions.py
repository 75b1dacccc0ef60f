"""What other jobs of the cluster say of a job that never ran at lower clocks.

While a job runs at default clocks its counters are averaged over the passes. Counters and work of a
job without a profile become a predicted one, which the estimator corrects by the job's own
operations. Jobs that were measured at lower clocks teach. No names are kept: a workload is a hash.
What is known is bounded, and kept in the store.
"""

import asyncio
import contextlib
import statistics
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from joulecut_controller.board import Learnt
from joulecut_controller.known_jobs import KNOWN_KEPT, NAME, decoded, encoded, hashed
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.predicted import SOURCE, DefaultWorks, Prediction, default_works
from joulecut_controller.ports import Store
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.reconcile.background_tasks import BackgroundTasks
from joulecut_controller.view import GpuView, JobState, View
from joulecut_engine.estimate.correction import fit_profile
from joulecut_engine.estimate.evidence import fingerprint
from joulecut_engine.estimate.online import LearningStats, OnlineEstimator
from joulecut_engine.estimate.other_jobs import (
    PRIOR,
    ROWS_MIN,
    ClockShares,
    Counters,
    FromOtherJobs,
    KnownJob,
    OtherJobs,
    measured,
)
from joulecut_engine.graph.pipeline import Kind, Profile

KEY = ("other jobs", "")  # of the fit among background tasks
COUNTERS_WEIGHT = 0.2  # of the newest pass: a mean over some ten passes
SEEN_MIN = 5  # passes before counters count
BUSY_MIN = 0.05  # below it the job starts or stands still
# Of the part of predicted slowdowns that comes true: known less well a job without a profile
# teaches nothing, and what is further off than this from what a job taught replaces it.
SCALE_SD_MAX = 0.15
# Samples of a job without a profile until it teaches, then twice as many each time, since each time
# the forest is fitted again.
TAUGHT_FIRST = 256
POSSIBLE_MAX = 16  # estimators that a band is made of
REFIT_S = 30.0  # of one workload: each fit may lead to another plan


@dataclass(slots=True)
class _Job:
    """A job at default clocks so far. `taught` names the measurement that it has taught by, `scale`
    is the part of slowdowns in it that came true.
    """

    shape: str
    counters: Counters
    taught: object = 0
    scale: float = 1.0
    seen: int = 0
    profile: Profile | None = None  # that `fingerprint` is of
    fingerprint: str = ""
    made: tuple[int, Prediction] | None = None  # number of the model, and the prediction
    sure: bool | None = None  # which of its profiles was taken


class Predictions:
    """Counters of jobs, the known jobs, and what is predicted of jobs without a profile."""

    def __init__(
        self,
        learner: OnlineEstimator,
        store: Store,
        audit: AuditLog,
        background: BackgroundTasks,
    ) -> None:
        self._learner, self._store = learner, store
        self._audit, self._background = audit, background
        self._known: list[KnownJob] = []
        self._model, self._number = OtherJobs(()), 0
        self._learns = True
        self._jobs: dict[str, _Job] = {}  # by workload
        self._fitted_s: dict[str, float] = {}  # by workload, within REFIT_S
        self.begun = False
        self._changed = False

    def keep_only(self, jobs: Container[str]) -> None:
        """Jobs that left the policy are forgotten; what they taught stays."""
        self._jobs = {w: job for w, job in self._jobs.items() if w.partition("/")[0] in jobs}

    def begin(self) -> None:
        """Reads what an earlier controller was taught; call it in a thread. Raises Unavailable."""
        kept = self._store.learnt(NAME)
        self.begun = True
        try:
            self._known = decoded(kept)
        except ValueError as error:
            self._audit.note("learn", "", f"known jobs cannot be read and start empty: {error}")
        self._adopt(OtherJobs(self._known, learns=self._learns))

    async def save(self) -> None:
        """Stores what has changed. Raises Unavailable."""
        if self._changed:
            known = tuple(self._known)
            taught = await asyncio.to_thread(self._keep, known)
            self._changed = tuple(self._known) != known  # a job may have taught meanwhile
            self._known = [*taught, *self._known][-KNOWN_KEPT:]

    def _keep(self, known: tuple[KnownJob, ...]) -> list[KnownJob]:
        """Stores the known jobs beside those that `joulecut study teach` stored since; returns
        these. What jobs seen here taught is known here, or true no longer.
        """
        taught: list[KnownJob] = []
        with contextlib.suppress(ValueError):  # a damaged record is reported by `begin`
            stored = decoded(self._store.learnt(NAME))
            mine = {one.workload for one in known}
            mine |= {hashed(workload.partition("/")[0]) for workload in tuple(self._jobs)}
            taught = [one for one in stored if one.workload not in mine]
        self._store.keep_learnt(NAME, encoded([*taught, *known][-KNOWN_KEPT:]))
        return taught

    def fit_next(self, now_s: float) -> None:
        """Fits the estimator to one running job that has new samples."""
        self._fitted_s = {k: at for k, at in self._fitted_s.items() if now_s - at < REFIT_S}
        if fitted := self._learner.fit(self._fitted_s):
            self._fitted_s[fitted] = now_s

    def learnt(self, workload: str) -> Learnt:
        """For the board, of a job with a profile."""
        lesson = self._learner.learning_stats(workload)
        begun_from = "other jobs" if self._learner.predicted(workload) else "the profile"
        return Learnt(text=learnt_text(lesson, begun_from), refused=lesson.refused)

    def learn(self, on: bool) -> None:
        """Whether known jobs correct the prior: the policy's switch."""
        if on != self._learns:
            self._learns = on
            self._fit()

    def drop(self, workload: str) -> bool:
        """Drops a predicted profile; it is predicted again at default clocks. False without one."""
        if workload in self._jobs:
            self._jobs[workload].made = None
        return self._learner.drop_predicted(workload)

    async def with_profile(
        self, observation: JobObservation, view: View
    ) -> tuple[JobObservation, Prediction | None]:
        """The job with the profile that is predicted of it, where it has none, and the prediction
        as long as nothing was measured at lower clocks.
        """
        job, known = observation.job, self._see(observation, view)
        policy, workload = job.policy, job.workload
        if policy.profile is not None or policy.pipeline is None or policy.is_order:
            return observation, None
        profile, predicted = self._learner.predicted(workload), None
        if profile is not None and profile.stages != policy.pipeline.stages:
            profile = None
        if known is not None and not job.measured.lowest_mhz:
            before = known.made
            predicted = self._predicted(job, known, view)
            sure = policy.mode == "enforce"
            newer = known.made is not before or known.sure is not sure
            newer &= not self._learner.ran_lower(workload)
            if predicted is not None and (profile is None or newer):
                try:
                    made = predicted.profile(sure=sure)
                    fitted = await asyncio.to_thread(fit_profile, workload, made)
                except (ValueError, ArithmeticError):  # no curve fits such work
                    return observation, None
                self._learner.add_predicted(workload, made, fitted)
                profile, known.sure = made, sure
        if profile is None:
            return observation, None
        blocking_w = policy.blocking_power_w or profile.blocking_power_w
        policy = replace(policy, profile=profile, blocking_power_w=blocking_w)
        return replace(observation, job=replace(job, policy=policy)), predicted

    def _see(self, observation: JobObservation, view: View) -> _Job | None:
        """The job's counters, after one more look; None before `SEEN_MIN` looks. A job in training
        is a sample for predictions of others.
        """
        job, shape = observation.job, observation.shape
        gpus = [view.gpus[uuid] for uuid in job.placement.uuids if uuid in view.gpus]
        drawn_w = [one.power_w for one in job.measured.loads]
        now, known = counters_of(gpus, _mean(drawn_w)), self._jobs.get(job.workload)
        moved = known is not None and gpus and known.counters.card != gpus[0].description.model
        if moved and job.policy.profile is None:  # what it measured is no curve of this card
            self._learner.drop_predicted(job.workload)
            known = None
        if now is not None:
            if known is None or known.shape != shape:
                known = self._jobs[job.workload] = self._begun(job, shape, now, known)
            known.counters, known.seen = _blended(known.counters, now), known.seen + 1
        if known is None or known.seen < SEEN_MIN:
            return None
        if job.measured.phase.kind == "train":
            self._learn_from(job, known)
        return known

    def _begun(self, job: JobState, shape: str, now: Counters, before: _Job | None) -> _Job:
        """The job in a shape that is new. After a restart its rows say what it has taught by."""
        if before is not None:
            return _Job(shape, now, before.taught, before.scale)
        name = hashed(job.policy.name)
        rows = (one for one in self._known if one.workload == name and one.fingerprint)
        row = next(rows, None)
        return _Job(shape, now, row.fingerprint, row.scale) if row else _Job(shape, now)

    def _learn_from(self, job: JobState, known: _Job) -> None:
        """Its profile, or its curve as measured at lower clocks, with the part of slowdowns that
        comes true. It replaces what the job taught before: of work that changed nothing is left.
        """
        profile, seen = job.policy.profile, job.measured.reference
        sure = seen is not None and job.measured.lowest_mhz and seen.scale.sd <= SCALE_SD_MAX
        # The estimator knows what operations have not in common, the reference the rest.
        scale = seen.scale.mean if seen is not None and sure else known.scale
        if profile is not None:
            if profile is not known.profile:  # its fingerprint takes a millisecond
                known.profile, known.fingerprint = profile, fingerprint(profile)
            basis: object = known.fingerprint
        else:
            samples = self._learner.learning_stats(job.workload).taken
            basis = (samples // TAUGHT_FIRST).bit_length()  # 0 again where its work has changed
            if basis and not sure:
                return
        if basis == known.taught and (not basis or abs(scale - known.scale) <= SCALE_SD_MAX):
            return
        known.taught, known.scale = basis, scale
        shown = profile or (self._learner.measured(job.workload) if basis else None)
        name, counters = hashed(job.policy.name), known.counters
        rows = _of_profile(name, shown, counters, scale) if shown else ()
        basis = known.fingerprint
        self._teach(name, [replace(one, fingerprint=basis, scale=scale) for one in rows])

    def _predicted(self, job: JobState, known: _Job, view: View) -> Prediction | None:
        """None before its work at default clocks was measured."""
        if known.made is not None and known.made[0] == self._number:
            return known.made[1]
        works = default_works(job, view.gpus)
        if works is None:
            return known.made[1] if known.made else None
        made = prediction(self._model, works, known.counters, view.gpus.values())
        known.made = (self._number, made)
        return made

    def sentence(self, job: JobState) -> str:
        """One line for the board: what predicts, and what each predictor would have erred on the
        job, once it is known; empty while nothing is predicted of it.
        """
        known = self._jobs.get(job.workload)
        if known is None:
            return ""
        if known.taught:
            return _erred(self._model, hashed(job.policy.name))
        return rests_on(self._model).removeprefix(f"{SOURCE}: ") if known.made else ""

    def _teach(self, workload: str, taught: Sequence[KnownJob]) -> None:
        others = [one for one in self._known if one.workload != workload]
        self._known, self._changed = [*others, *taught][-KNOWN_KEPT:], True
        self._fit()

    def _fit(self) -> None:
        work = partial(OtherJobs, tuple(self._known), learns=self._learns)
        self._background.want(KEY, work, self._adopt)

    def _adopt(self, model: OtherJobs) -> None:
        self._model, self._number = model, self._number + 1


def learnt_text(lesson: LearningStats, begun_from: str) -> str:
    """One line: what predictions rest on, their error, and samples not used as reported."""
    line = f"predicted from {begun_from}; nothing learned from the running job yet"
    if lesson.taken:
        line = f"predicted from {begun_from} and {lesson.taken} samples of the running job"
        if lesson.error is not None:
            line += f" (time error {100 * lesson.error:.2g} % before learning)"
    if lesson.refused:
        line += "; not learned as reported: " + ", ".join(f"{n} {why}" for why, n in lesson.refused)
    return line


def rests_on(model: OtherJobs) -> str:
    """What a prediction rests on, in words."""
    if model.predicts == PRIOR:
        known = (
            f"; {_workloads(model.known)} here not enough to correct them" if model.known else ""
        )
        return f"{SOURCE}: public sweeps alone{known}"
    return (
        f"{SOURCE}: {model.predicts} of {_workloads(model.known)} measured here, and public sweeps"
    )


def _workloads(count: int) -> str:
    return f"{count} workload{'' if count == 1 else 's'}"


def _erred(model: OtherJobs, workload: str) -> str:
    """What each predictor would have erred, had it not seen the job."""
    if model.known <= ROWS_MIN:
        return ""
    found = {name: each[workload] for name, each in model.erred.items() if workload in each}
    if not found:
        return ""
    words = ", ".join(f"{name} {t:.1%} and {p:.1%}" for name, (t, p) in found.items())
    return (
        f"{model.predicts} predicts other jobs; of this one they would have erred in time and "
        f"power at 85 % of default clocks: {words}"
    )


def prediction(
    model: OtherJobs, works: DefaultWorks, counters: Counters, gpus: Iterable[GpuView]
) -> Prediction:
    """Of a job's work at default clocks, at all clocks that `gpus` have."""
    kinds = {kind for _, kind in works.works}
    of_kind = {kind: replace(counters, kind=_half(kind)) for kind in sorted(kinds)}
    possible = {kind: model.possible(one) for kind, one in of_kind.items()}
    rows = next(iter(possible.values())).shape[0]
    picked = range(rows)
    if rows > POSSIBLE_MAX:  # by the error of the time, from one end to the other
        order = np.argsort(next(iter(possible.values()))[1:, 0], kind="stable") + 1
        ends = np.linspace(0, rows - 2, POSSIBLE_MAX - 1).round().astype(int)
        picked = (0, *order[ends].tolist())  # type: ignore[assignment]
    table = {mhz for gpu in gpus for mhz in gpu.description.clocks_mhz}
    clocks, voltages = tuple(sorted(table)), model.voltages(works.works.values())
    made = tuple(
        FromOtherJobs(
            works.works,
            {kind: ClockShares(*map(float, each[row])) for kind, each in possible.items()},
            clocks,
            voltages,
        )
        for row in picked
    )
    sure = {kind: model.sure(one) for kind, one in of_kind.items()}
    careful = FromOtherJobs(works.works, sure, clocks, voltages)
    text = rests_on(model)
    if not works.detailed:
        text += (
            "; one clock for all GPUs, since the job reports its rate alone "
            "(docs/integrations.md: how its stages and operations are shown)"
        )
    return Prediction(works, careful, made, text)


def _half(kind: Kind) -> str:
    """Forward, or backward as a whole: its halves are no kinds of their own here."""
    return "forward" if kind == "forward" else "backward"


def _of_profile(
    name: str, profile: Profile, counters: Counters, scale: float
) -> Iterable[KnownJob]:
    """Of each kind, all stages; from the clock that the job was seen at by default, since what is
    above it never runs. `scale` is the part of the profile's slowdowns that comes true.
    """
    clocks = [one.clock_mhz for options in profile.options.values() for one in options]
    top_mhz = max(clocks, default=0)
    default_mhz = counters.clock_ratio * top_mhz
    found: dict[str, list[tuple[float, float, float]]] = {}
    for (_, kind), options in profile.options.items():
        below = [one for one in sorted(options) if one.clock_mhz <= default_mhz * (1.0 + 1e-9)]
        if len(below) < 2:
            continue
        *lower, top = below
        found.setdefault(_half(kind), []).extend(
            (
                one.clock_mhz / top.clock_mhz,
                (one.time_s / top.time_s) ** scale,
                one.power_w / top.power_w,
            )
            for one in lower
        )
    for half, rows in found.items():
        job = measured(
            name,
            replace(counters, kind=half),
            *np.array(rows).T,
            default_mhz=default_mhz,
            top_mhz=top_mhz,
        )
        if job is not None:
            yield job


def counters_of(gpus: Sequence[GpuView], counted_w: float | None = None) -> Counters | None:
    """Means over a job's GPUs in one pass; None while one is unknown, idle or under a lease.
    `counted_w` is the power by energy counters, which a window's average comes second to.
    """
    shown = [gpu.snapshot for gpu in gpus if gpu.snapshot is not None]
    if not gpus or len(shown) < len(gpus) or any(one.lease is not None for one in shown):
        return None
    first = gpus[0].description
    clock_mhz = _mean(one.clock_sm_mhz for one in shown)
    power_w = counted_w or _mean(one.power_average_w for one in shown)
    limit_w = first.power_limit_default_w
    busy = _mean(one.utilization_gpu_ratio for one in shown)
    if not first.clocks_mhz or not clock_mhz or not power_w or not limit_w:
        return None
    if busy is not None and busy < BUSY_MIN:
        return None
    return Counters(
        card=first.model,
        clock_ratio=clock_mhz / first.clocks_mhz[-1],
        power_ratio=power_w / limit_w,
        gpu_ratio=busy,
        memory_ratio=_mean(one.utilization_memory_ratio for one in shown),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _blended(before: Counters, now: Counters) -> Counters:
    """Running means; a figure that is not reported now stays."""
    old = asdict(before)
    moved: dict[str, Any] = {
        name: value if old[name] is None else old[name] + COUNTERS_WEIGHT * (value - old[name])
        for name, value in asdict(now).items()
        if isinstance(value, float)
    }
    return replace(before, **moved)
