"""What other jobs of the cluster say of a job that never ran at lower clocks.

While a job runs at default clocks its counters are averaged over the passes. Jobs that were
measured at lower clocks teach: those with a profile by it, those without by the windows that
learning measured. Of a job without a profile, counters and work at default clocks become a
prediction, which the planner makes a recommendation from. No names are kept: a workload is a hash.
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

from joulecut_controller.learn.known_jobs import KNOWN_KEPT, NAME, decoded, encoded, hashed
from joulecut_controller.learn.longest_paths import reported_kinds
from joulecut_controller.learn.measurement_log import Measurement, ProbedJob
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.plan.predicted import SOURCE, DefaultWorks, Prediction, default_works
from joulecut_controller.ports import Store
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.reconcile.background_tasks import BackgroundTasks
from joulecut_controller.reconcile.online_profiler import OnlineProfiler
from joulecut_controller.view import GpuView, View
from joulecut_engine.estimate.evidence import fingerprint
from joulecut_engine.estimate.other_jobs import (
    JUDGES_MIN,
    PRIOR,
    ROWS_MIN,
    ClockShares,
    Counters,
    FromOtherJobs,
    KnownJob,
    OtherJobs,
    measured_shares,
)
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Profile

KEY = ("other jobs", "")  # of the fit among background tasks
COUNTERS_WEIGHT = 0.2  # of the newest pass: a mean over some ten passes
SEEN_MIN = 5  # passes before counters count
BUSY_MIN = 0.05  # below it the job starts or stands still
POSSIBLE_MAX = 16  # estimators that a band is made of


@dataclass(slots=True)
class _Job:
    """A job at default clocks so far; `taught` names the measurement it has taught by."""

    shape: str
    counters: Counters
    seen: int = 0
    taught: str = ""
    profile: Profile | None = None  # that `fingerprint` is of
    fingerprint: str = ""
    made: tuple[object, Prediction] | None = None  # for what, and the prediction


class Predictions:
    """Counters of jobs, the known jobs, and what is predicted of jobs without a profile."""

    def __init__(self, store: Store, audit: AuditLog, background: BackgroundTasks) -> None:
        self._store, self._audit, self._background = store, audit, background
        self._known: list[KnownJob] = []
        self._model = OtherJobs(())
        self._learns = True
        self._jobs: dict[str, _Job] = {}
        self.begun = False
        self._changed = False

    def keep_only(self, jobs: Container[str]) -> None:
        """Jobs that left the policy are forgotten; what they taught stays."""
        self._jobs = {name: job for name, job in self._jobs.items() if name in jobs}

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
            known = tuple(self._known)
            taught = await asyncio.to_thread(self._keep, known)
            self._changed = tuple(self._known) != known  # a job may have taught meanwhile
            self._known = [*taught, *self._known][-KNOWN_KEPT:]

    def _keep(self, known: tuple[KnownJob, ...]) -> list[KnownJob]:
        """Stores the known jobs beside those that `joulecut study teach` stored since; returns
        these.
        """
        taught: list[KnownJob] = []
        with contextlib.suppress(ValueError):  # a damaged record is reported by `begin`
            stored = decoded(self._store.learnt(NAME))
            mine = {one.workload for one in known}
            taught = [one for one in stored if one.workload not in mine]
        self._store.keep_learnt(NAME, encoded([*taught, *known][-KNOWN_KEPT:]))
        return taught

    def learn(self, on: bool) -> None:
        """Whether known jobs correct the prior: the policy's switch."""
        if on != self._learns:
            self._learns = on
            self._fit()

    def see(self, observation: JobObservation, profiler: OnlineProfiler, view: View) -> None:
        """Once a pass: counters are averaged while the job is at default clocks, and it teaches
        once its curve is known.
        """
        name, shape = observation.job.policy.name, observation.shape
        if observation.job.measured.phase.kind == "evaluate":
            return  # predictions are of training
        gpus = [view.gpus[uuid] for uuid in observation.job.placement.uuids if uuid in view.gpus]
        drawn_w = [one.power_w for one in observation.job.measured.loads]
        now, job = counters_of(gpus, _mean(drawn_w)), self._jobs.get(name)
        if now is not None:
            if job is None or job.shape != shape:
                job = self._jobs[name] = _Job(shape, now)
            job.counters, job.seen = _blended(job.counters, now), job.seen + 1
        if job is None or job.seen < SEEN_MIN:
            return
        taught = _lesson_name(observation, profiler, job)
        if taught and taught != job.taught:
            job.taught = taught
            self._teach(hashed(name), _lesson(observation, profiler, job.counters))

    def of(self, observation: JobObservation, view: View) -> Prediction | None:
        """Of a job that was seen for a while at default clocks; None of one with a profile."""
        policy = observation.job.policy
        job = self._jobs.get(policy.name)
        if policy.profile is not None or job is None or job.seen < SEEN_MIN:
            return None
        if observation.job.measured.phase.kind == "evaluate":
            return None
        works = default_works(observation.job, view.gpus)
        if works is None or policy.pipeline is None:
            return job.made[1] if job.made and job.made[0] == self._rests_on(job) else None
        made = _prediction(self._model, works, job.counters, view)
        job.made = (self._rests_on(job), made)
        return made

    def sentence(self, job: str) -> str:
        """One line for the board: what predicts, and what each predictor would have erred on the
        job, once it is known; empty while nothing is predicted of it.
        """
        known = self._jobs.get(job)
        if known is None:
            return ""
        if known.taught:
            return _erred(self._model, hashed(job))
        return rests_on(self._model) if known.made else ""

    def _rests_on(self, job: _Job) -> object:
        return job.shape, id(self._model)

    def _teach(self, workload: str, rows: Sequence[tuple[Counters, ClockShares]]) -> None:
        others = [one for one in self._known if one.workload != workload]
        taught = [KnownJob(workload, *row) for row in rows]
        self._known, self._changed = [*others, *taught][-KNOWN_KEPT:], True
        self._fit()

    def _fit(self) -> None:
        work = partial(OtherJobs, tuple(self._known), learns=self._learns)
        self._background.want(KEY, work, self._adopt)

    def _adopt(self, model: OtherJobs) -> None:
        self._model = model


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
    text = rests_on(model)
    if not works.detailed:
        text += "; stages as if alike, since the job reports its rate alone"
    judged = model.predicts != PRIOR and model.known >= JUDGES_MIN
    return Prediction(works, made[0], made, text, judged)


def _half(kind: Kind) -> str:
    """Forward, or backward as a whole: its halves are no kinds of their own here."""
    return "forward" if kind == "forward" else "backward"


def _lesson_name(observation: JobObservation, profiler: OnlineProfiler, job: _Job) -> str:
    """Names a measurement at lower clocks; empty before there is one."""
    profile, advice = observation.job.policy.profile, profiler.advice
    if profile is not None:
        if profile is not job.profile:  # its fingerprint takes a millisecond
            job.profile, job.fingerprint = profile, fingerprint(profile)
        return job.fingerprint
    if profiler.probed is None or advice is None or advice.verdict != "enough":
        return ""
    return f"windows of {observation.shape}, {profiler.restarts}"  # learnt again: taught again


def _lesson(
    observation: JobObservation, profiler: OnlineProfiler, counters: Counters
) -> list[tuple[Counters, ClockShares]]:
    """The shares that a measurement shows, by kind."""
    profile = observation.job.policy.profile
    if profile is not None:
        top = max(options[-1].clock_mhz for options in map(sorted, profile.options.values()))
        return list(_of_profile(profile, counters, float(top)))
    assert profiler.probed is not None  # it has a name
    return list(_of_windows(profiler.probed, counters))


def _of_profile(
    profile: Profile, counters: Counters, top_mhz: float
) -> Iterable[tuple[Counters, ClockShares]]:
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


def _of_windows(probed: ProbedJob, counters: Counters) -> Iterable[tuple[Counters, ClockShares]]:
    """Of all windows below default clocks: by kind where all have busy times, else of iterations.
    The power is that of whole iterations.
    """
    first, *rest = probed.measurements
    lower = [one for one in rest if one.clocks_mhz != first.clocks_mhz]
    if not lower:
        return
    default = np.array(first.clocks_mhz, dtype=np.float64)
    detailed = all(one.busy_s for one in (first, *lower))
    kinds: Sequence[str] = reported_kinds(probed.constants.pipeline) if detailed else ("",)
    for at, kind in enumerate(kinds):
        before = _time_s(first, at if detailed else None)
        shares = measured_shares(
            np.minimum(1.0, np.array([one.clocks_mhz for one in lower]) / default),
            np.array([_time_s(one, at if detailed else None) / before for one in lower]),
            np.array([_power_w(one) / _power_w(first) for one in lower]),
            counters.card,
            default_mhz=statistics.fmean(first.clocks_mhz),
            top_mhz=probed.constants.clock_max_mhz,
        )
        if shares is not None:
            yield replace(counters, kind=kind), shares


def _power_w(one: Measurement) -> float:
    """Mean power of a GPU over whole iterations."""
    return statistics.fmean(one.energy_j) / one.time_s


def _time_s(one: Measurement, kind: int | None) -> float:
    return one.time_s if kind is None else sum(each[kind] for each in one.busy_s)


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
