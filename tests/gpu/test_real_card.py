"""The NVML back end on a real card, reading only: nothing here can change a clock."""

import time
from collections.abc import Iterator

import pynvml
import pytest

from joulecut_agent.nvml.reader import NvmlReader
from joulecut_agent.ports.event_reasons import EVENT_REASONS
from joulecut_agent.ports.failure import DeviceError


def _missing() -> str:
    try:
        reader = NvmlReader()
    except DeviceError as error:
        return str(error)
    cards = len(reader.read())
    reader.close()
    return "" if cards else "the driver lists no card"


if missing := _missing():
    pytest.skip(f"needs a real card: {missing}", allow_module_level=True)
pytestmark = pytest.mark.gpu


@pytest.fixture
def reader() -> Iterator[NvmlReader]:
    opened = NvmlReader()
    yield opened
    opened.close()


def test_it_is_no_fake(reader: NvmlReader) -> None:
    assert "fake" not in pynvml.nvmlSystemGetDriverVersion()


def test_every_card_is_described_alike_each_time(reader: NvmlReader) -> None:
    described = reader.describe()
    assert described == reader.describe()
    assert [gpu.index for gpu in described] == sorted(gpu.index for gpu in described)
    for gpu in described:
        assert gpu.uuid.startswith("GPU-")
        assert gpu.model
        assert gpu.clocks_mhz == tuple(sorted(set(gpu.clocks_mhz)))
        assert gpu.controllable == (gpu.reason == "")
        assert gpu.power_limit_min_w <= gpu.power_limit_default_w <= gpu.power_limit_max_w


def test_a_reading_is_plausible_and_answers_without_error(reader: NvmlReader) -> None:
    words = {word for _, word in EVENT_REASONS}
    for gpu, reading in zip(reader.describe(), reader.read(), strict=True):
        assert reading.error is None
        assert reading.snapshot is not None
        snapshot = reading.snapshot
        assert snapshot.uuid == gpu.uuid
        powers_w = [snapshot.power_average_w, snapshot.power_instant_w]
        known_w = [power_w for power_w in powers_w if power_w is not None]
        assert known_w
        assert all(1.0 < power_w < 2.0 * gpu.power_limit_max_w for power_w in known_w)
        assert snapshot.clock_sm_mhz is not None
        if gpu.clocks_mhz:  # idle clocks may lie below the table
            assert 0 < snapshot.clock_sm_mhz <= gpu.clocks_mhz[-1]
        assert set(snapshot.event_reasons) <= words
        for ratio in (snapshot.utilization_gpu_ratio, snapshot.utilization_memory_ratio):
            assert ratio is None or 0.0 <= ratio <= 1.0


def test_the_energy_counter_rises_by_about_the_power_drawn(reader: NvmlReader) -> None:
    """Within a factor of two: boards sample a quarter of the time, and the load is not ours."""
    started = reader.read()
    began_s = time.monotonic()
    powers_w: list[list[float]] = [[] for _ in started]
    while time.monotonic() < began_s + 3.0:
        for seen_w, reading in zip(powers_w, reader.read(), strict=True):
            seen_w.append(reading.snapshot.power_instant_w or reading.snapshot.power_average_w or 0)
        time.sleep(0.1)
    elapsed_s = time.monotonic() - began_s
    for before, after, seen_w in zip(started, reader.read(), powers_w, strict=True):
        assert before.snapshot is not None
        assert after.snapshot is not None
        if before.snapshot.energy_j is None or after.snapshot.energy_j is None:
            continue  # before Volta there is no counter
        drawn_w = (after.snapshot.energy_j - before.snapshot.energy_j) / elapsed_s
        assert 0.5 * min(seen_w) <= drawn_w <= 2.0 * max(seen_w)
