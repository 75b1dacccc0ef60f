"""Rate source of last resort: iteration times of jobs that report nothing, from power samples.

Only GPUs that a scheduler gave to one job are sampled. A report is an estimate: the mean over a
block of iterations that no change of clocks falls into. Without a clear period there is no report,
and the job's owner sees why. While another source reports for a job, nothing is reported; its
period is measured once in `CHECK_S`, to compare that source with.
"""

import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from joulecut_agent.jobs.power_period import PERIODS_MIN, find_period
from joulecut_agent.jobs.rate_source import (
    NO_SENDER,
    ONE_STAGE,
    POWER,
    Fault,
    Inbox,
    Submission,
)
from joulecut_agent.jobs.warnings import Warnings
from joulecut_wire.messages import IterationReport

STEP_S = 0.1  # boards average their power over 25 to 100 ms
WINDOW_S = 200.0  # a first period; four of them fit, so iterations of up to 50 s are found
BLOCK_S, BLOCK_PERIODS = 30.0, 2 * PERIODS_MIN  # the shortest block of iterations reported at once
REPORTED_MAX = 32  # iterations at once: more than a baseline needs, and 16 GPUs fit the inbox
TURN_S = 2.0  # driver buffers are kept for ten seconds
QUIET_S = 60.0  # without another source; a job that loads its data reports later
QUIET_ITERATIONS = 8.0
RETRY_S = 600.0  # after a refusal: a job without a period (inference) rarely gets one
CHECK_S = 3600.0  # between comparisons with another source: forms of logs rarely change
GAP_S_MAX = 1.0  # missed samples that are filled with the last one
ALLOWED = "another source (docs/integrations.md)"

Series = Iterable[tuple[float, float]]  # Unix time, watts


class Stream(Protocol):
    """Fast samples of some GPUs."""

    def take(self) -> Iterable["Batch"]: ...


class Batch(Protocol):
    """New samples of one GPU."""

    @property
    def uuid(self) -> str: ...

    @property
    def power_w(self) -> Series: ...


class _Power:
    """Mean power of one GPU in each step of STEP_S, without a gap."""

    def __init__(self) -> None:
        self.first = 0  # step of the first value
        self.values: list[float] = []
        self._sum_w, self._count = 0.0, 0

    @property
    def end(self) -> int:
        return self.first + len(self.values)

    def put(self, series: Series) -> None:
        for at_s, power_w in series:
            step = int(at_s / STEP_S)
            if self._count and step > self.end:
                self._close(step)
            if not self.values and not self._count:
                self.first = step
            self._sum_w, self._count = self._sum_w + power_w, self._count + 1

    def _close(self, step: int) -> None:
        """Ends the step under way; `step` is that of the next sample."""
        mean_w, missed = self._sum_w / self._count, step - self.end - 1
        self._sum_w, self._count = 0.0, 0
        if missed * STEP_S > GAP_S_MAX:
            self.values.clear()
            return
        self.values += [mean_w] * (1 + missed)
        keep = round(WINDOW_S / STEP_S)
        if (more := len(self.values) - keep) > 0:
            del self.values[:more]
            self.first += more


@dataclass(slots=True)
class _Job:
    """One job on this node. `reported` is the step up to which its iterations are reported."""

    uuids: tuple[str, ...]
    since_s: float
    clocks: Hashable
    reported: int = 0
    period_s: float = 0.0
    iterations: int = 0
    rests_until_s: float = 0.0
    heard: bool = False  # another source reports for it
    powers: dict[str, _Power] = field(default_factory=dict)

    def samples(self) -> tuple[int, list[float]]:
        """Power of all GPUs together in each step, and the step of the first."""
        powers = list(self.powers.values())
        begin = max([self.reported, *(one.first for one in powers)])
        count = min([one.end for one in powers], default=0) - begin
        if count <= 0 or len(powers) < len(self.uuids):
            return begin, []
        parts = (one.values[begin - one.first :][:count] for one in powers)
        return begin, [sum(watts) for watts in zip(*parts, strict=True)]


class PowerSource:
    """Samples in its own thread between `start` and `close`; without `start`, `turn` does."""

    name = POWER

    def __init__(
        self, inbox: Inbox, *, jobs: Callable[[], Mapping[str, tuple[str, ...]]],
        clocks: Callable[[Collection[str]], Hashable],
        subscribe: Callable[[Collection[str]], Stream], unsubscribe: Callable[[Any], None],
        refused: Callable[[Fault], None], compared: Callable[[str, float], None],
    ) -> None:  # fmt: skip
        """`jobs` returns the GPUs of each job by a scheduler, `clocks` a value that changes with
        the clocks that we set. `refused` takes why a job has no period, `compared` the GPU and
        period of one that another source reports for.
        """
        self._inbox = inbox
        self._scheduled = jobs
        self._clocks = clocks
        self._subscribe, self._unsubscribe = subscribe, unsubscribe
        self._refused, self._compared = refused, compared
        self._jobs: dict[str, _Job] = {}
        self._heard_until_s: dict[str, float] = {}
        self._stream: tuple[frozenset[str], Stream] | None = None
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="power", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._leaving.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        self._sample(frozenset())

    def heard(self, uuid: str, duration_s: float, now_s: float) -> None:
        """Another source has reported for a GPU."""
        self._heard_until_s[uuid] = now_s + max(QUIET_S, QUIET_ITERATIONS * duration_s)

    def turn(self, now_s: float) -> None:
        """Takes samples, and reports blocks of iterations that have ended."""
        self._follow(now_s)
        sampled = {n: one for n, one in self._jobs.items() if self._is_sampled(one, now_s)}
        self._sample(frozenset(uuid for one in sampled.values() for uuid in one.uuids))
        if self._stream is None:
            return
        batches = {batch.uuid: batch for batch in self._stream[1].take()}
        for name, one in sampled.items():
            clocks = self._clocks(one.uuids)
            if clocks != one.clocks:  # the samples mix old and new clocks
                one.clocks, one.powers = clocks, {}
                continue
            for uuid in one.uuids:
                if uuid in batches:
                    one.powers.setdefault(uuid, _Power()).put(batches[uuid].power_w)
            self._estimate(name, one, now_s)

    def _follow(self, now_s: float) -> None:
        """The jobs that run now; a job on other GPUs is another one."""
        scheduled = self._scheduled()
        for name in [n for n, one in self._jobs.items() if scheduled.get(n) != one.uuids]:
            del self._jobs[name]
        for name, uuids in scheduled.items():
            if name not in self._jobs:
                self._jobs[name] = _Job(uuids, now_s, self._clocks(uuids))
        mine = {uuid for one in self._jobs.values() for uuid in one.uuids}
        for uuid in self._heard_until_s.keys() - mine:
            self._heard_until_s.pop(uuid, None)

    def _is_sampled(self, one: _Job, now_s: float) -> bool:
        heard = any(now_s < self._heard_until_s.get(uuid, 0.0) for uuid in one.uuids)
        if heard == one.heard and now_s >= max(one.since_s + QUIET_S, one.rests_until_s):
            return True
        if heard != one.heard:
            one.heard, one.rests_until_s = heard, 0.0
        one.powers, one.period_s = {}, 0.0
        return False

    def _sample(self, uuids: frozenset[str]) -> None:
        if self._stream is not None and self._stream[0] != uuids:
            self._unsubscribe(self._stream[1])
            self._stream = None
        if uuids and self._stream is None:
            self._stream = (uuids, self._subscribe(uuids))

    def _estimate(self, name: str, one: _Job, now_s: float) -> None:
        begin, samples = one.samples()
        wanted_s = max(BLOCK_S, BLOCK_PERIODS * one.period_s) if one.period_s else WINDOW_S
        if len(samples) * STEP_S < wanted_s - STEP_S:
            return
        found = find_period(samples, STEP_S, one.period_s)
        if one.heard:
            one.rests_until_s = now_s + CHECK_S
            if not isinstance(found, str):
                self._compared(one.uuids[0], found.period_s)
            return
        if isinstance(found, str):
            one.rests_until_s = now_s + RETRY_S
            text = f"no iteration time from power: {found}; allowed: {ALLOWED}"
            self._refused(Fault(NO_SENDER, POWER, text, one.uuids[0]))
            return
        one.period_s = found.period_s
        one.reported = begin + len(samples)
        count = round(len(samples) * STEP_S / found.period_s)
        one.iterations += max(0, count - REPORTED_MAX)
        for ago in range(min(count, REPORTED_MAX) - 1, -1, -1):
            one.iterations += 1
            for uuid in one.uuids:
                report = IterationReport(
                    name, uuid, 0, one.iterations, found.period_s, source=POWER, shape=ONE_STAGE
                )
                ended_s = now_s - ago * found.period_s
                self._inbox.submit(Submission(report, NO_SENDER, POWER, ended_s, permitted=True))

    def _run(self) -> None:
        warnings = Warnings()
        while not self._leaving.wait(TURN_S):
            warnings.attempt(lambda: self.turn(time.monotonic()), "power of jobs was not sampled")
