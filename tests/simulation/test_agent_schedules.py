"""Clock programs through real processes, over the NVML binding."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from driven_agent import agent_on, fake_driver
from running_agent import PATIENCE_S, RunningAgent, eventually

from joulecut import Reporter
from joulecut_wire import codec
from joulecut_wire.messages import Command, Result, ScheduleStep, Setting, TimedStep
from joulecut_wire.v1 import agent_pb2 as pb

Mark = tuple[str, str, int, int]  # begin or end, kind, microbatch, iteration


@dataclass
class Site:
    """A node, and the highest clock that each of its GPUs is locked to (0: none)."""

    node: RunningAgent
    locked_mhz: Callable[[], list[int]]
    load: Callable[[int, float], None] = lambda *_: None
    reporters: list[Reporter] = field(default_factory=list)
    program: tuple[ScheduleStep, ...] = ()

    def begin(self) -> None:
        self.node.start()
        about = self.node.describe()
        assert about.schedule_steps_max >= 256
        self.uuids = [gpu.uuid for gpu in about.gpus]
        listed = about.gpus[0].clocks_mhz
        self.high, self.middle, self.low = listed[-1], listed[-8], listed[-15]
        self.program = (
            ScheduleStep("forward", self.low), ScheduleStep("forward", self.middle, 3),
            ScheduleStep("backward", self.high, at_end=True),
        )  # fmt: skip

    def order(
        self, *numbers: int, generation: int = 1, shortest_s: float = 0.5, ttl_s: float = 60.0
    ) -> tuple[Result, ...]:
        settings = tuple(
            Setting(self.uuids[n], self.high, 0, None, self.program, shortest_s) for n in numbers
        )
        return self.send(*settings, generation=generation, ttl_s=ttl_s)

    def send(
        self, *settings: Setting, generation: int = 1, ttl_s: float = 60.0
    ) -> tuple[Result, ...]:
        command = Command(1, "demo", generation, ttl_s, settings, "test")
        request = codec.encode_command(command)
        return codec.decode_results(self.node.stub.Apply(request, timeout=PATIENCE_S))

    def reporter(self, number: int, job: str = "demo") -> Reporter:
        """Closed with the site, so that its process is one that reports till then."""
        made = Reporter(job, self.uuids[number], 0, str(self.node.home / "jobs.sock"))
        self.reporters.append(made)
        return made

    def close(self) -> None:
        for one in self.reporters:
            one.close()

    def becomes(self, *mhz: int, marks: Sequence[tuple[Reporter, Mark]] = ()) -> None:
        """Under `marks`, said again and again: a job that this machine lets stand still for
        seconds would be one that went silent.
        """

        def there() -> bool:
            for reporter, mark in marks:
                reporter.mark(*mark)
            return self.locked_mhz() == list(mhz)

        eventually(f"locked to {mhz}", there)


@pytest.fixture
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        fake = stack.enter_context(fake_driver(2))
        node = stack.enter_context(agent_on(fake))
        made = Site(node, lambda: [lock[1] if lock else 0 for lock in fake.locks()], fake.set_load)
        stack.callback(made.close)
        made.begin()
        yield made


def _steps(site: Site, result: str) -> float:
    wanted = f'joulecut_control_steps_total{{result="{result}"}} '
    lines = site.node.metrics().splitlines()
    return next(float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted))


def test_a_jobs_marks_step_its_own_gpu(site: Site) -> None:
    assert site.order(0, 1) == tuple(Result(uuid, True) for uuid in site.uuids)
    first, second = site.reporter(0), site.reporter(1)
    site.becomes(site.high, site.high)
    low, middle = (first, ("begin", "forward", 0, 1)), (second, ("begin", "forward", 3, 1))
    site.becomes(site.low, site.high, marks=[low])
    site.becomes(site.low, site.middle, marks=[low, middle])
    site.becomes(site.high, site.middle, marks=[(first, ("end", "backward", 0, 1)), middle])
    assert site.reporter(1, "other").mark("end", "backward", 0, 1)
    assert first.mark("begin", "optimizer", 0, 1)
    eventually(
        "all marks", lambda: 'reports_refused_total{reason="mark"} 1.0' in site.node.metrics()
    )
    site.becomes(site.high, site.middle, marks=[middle])  # nobody else's marks, and no other's
    if _steps(site, "rested") == 0.0:  # on a machine that did not stand still
        assert (_steps(site, "accepted"), _steps(site, "refused")) == (3.0, 0.0)
    lease = site.node.gpu().lease
    assert (lease.clock_max_mhz, lease.clock_lowest_mhz) == (site.high, site.low)
    assert site.node.clear()
    site.becomes(0, 0)
    steps = _steps(site, "accepted")
    for microbatch in range(2, 12):  # without a lease a mark is the start of an iteration at most
        assert first.mark("begin", "forward", 0, microbatch)
    eventually("no lease", lambda: site.node.gpu().lease is None)
    assert site.locked_mhz() == [0, 0]
    assert _steps(site, "accepted") == steps


def test_the_end_of_the_lease_or_of_a_process_ends_the_schedule(site: Site) -> None:
    assert site.order(0)[0].accepted
    job = site.reporter(0)
    site.becomes(site.low, 0, marks=[(job, ("begin", "forward", 0, 1))])
    site.node.renew(ttl_s=0.5)
    site.becomes(0, 0)
    assert site.order(0, generation=2)[0].accepted
    site.becomes(site.low, 0, marks=[(job, ("begin", "forward", 0, 2))])
    os.kill(site.node.keeper_pid, signal.SIGKILL)
    site.becomes(0, 0)
    job.mark("begin", "forward", 0, 3)
    assert site.node.kill(signal.SIGTERM) == 0
    assert site.locked_mhz() == [0, 0]


def test_timed_steps_follow_the_reports_of_iterations(site: Site) -> None:
    site.load(0, 1.0)
    job, number, seen = site.reporter(0), 0, set[int]()
    steps = (TimedStep(0.3, site.low), TimedStep(0.7, site.high))
    setting = Setting(site.uuids[0], site.high, timed_steps=steps, iteration_time_s=1.0)

    def iterate() -> None:
        nonlocal number
        job.iteration(number, 1.0)
        number += 1
        end_s = time.monotonic() + 1.0
        while time.monotonic() < end_s:
            seen.add(site.locked_mhz()[0])
            time.sleep(0.02)

    for _ in range(4):
        iterate()
    assert site.send(setting)[0].accepted
    seen.clear()
    eventually("low and high", lambda: iterate() or {site.low, site.high} <= seen)
    (timing,) = site.node.watch().timings
    assert (timing.job, timing.uuid, timing.source) == ("demo", site.uuids[0], "report")
    assert 0.5 < timing.iteration_time_s < 2.0
    text = site.node.metrics()
    for name in ("iteration_time_seconds", "iteration_start_jitter_seconds"):
        assert f"joulecut_gpu_{name}{{" in text
    assert site.node.describe().timed_steps_max >= 4
    site.becomes(site.high, 0)  # iterations have stopped
    assert site.node.gpu().drift == ""


def test_the_agent_gives_an_unused_gpu_back_at_its_first_work(site: Site) -> None:
    """Without a controller: no command follows the first one."""
    assert site.node.describe().lowers_unused
    eventually("a reading", lambda: site.node.gpu().utilization_gpu_ratio == 0.0)
    for generation in range(1, 4):
        unused = Setting(site.uuids[0], site.high, unused_clock_mhz=site.low)
        assert site.send(unused, generation=generation)[0].accepted
        site.becomes(site.low, 0)
        lease = site.node.gpu().lease
        assert (lease.clock_max_mhz, lease.clock_lowest_mhz) == (site.high, site.low)
        time.sleep(0.13 * generation)  # at another moment between two readings
        began_s = time.monotonic()
        site.load(0, 1.0)
        site.becomes(0, 0)
        print(f"clock back {time.monotonic() - began_s:.2f} s after the first work")
        eventually("no lease", lambda: site.node.gpu().lease is None)
        site.load(0, 0.0)
        eventually("unused", lambda: site.node.gpu().utilization_gpu_ratio == 0.0)
        assert site.locked_mhz() == [0, 0]
    assert 'cause="used"' in site.node.metrics()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_agent_that_is_gone_or_hangs_leaves_nothing_low(how: signal.Signals) -> None:
    with ExitStack() as stack, RunningAgent(cards=1, keeper="state/keeper.sock") as node:
        node.start_keeper()
        site = Site(node, lambda: [node.gpus.asked_mhz(0)[1]])
        stack.callback(site.close)
        site.begin()
        eventually("an order", lambda: site.order(0)[0].accepted)
        job = site.reporter(0)
        mark = ("begin", "forward", 0, 1)
        site.becomes(site.low, marks=[(job, mark)])
        assert node.process is not None

        def gone_while_low() -> bool:
            """So that it is not the agent which raises the GPU."""
            assert node.process is not None
            job.mark(*mark)
            time.sleep(0.05)
            node.process.send_signal(signal.SIGSTOP)
            if site.locked_mhz() == [site.low]:
                return True
            node.process.send_signal(signal.SIGCONT)
            return False

        eventually("stopped at its low clock", gone_while_low)
        if how is signal.SIGKILL:
            node.kill()
        site.becomes(site.high)
        if how is signal.SIGKILL:
            node.start()
        node.process.send_signal(signal.SIGCONT)
        renewal = pb.RenewRequest(epoch=1, job="demo", generation=1, ttl_s=60.0)
        (result,) = node.stub.Renew(renewal, timeout=PATIENCE_S).results
        assert result.accepted, "the lease itself goes on"
        if how is signal.SIGSTOP:
            site.becomes(site.low, marks=[(job, mark)])
