"""What other jobs of the cluster say of a job that never ran at lower clocks.

While a job runs at default clocks its counters are averaged over the passes. Jobs that were
measured at lower clocks teach: those with a profile by it, those without by what the estimator has
learnt of them. Of a job without a profile, counters and work at default clocks become a prediction.
The planner makes a recommendation from it. Enforcement begins from it as from a profile, and the
estimator corrects that by the job's own operations. No names are kept: a workload is a hash. What
is known is bounded, and kept in the store.
"""

import asyncio
import hashlib
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from joulecut_controller.learn.known_jobs import NAME, decoded, encoded, hashed
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.predicted import SOURCE, DefaultWorks, Prediction, default_works
from joulecut_controller.ports import Store
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.reconcile.background_tasks import BackgroundTasks
from joulecut_controller.view import GpuView, JobState, View
from joulecut_engine.estimate.estimator import Subject
from joulecut_engine.estimate.evidence import fingerprint
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.estimate.other_jobs import (
    FALL_MIN,
    PRIOR,
    ROWS_MIN,
    ClockShares,
    Counters,
    FromOtherJobs,
    KnownJob,
    OtherJobs,
    measured_shares,
)
from joulecut_engine.estimate.refit import fit_profile
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Profile

KEY = ("other jobs", "")  # of the fit among background tasks
KNOWN_KEPT = 512  # rows, one or two of a job; a fit of so many takes two seconds in a worker
COUNTERS_WEIGHT = 0.2  # of the newest pass: a mean over some ten passes
SEEN_MIN = 5  # passes before counters count
BUSY_MIN = 0.05  # below it the job starts or stands still
POSSIBLE_MAX = 16  # estimators that a band is made of
WORKS_MAX = 1_000  # whose counters are averaged; the one not seen for longest is forgotten


@dataclass(slots=True)
class _Job:
    """A job at default clocks so far; `taught` names the measurement it has taught by."""

    counters: Counters
    seen: int = 0
    taught: str = ""
    profile: Profile | None = None  # that `fingerprint` is of
    fingerprint: str = ""
    made: tuple[int, Prediction] | None = None  # by which model, and the prediction


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
        self._model = OtherJobs(())
        self._learns = True
        self._jobs: dict[str, _Job] = {}
        self.begun = False
        self._changed = False

    def begin(self) -> None:
        """Reads what an earlier controller was taught; call it in a thread. Raises Unavailable."""
        kept = self._store.learnt(NAME)
        self.begun = True
        try:
            self._known = decoded(kept)
        except ValueError as error:
            self._audit.note("learn", "", f"known jobs cannot be read and start empty: {error}")
        self._model = OtherJobs(self._known, learns=self._learns)

    async def save(self) -> None:
        """Stores what has changed. Raises Unavailable."""
        if self._changed:
            await asyncio.to_thread(self._store.keep_learnt, NAME, encoded(self._known))
            self._changed = False

    def learn(self, on: bool) -> None:
        """Whether known jobs correct the prior: the policy's switch."""
        if on != self._learns:
            self._learns = on
            self._fit()

    async def with_profile(self, observation: JobObservation, view: View) -> JobObservation:
        """Once a pass: counters are averaged while the job is at default clocks, and it teaches
        once its curve is known. A job without a profile that may be enforced gets the one that is
        predicted of it. Raises ValueError for work that no curve fits.
        """
        job, name = observation.job, predicted_workload(observation.job)
        policy, known = job.policy, self._see(observation, view, name)
        if policy.profile is None and policy.pipeline is not None and policy.mode == "enforce":
            profile = self._learner.profile(name)
            if profile is None and known is not None and job.measured.baseline is not None:
                made = self._predicted(job, known, view)
                profile = made.profile() if made is not None else None
                if profile is not None:
                    fitted = await asyncio.to_thread(fit_profile, name, profile)
                    self._learner.add_profile(name, profile, fitted)
            if profile is not None:
                blocking_w = policy.blocking_power_w or profile.blocking_power_w
                policy = replace(policy, profile=profile, blocking_power_w=blocking_w)
                job = replace(job, policy=policy, predicted_work=name)
        return replace(observation, job=job)

    def of(self, observation: JobObservation, view: View) -> Prediction | None:
        """Of a job that was seen for a while at default clocks; None of one with a profile."""
        job = observation.job
        known = self._jobs.get(predicted_workload(job))
        if job.policy.profile is not None or known is None or known.seen < SEEN_MIN:
            return None
        return self._predicted(job, known, view)

    def _see(self, observation: JobObservation, view: View, name: str) -> "_Job | None":
        """What is known of the job; None before it was seen for a while."""
        gpus = [view.gpus[uuid] for uuid in observation.job.placement.uuids if uuid in view.gpus]
        drawn_w = [one.power_w for one in observation.job.measured.loads]
        now, job = counters_of(gpus, _mean(drawn_w)), self._jobs.pop(name, None)
        if now is not None:
            job = job or _Job(now)
            job.counters, job.seen = _blended(job.counters, now), job.seen + 1
        if job is None:
            return None
        self._jobs[name] = job  # the newest last
        if len(self._jobs) > WORKS_MAX:
            del self._jobs[next(iter(self._jobs))]
        if job.seen < SEEN_MIN:
            return None
        if observation.job.measured.phase.kind == "train":
            self._learn_from(observation.job, name, job)
        return job

    def _learn_from(self, job: JobState, name: str, known: "_Job") -> None:
        """Its curve, once there is one: of its profile, or as measured at lower clocks."""
        profile = job.policy.profile
        if profile is not None:
            if profile is not known.profile:  # its fingerprint takes a millisecond
                known.profile, known.fingerprint = profile, fingerprint(profile)
            taught, rows = known.fingerprint, profile
        else:
            rows = learnt_profile(self._learner, name)
            clocks = sorted(one.clock_mhz for each in rows.options.values() for one in each)
            if not clocks or clocks[0] > (1.0 - FALL_MIN) * clocks[-1]:
                return
            taught = f"{name} {len(clocks)} {clocks[0]}"
        if taught != known.taught:
            known.taught = taught
            top_mhz = max(one.clock_mhz for each in rows.options.values() for one in each)
            self._teach(hashed(job.policy.name), _of_profile(rows, known.counters, float(top_mhz)))

    def _predicted(self, job: JobState, known: "_Job", view: View) -> Prediction | None:
        works = default_works(job, view.gpus)
        if works is None or job.policy.pipeline is None:
            return known.made[1] if known.made and known.made[0] == id(self._model) else None
        made = _prediction(self._model, works, known.counters, view)
        known.made = (id(self._model), made)
        return made

    def sentence(self, job: JobState) -> str:
        """One line for the board: what predicts, and what each predictor would have erred on the
        job, once it is known; empty while nothing is predicted of it.
        """
        known = self._jobs.get(predicted_workload(job))
        if known is None:
            return ""
        if known.taught:
            return _erred(self._model, hashed(job.policy.name))
        return rests_on(self._model) if known.made else ""

    def _teach(self, workload: str, rows: Iterable[tuple[Counters, ClockShares]]) -> None:
        others = [one for one in self._known if one.workload != workload]
        taught = [KnownJob(workload, *row) for row in rows]
        self._known, self._changed = [*others, *taught][-KNOWN_KEPT:], True
        self._fit()

    def _fit(self) -> None:
        work = partial(OtherJobs, tuple(self._known), learns=self._learns)
        self._background.want(KEY, work, self._adopt)

    def _adopt(self, model: OtherJobs) -> None:
        self._model = model


def predicted_workload(job: JobState) -> str:
    """Names the job's work on its GPUs, whatever its microbatches; by its own name where its
    profile is measured.
    """
    policy, pipeline = job.policy, job.policy.pipeline
    if job.predicted_work or policy.profile is not None or pipeline is None:
        return job.workload
    content = repr((job.placement.stages, replace(pipeline, microbatches=1)))
    return f"{policy.name}#{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def learnt_profile(learner: OnlineEstimator, workload: str) -> Profile:
    """What the estimator says of a workload at the clocks that it ran at."""
    begun = learner.profile(workload)
    options: dict[tuple[int, Kind], tuple[ClockOption, ...]] = {}
    for stage, kind in begun.options if begun is not None else ():
        subject = Subject(workload, "", stage, kind)
        clocks = learner.measured_clocks_mhz(subject)
        curve = learner.predict(subject, clocks) if clocks else None
        if curve is not None:
            rows = zip(clocks, curve.time_s.tolist(), curve.power_w.tolist(), strict=True)
            options[stage, kind] = tuple(ClockOption(m, s, s * w) for m, s, w in rows)
    return Profile(options)


def rests_on(model: OtherJobs) -> str:
    """What a prediction rests on, in words."""
    if model.predicts == PRIOR:
        known = f"; {_jobs(model.known)} here not enough to correct them" if model.known else ""
        return f"{SOURCE}: public sweeps alone{known}"
    return f"{SOURCE}: {model.predicts} of {_jobs(model.known)} measured here, and public sweeps"


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"


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


def _prediction(
    model: OtherJobs, works: DefaultWorks, counters: Counters, view: View
) -> Prediction:
    kinds = {kind for _, kind in works.works}
    of_kind = {kind: replace(counters, kind=_half(kind)) for kind in sorted(kinds)}
    possible = {kind: model.possible(one) for kind, one in of_kind.items()}
    rows = next(iter(possible.values())).shape[0]
    picked = range(rows)
    if rows > POSSIBLE_MAX:  # by the error of the time, from one end to the other
        order = np.argsort(next(iter(possible.values()))[1:, 0], kind="stable") + 1
        ends = np.linspace(0, rows - 2, POSSIBLE_MAX - 1).round().astype(int)
        picked = (0, *order[ends].tolist())  # type: ignore[assignment]
    clocks = sorted({mhz for gpu in view.gpus.values() for mhz in gpu.description.clocks_mhz})
    made = tuple(
        FromOtherJobs(
            works.works,
            {kind: ClockShares(*map(float, each[row])) for kind, each in possible.items()},
            clocks,
        )
        for row in picked
    )
    sure = FromOtherJobs(
        works.works, {kind: model.sure(one) for kind, one in of_kind.items()}, clocks
    )
    text = rests_on(model)
    if not works.detailed:
        text += "; one clock for all GPUs, since the job reports its rate alone"
    return Prediction(works, made[0], sure, made, text)


def _half(kind: Kind) -> str:
    """Forward, or backward as a whole: its halves are no kinds of their own here."""
    return "forward" if kind == "forward" else "backward"


def _of_profile(
    profile: Profile, counters: Counters, top_mhz: float
) -> Iterator[tuple[Counters, ClockShares]]:
    """Of each kind, the mean over stages."""
    found: dict[str, list[ClockShares]] = {}
    for (_, kind), options in profile.options.items():
        shares = _of_options(sorted(options), counters, top_mhz)
        if shares is not None:
            found.setdefault(_half(kind), []).append(shares)
    for half, each in found.items():
        mean = ClockShares(
            statistics.fmean(one.time for one in each), statistics.fmean(one.power for one in each)
        )
        yield replace(counters, kind=half), mean


def _of_options(
    rows: Sequence[ClockOption], counters: Counters, top_mhz: float
) -> ClockShares | None:
    """From the clock that the job was seen at by default; what is above it never runs."""
    default_mhz = counters.clock_ratio * top_mhz
    below = [row for row in rows if row.clock_mhz <= default_mhz * (1.0 + 1e-9)]
    if len(below) < 2:
        return None
    *lower, top = below
    return measured_shares(
        np.array([[row.clock_mhz / top.clock_mhz] for row in lower]),
        np.array([row.time_s / top.time_s for row in lower]),
        np.array([row.power_w / top.power_w for row in lower]),
        counters.card,
        default_mhz=top.clock_mhz,
        top_mhz=top_mhz,
    )


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
