"""Rates of jobs from a Prometheus, for jobs that report nothing themselves.

Each job with a rate in its policy is asked for once per range of its expression, so that no two
answers share time. Questions run in threads of their own: a slow Prometheus holds up no pass. An
answer that is no rate becomes one line at the job. Without answers the job counts as silent.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from joulecut_controller.policy.policy import JobPolicy
from joulecut_controller.policy.rate_query import RateQuery
from joulecut_controller.ports import RateSample
from joulecut_controller.sources.prometheus import Access, Prometheus
from joulecut_wire.duration import ITERATION_S_MAX
from joulecut_wire.errors import JoulecutError
from joulecut_wire.messages import ReportFault

PROMQL = "promql"
POLL_S = 0.5  # ranges are 10 s at least
TIMEOUT_S = 5.0  # a Prometheus evaluates such an expression in milliseconds
THREADS = 4
SAMPLES_KEPT = 4096  # until a pass takes them
TEXT_MAX = 240
UNCONFIGURED = (
    "the policy names a rate, the controller no Prometheus; allowed: prometheus: {url: "
    "http://HOST:9090} in its configuration"
)


@dataclass(frozen=True, slots=True)
class RateServer:
    """A Prometheus by its address and credentials."""

    url: str
    access: Access

    def connect(self) -> Prometheus:
        """With the credentials as the files have them now. Raises BadInput."""
        return Prometheus(self.url, self.access, timeout_s=TIMEOUT_S)


@dataclass(slots=True)
class _Asked:
    """One job: its query, when it is due next, and what went wrong since the last sample."""

    query: RateQuery
    due_s: float = -math.inf
    number: int = 0
    waiting: bool = False
    fault: str = ""
    faults: int = 0
    fault_s: float = -math.inf


@dataclass(slots=True)
class PrometheusRates:
    """Implements `ports.Rates` while `run` runs; without a server every rate is a fault."""

    server: RateServer | None
    now_s: Callable[[], float]
    _jobs: dict[str, _Asked] = field(default_factory=dict)
    _samples: deque[RateSample] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))
    _answers: set[asyncio.Task[None]] = field(default_factory=set)

    def take(self) -> tuple[RateSample, ...]:
        taken = tuple(self._samples)
        self._samples.clear()
        return taken

    def faults(self, now_s: float) -> tuple[ReportFault, ...]:
        return tuple(
            ReportFault(job, (), PROMQL, one.fault, one.faults, max(0.0, now_s - one.fault_s))
            for job, one in self._jobs.items()
            if one.fault
        )

    async def run(self, jobs: Callable[[], Iterable[JobPolicy]]) -> None:
        """Asks for the rates of these jobs until it is cancelled."""
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="rates")
        try:
            while True:
                self._follow(jobs())
                self._ask_due(threads)
                await asyncio.sleep(POLL_S)
        finally:
            for answer in self._answers:
                answer.cancel()
            await asyncio.gather(*self._answers, return_exceptions=True)
            threads.shutdown(wait=False, cancel_futures=True)

    def _follow(self, jobs: Iterable[JobPolicy]) -> None:
        wanted = {job.name: job.rate for job in jobs if job.rate and job.mode != "off"}
        for name in [name for name in self._jobs if name not in wanted]:
            del self._jobs[name]
        for name, query in wanted.items():
            known = self._jobs.get(name)
            if known is None or known.query != query:
                # Numbers go on: earlier ones would count as repeated.
                self._jobs[name] = _Asked(query, number=known.number if known else 0)

    def _ask_due(self, threads: ThreadPoolExecutor) -> None:
        now_s = self.now_s()
        for name, one in self._jobs.items():
            if one.waiting or now_s < one.due_s:
                continue
            if self.server is None:
                self._note(one, UNCONFIGURED)
                continue
            one.waiting = True
            task = asyncio.create_task(self._ask(name, one, self.server, threads))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def _ask(
        self, name: str, one: _Asked, server: RateServer, threads: ThreadPoolExecutor
    ) -> None:
        loop = asyncio.get_running_loop()
        ask = partial(_timed_answer, server, one.query.promql, self.now_s)
        try:
            asked_s, arrived_s, values = await loop.run_in_executor(threads, ask)
        except JoulecutError as error:
            self._note(one, str(error))
            return
        finally:
            one.waiting = False
        one.due_s = arrived_s + one.query.range_s
        duration_s = _iteration_time_s(values)
        if duration_s is None:
            self._note(one, _why_not(values))
            return
        if one.faults:  # its range began before there was a rate
            one.fault, one.faults = "", 0
            return
        one.number += 1
        span_s = one.query.range_s + arrived_s - asked_s
        self._samples.append(
            RateSample(name, one.number, duration_s, span_s, arrived_s, source=PROMQL)
        )

    def _note(self, one: _Asked, text: str) -> None:
        one.fault_s = self.now_s()
        one.due_s = one.fault_s + one.query.range_s
        one.fault, one.faults = " ".join(text.split())[:TEXT_MAX], one.faults + 1


def _timed_answer(
    server: RateServer, promql: str, now_s: Callable[[], float]
) -> tuple[float, float, tuple[float, ...]]:
    """When it was asked, when it answered, and the values. Raises BadInput, Unavailable."""
    client = server.connect()
    asked_s = now_s()
    values = client.now(promql)
    return asked_s, now_s(), values


def _iteration_time_s(values: tuple[float, ...]) -> float | None:
    """Of one rate per second; None where there is none, or it is no rate of iterations."""
    if len(values) != 1 or not 1.0 / ITERATION_S_MAX <= values[0] < math.inf:
        return None
    return 1.0 / values[0]


def _why_not(values: tuple[float, ...]) -> str:
    if not values:
        what = "has no value: no such series, or none in its range"
    elif len(values) > 1:
        what = f"has {len(values)} series, which sum(...) makes one"
    else:
        what = f"is {values[0]:g}: the job has no work"
    return f"the rate's expression {what}; allowed: one series with iterations per second"
