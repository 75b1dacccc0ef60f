"""Fast samples: each told once, the oldest lost first, links as rates, nothing open unread."""

import pytest
from running_agent import eventually

from joulecut_agent.monitor.samples import RING_MAX, Batch, Samples, Stream
from joulecut_agent.ports.reader import Burst
from joulecut_wire.messages import GpuDescription


class FakeEye:
    """Answers with the bursts that it is given; `open` while somebody has it open."""

    def __init__(self, *uuids: str) -> None:
        self.uuids = uuids
        self.gpus: tuple[GpuDescription, ...] = ()
        self.bursts: dict[int, list[Burst]] = {index: [] for index in range(len(uuids))}
        self.open = False
        self.asked: set[int] = set()

    def describe(self) -> tuple[GpuDescription, ...]:
        self.open = True
        self.gpus = tuple(GpuDescription(u, i, "fake", ()) for i, u in enumerate(self.uuids))
        return self.gpus

    def burst(self, index: int) -> Burst:
        self.open = True
        self.asked.add(index)
        return self.bursts[index].pop(0) if self.bursts[index] else Burst()

    def kill(self) -> None:
        self.open = False

    def close(self) -> None:
        self.open = False


@pytest.fixture
def eye() -> FakeEye:
    return FakeEye("a", "b")


@pytest.fixture
def samples(eye: FakeEye) -> Samples:
    return Samples(eye)


def steps(begin: int, end: int) -> tuple[tuple[float, float], ...]:
    return tuple((float(n), n / 2) for n in range(begin, end))


def taken(stream: Stream, count: int) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []

    def enough() -> bool:
        for batch in stream.take():
            points.extend(batch.power_w)
        return len(points) >= count

    eventually(f"{count} samples", enough)
    return points


def test_each_reader_gets_everything_once(eye: FakeEye, samples: Samples) -> None:
    eye.bursts[0] = [Burst(power_w=steps(n, n + 5)) for n in range(1, 51, 5)]
    first, second = samples.subscribe({"a"}), samples.subscribe({"a"})
    assert taken(first, 50) == taken(second, 50) == list(steps(1, 51))
    assert eye.asked == {0}, "what nobody reads is not asked for"
    samples.unsubscribe(first)
    samples.unsubscribe(second)


def test_a_reader_that_sleeps_loses_the_oldest_and_gets_their_number(
    eye: FakeEye, samples: Samples
) -> None:
    stream = samples.subscribe({"a"})
    eye.bursts[0] = [Burst(power_w=steps(1, 2))]
    taken(stream, 1)
    eye.bursts[0] = [Burst(power_w=steps(2, RING_MAX + 9))]
    eventually("all were taken", lambda: not eye.bursts[0])

    batches: list[Batch] = []
    eventually("a batch", lambda: batches.extend(stream.take()) or batches)
    assert [batch.dropped for batch in batches] == [7]
    assert batches[0].power_w == steps(9, RING_MAX + 9)
    samples.unsubscribe(stream)


def test_links_become_rates_and_a_reload_is_none(eye: FakeEye, samples: Samples) -> None:
    counted = [(0.0, 1000.0), (1.0, 3000.0), (2.0, 10.0), (4.0, 30.0)]
    eye.bursts[0] = [Burst(nvlink_bytes=(one,)) for one in counted]
    stream = samples.subscribe({"a"})
    rates: list[tuple[float, float]] = []

    def both() -> bool:
        for batch in stream.take():
            rates.extend(batch.nvlink_bytes_per_s)
        return len(rates) >= 2

    eventually("two rates", both)
    assert rates == [(1.0, 2000.0), (4.0, 10.0)]
    samples.unsubscribe(stream)


def test_nothing_is_open_without_a_stream(eye: FakeEye, samples: Samples) -> None:
    assert not eye.open
    for _ in range(2):
        stream = samples.subscribe({"b"})
        eventually("it is open", lambda: eye.open)
        samples.unsubscribe(stream)
        eventually("it is let go", lambda: not eye.open)


def test_a_pause_lets_go_and_a_reader_goes_on_after_it(eye: FakeEye, samples: Samples) -> None:
    stream = samples.subscribe({"a"})
    eventually("it is open", lambda: eye.open)
    assert samples.pause()
    assert not eye.open
    samples.resume()
    eye.bursts[0] = [Burst(power_w=steps(1, 4))]
    assert taken(stream, 3) == list(steps(1, 4))
    samples.unsubscribe(stream)
