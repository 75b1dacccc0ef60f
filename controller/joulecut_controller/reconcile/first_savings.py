"""First recommendation for jobs without a profile: predicted from their counters, before any probe.

While a job runs at default clocks its counters are averaged over the passes. Once probing has
found its curve, counters and measured shares teach the predictions of later jobs. Only NVML's
counters are known here. A prediction decides nothing. What is known is bounded and kept in the
store.
"""

import asyncio
import statistics
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from joulecut_controller.learn.known_jobs import NAME, decoded, encoded
from joulecut_controller.learn.measurement_log import Measurement, ProbedJob
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.ports import Store
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.reconcile.background_tasks import BackgroundTasks
from joulecut_controller.reconcile.online_profiler import OnlineProfiler
from joulecut_controller.view import GpuView, View
from joulecut_engine.estimate.other_jobs import (
    ClockShares,
    Counters,
    FirstSaving,
    KnownJob,
    OtherJobs,
    first_saving,
    measured_shares,
)

KEY = ("first savings", "")  # of the fit among background tasks
KNOWN_KEPT = 512  # jobs; a fit of so many takes two seconds in a worker
COUNTERS_WEIGHT = 0.2  # of the newest pass: a mean over some ten passes
BUSY_MIN = 0.05  # below it the job starts or stands still


@dataclass(slots=True)
class _Job:
    """A job that is not probed to the end yet."""

    shape: str
    counters: Counters
    saving: FirstSaving | None = None
    taught: bool = False


class FirstSavings:
    """Counters of jobs without a profile, and what is predicted from them."""

    def __init__(self, store: Store, audit: AuditLog, background: BackgroundTasks) -> None:
        self._store, self._audit, self._background = store, audit, background
        self._known: list[KnownJob] = []
        self._model = OtherJobs(())
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
        self._model = OtherJobs(self._known)

    async def save(self) -> None:
        """Stores what has changed. Raises Unavailable."""
        if self._changed:
            await asyncio.to_thread(self._store.keep_learnt, NAME, encoded(self._known))
            self._changed = False

    def see(self, observation: JobObservation, profiler: OnlineProfiler, view: View) -> None:
        """Once a pass: a job without a profile is predicted while it is at default clocks, and
        teaches once its curve is known.
        """
        policy, shape = observation.job.policy, observation.shape
        if observation.job.measured.phase.kind == "evaluate":
            return  # predictions are of training
        if policy.profile is not None:
            self._jobs.pop(policy.name, None)
            return
        gpus = [view.gpus[uuid] for uuid in observation.job.placement.uuids if uuid in view.gpus]
        now = counters_of(gpus)
        job = self._jobs.get(policy.name)
        if now is not None and (job is None or job.shape != shape or not job.taught):
            if job is None or job.shape != shape:
                job = self._jobs[policy.name] = _Job(shape, now)
            job.counters = _blended(job.counters, now)
            job.saving = first_saving(
                self._model.possible(job.counters),
                job.counters.card,
                job.counters.clock_ratio * gpus[0].description.clocks_mhz[-1],
                gpus[0].description.clocks_mhz,
                _budget(observation),
            )
        advice = profiler.advice
        if job is None or job.taught or advice is None or advice.verdict != "enough":
            return
        shares = None if profiler.probed is None else shares_of(profiler.probed, job.counters.card)
        if shares is not None:
            job.taught = True
            self._teach(KnownJob(policy.name, job.counters, shares))

    def saving(self, job: str) -> FirstSaving | None:
        """What one lower clock would save of a job that was not probed yet. Predicted."""
        known = self._jobs.get(job)
        return None if known is None or known.taught else known.saving

    def sentence(self, job: str) -> str:
        """One line for the board; empty without a prediction."""
        found = self.saving(job)
        return "" if found is None else sentence(found, len(self._known))

    def _teach(self, known: KnownJob) -> None:
        others = [one for one in self._known if one.workload != known.workload]
        self._known, self._changed = [*others, known][-KNOWN_KEPT:], True
        work = partial(OtherJobs, tuple(self._known))
        self._background.want(KEY, work, self._adopt)

    def _adopt(self, model: OtherJobs) -> None:
        self._model = model


def sentence(found: FirstSaving, known: int) -> str:
    """The prediction in words, with its bands and what it rests on."""
    saved, slower = found.saved, found.slowdown
    rests = "physics alone" if not known else f"{known} probed job{'s' * (known > 1)}"
    return (
        f"predicted from its counters, not measured: at {found.clock_mhz} MHz it would use "
        f"{100 * saved.mean:.0f} % less energy ({100 * saved.low:.0f} to {100 * saved.high:.0f}) "
        f"and be {100 * slower.mean:.1f} % slower "
        f"({100 * slower.low:.1f} to {100 * slower.high:.1f}), by {rests}"
    )


def _budget(observation: JobObservation) -> float:
    """Slowdown (a ratio) that the job's target allows; 0 where it is not known yet."""
    slo, baseline = observation.job.policy.slo, observation.job.measured.baseline
    if slo.max_slowdown is None and baseline is None:
        return 0.0
    base_s = baseline.time_mean_s if baseline is not None else 1.0
    return max(0.0, slo.deadline_s(base_s) / base_s - 1.0)


def counters_of(gpus: Sequence[GpuView]) -> Counters | None:
    """Means over a job's GPUs in one pass; None while one is unknown, idle or under a lease."""
    shown = [gpu.snapshot for gpu in gpus if gpu.snapshot is not None]
    if not gpus or len(shown) < len(gpus) or any(one.lease is not None for one in shown):
        return None
    first = gpus[0].description
    clock_mhz = _mean(one.clock_sm_mhz for one in shown)
    power_w = _mean(one.power_average_w for one in shown)
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


def shares_of(probed: ProbedJob, card: str) -> ClockShares | None:
    """Of all windows below default clocks: by busy times if all have them, else by iterations."""
    first, *rest = probed.measurements
    lower = [one for one in rest if one.clocks_mhz != first.clocks_mhz]
    if not lower:
        return None
    detailed = all(one.busy_s for one in (first, *lower))
    default = np.array(first.clocks_mhz, dtype=np.float64)
    return measured_shares(
        np.minimum(1.0, np.array([one.clocks_mhz for one in lower]) / default),
        np.array([_time_s(one, detailed) / _time_s(first, detailed) for one in lower]),
        np.array([_power_w(one) / _power_w(first) for one in lower]),
        card,
        probed.constants.clock_max_mhz,
    )


def _power_w(one: Measurement) -> float:
    """Mean power of a GPU over whole iterations."""
    return statistics.fmean(one.energy_j) / one.time_s


def _time_s(one: Measurement, detailed: bool) -> float:
    return sum(map(sum, one.busy_s)) if detailed else one.time_s
