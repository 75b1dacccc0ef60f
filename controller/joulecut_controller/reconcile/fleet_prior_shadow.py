"""Fleet prior in shadow: predictions for jobs without a profile, compared with probed curves.

Before a job is probed, its figures at default clocks and the prediction of each predictor are
recorded. Once its curve is known, the predictions are scored, and the job trains the next forest.
Predictions decide nothing. Records are bounded and kept in the store.
"""

import asyncio
import statistics
from collections.abc import Container, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np

from joulecut_controller.board import Learnt, PriorErrors
from joulecut_controller.learn.measurement_log import Measurement, ProbedJob
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.ports import Store
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.reconcile.background_tasks import BackgroundTasks
from joulecut_controller.reconcile.online_profiler import OnlineProfiler
from joulecut_controller.view import GpuView, View
from joulecut_engine.estimate.fleet_prior import (
    CurveShares,
    FinishedJob,
    Predictor,
    Shown,
    errors,
    measured_shares,
    predictions,
)

NAME = "fleet prior"  # of the text in the store, and of its tasks
FINISHED_KEPT = 512  # jobs; a forest of them takes a third of a second
SCORES_KEPT = 64  # the newest: a fleet changes
RECORDS_KEPT = 1024  # jobs with a prediction
TRIAL_JOBS, TRIAL_RATIO = 20, 0.5  # when a trial with fewer probes would be worth it
VERSION = 1


class _Record(msgspec.Struct):
    """One job in one shape."""

    shape: str
    shown: Shown
    predicted: dict[Predictor, CurveShares] | None = None  # None until a worker has answered
    finished: bool = False


class _State(msgspec.Struct):
    """The stored form."""

    version: int = VERSION
    records: dict[str, _Record] = {}
    finished: list[FinishedJob] = []
    scores: list[tuple[dict[Predictor, CurveShares], CurveShares]] = []


class FleetPriorShadow:
    """Records and scores of the whole fleet."""

    def __init__(self, store: Store, audit: AuditLog, background: BackgroundTasks) -> None:
        self._store, self._audit, self._background = store, audit, background
        self._state = _State()
        self.begun = False
        self._changed = False
        self.shown: PriorErrors | None = None  # None before the first score
        self._asked: set[str] = set()  # jobs whose prediction was asked of a worker

    def keep_only(self, jobs: Container[str]) -> None:
        """Records of jobs that left the policy stay."""
        self._asked = {job for job in self._asked if job in jobs}

    def begin(self) -> None:
        """Reads what an earlier controller recorded. Raises Unavailable."""
        kept = self._store.learnt(NAME)
        self.begun = True
        if not kept:
            return
        try:
            state = msgspec.json.decode(kept, type=_State)
            if state.version != VERSION:
                raise ValueError(f"version {state.version}, not {VERSION}")
        except (ValueError, RecursionError) as error:  # DecodeError is a ValueError
            line = str(error).splitlines()[0]
            self._audit.note(
                "learn", "", f"the fleet prior cannot be read and starts empty: {line}"
            )
        else:
            self._state = state
            self.shown = _errors(state.scores)

    async def save(self) -> None:
        """Stores what has changed. Raises Unavailable."""
        if self._changed:
            text = msgspec.json.encode(self._state).decode()
            await asyncio.to_thread(self._store.keep_learnt, NAME, text)
            self._changed = False

    def see(self, observation: JobObservation, profiler: OnlineProfiler, view: View) -> None:
        """Once a pass: records a job without a profile after its first window, which ran at default
        clocks, and finishes it once its curve is known.
        """
        name, shape, probed = observation.view.policy.name, observation.shape, profiler.probed
        if observation.view.policy.profile is not None or probed is None:
            return
        record = self._state.records.get(name)
        if record is None or record.shape != shape:
            gpus = [view.gpus[uuid] for uuid in observation.placement.uuids if uuid in view.gpus]
            if not gpus:
                return
            record = self._record(name, _Record(shape, _shown(gpus, probed)))
        if record.predicted is None and name not in self._asked:
            self._asked.add(name)
            work = partial(predictions, tuple(self._state.finished), record.shown)
            self._background.want((NAME, name), work, partial(self._predicted, record))
        advice = profiler.advice
        if not record.finished and advice is not None and advice.verdict == "enough":
            self._finish(record, probed)

    def _record(self, name: str, record: _Record) -> _Record:
        self._changed, records = True, self._state.records
        self._asked.discard(name)
        records.pop(name, None)
        records[name] = record
        while len(records) > RECORDS_KEPT:
            del records[next(iter(records))]
        return record

    def _predicted(self, record: _Record, predicted: dict[Predictor, CurveShares]) -> None:
        record.predicted, self._changed = predicted, True

    def _finish(self, record: _Record, probed: ProbedJob) -> None:
        """Scores the predictions of a job, if all could predict it; from now on it teaches."""
        shares = _shares(probed)
        if shares is None or record.predicted is None:
            return
        record.finished = self._changed = True
        if "forest" in record.predicted:
            self._state.scores = [*self._state.scores, (record.predicted, shares)][-SCORES_KEPT:]
            self.shown = _errors(self._state.scores)
        finished = FinishedJob(record.shown, shares)
        self._state.finished = [*self._state.finished, finished][-FINISHED_KEPT:]

    def learnt(self, job: str) -> Learnt | None:
        """For the board, of a job with a recorded prediction."""
        record = self._state.records.get(job)
        if record is None or not record.predicted:
            return None
        name: Predictor = "forest" if "forest" in record.predicted else "physics"
        share = record.predicted[name].time
        expects = f"{name} expects {share:.0%} of the time to follow the clock".replace("%", " %")
        finished = len(self._state.finished)
        return Learnt(
            f"fleet prior in shadow, decides nothing: {expects}; {sentence(self.shown, finished)}"
        )


def _errors(
    scores: Sequence[tuple[Mapping[Predictor, CurveShares], CurveShares]],
) -> PriorErrors | None:
    found = errors(scores)
    by_name: dict[str, tuple[float, float]] = {
        name: (one.time, one.power) for name, one in found.items()
    }
    return PriorErrors(len(scores), by_name) if found else None


def sentence(shown: PriorErrors | None, finished: int) -> str:
    """The errors beside each other, and what would make the forest worth a trial."""
    if shown is None:
        teach = "job teaches" if finished == 1 else "jobs teach"
        return f"no forest was scored yet, {finished} finished {teach} it"
    points = {name: 100.0 * time for name, (time, _) in shown.errors.items()}
    earned = shown.jobs >= TRIAL_JOBS and points["forest"] <= TRIAL_RATIO * points["physics"]
    wanted = "now" if earned else f"at half of physics alone over {TRIAL_JOBS} jobs"
    jobs = "1 job" if shown.jobs == 1 else f"{shown.jobs} jobs"
    return (
        f"mean error over {jobs}: forest {points['forest']:.0f} points, physics alone "
        f"{points['physics']:.0f}, mean of the fleet {points['mean']:.0f}; worth a trial {wanted}"
    )


def _shown(gpus: Sequence[GpuView], probed: ProbedJob) -> Shown:
    first, gpu = probed.measurements[0], gpus[0].description
    seen = [gpu.snapshot for gpu in gpus if gpu.snapshot]
    return Shown(
        card=gpu.model,
        clock_ratio=statistics.fmean(first.clocks_mhz) / probed.constants.clock_max_mhz,
        power_ratio=_power_w(first) / (gpu.power_limit_default_w or _power_w(first)),
        busy_ratio=_busy_ratio(first, probed),
        gpu_ratio=_mean([one.utilization_gpu_ratio for one in seen]),
        memory_ratio=_mean([one.utilization_memory_ratio for one in seen]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _power_w(one: Measurement) -> float:
    """Mean power of a GPU over whole iterations."""
    return statistics.fmean(one.energy_j) / one.time_s


def _busy_ratio(one: Measurement, probed: ProbedJob) -> float | None:
    if not one.busy_s:
        return None
    pipeline = probed.constants.pipeline
    count = pipeline.microbatches * pipeline.chunks
    return count * statistics.fmean(sum(busy) for busy in one.busy_s) / one.time_s


def _shares(probed: ProbedJob) -> CurveShares | None:
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
        probed.constants.clock_max_mhz,
    )


def _time_s(one: Measurement, detailed: bool) -> float:
    return sum(map(sum, one.busy_s)) if detailed else one.time_s
