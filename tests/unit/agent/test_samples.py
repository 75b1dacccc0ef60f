"""Fast samples: each told once, links as rates, nothing open unread."""

import pytest

from joulecut_agent.monitor.samples import Samples
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
    return Samples(lambda: eye)


def steps(begin: int, end: int) -> tuple[tuple[float, float], ...]:
    return tuple((float(n), n / 2) for n in range(begin, end))


def test_a_stream_gets_everything_once_of_its_gpus(eye: FakeEye, samples: Samples) -> None:
    eye.bursts[0] = [Burst(power_w=steps(n, n + 5)) for n in (1, 6)]
    with samples.stream({"a"}) as stream:
        assert stream.take() == [("a", Burst(power_w=steps(1, 6)))]
        assert stream.take() == [("a", Burst(power_w=steps(6, 11)))]
        assert stream.take() == []
    assert eye.asked == {0}, "what nobody reads is not asked for"


def test_a_reader_that_was_replaced_tells_nothing_twice(eye: FakeEye, samples: Samples) -> None:
    eye.bursts[0] = [Burst(power_w=steps(1, 6)), Burst(power_w=steps(1, 9))]
    with samples.stream({"a"}, since_s=2.0) as stream:
        assert stream.take() == [("a", Burst(power_w=steps(3, 6)))]
        assert stream.take() == [("a", Burst(power_w=steps(6, 9)))]


def test_links_become_rates_and_a_reload_is_none(eye: FakeEye, samples: Samples) -> None:
    counted = [(0.5, 1000.0), (1.0, 3000.0), (2.0, 10.0), (4.0, 30.0)]
    eye.bursts[0] = [Burst(nvlink_bytes=(one,)) for one in counted]
    with samples.stream({"a"}) as stream:
        rates = [one.nvlink_bytes for _ in counted for _, one in stream.take()]
    assert rates == [((1.0, 4000.0),), ((4.0, 10.0),)]


def test_nothing_is_open_without_a_stream(eye: FakeEye, samples: Samples) -> None:
    assert not eye.open
    for _ in range(2):
        with samples.stream({"b"}) as stream:
            stream.take()
            assert eye.open
        assert not eye.open


def test_a_pause_lets_go_and_a_stream_goes_on_after_it(eye: FakeEye, samples: Samples) -> None:
    with samples.stream({"a"}) as stream:
        stream.take()
        assert samples.pause()
        assert not eye.open
        eye.bursts[0] = [Burst(power_w=steps(1, 4))]
        assert stream.take() == []
        assert not eye.open
        samples.resume()
        assert stream.take() == [("a", Burst(power_w=steps(1, 4)))]
