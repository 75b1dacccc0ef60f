"""A driver whose answers make no sense, or whose end is met where it is least expected."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fixture import FakeNvml, build
from joulecut_agent.counters import Counters
from joulecut_agent.monitor.driver_reader import DriverReader
from joulecut_agent.monitor.energy_account import EnergyFile
from joulecut_agent.monitor.sampler import Sampler
from joulecut_wire.errors import JoulecutError

NO_TEXT = b"\xff\xfe\xfd"


@pytest.fixture
def eye(
    fake_nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DriverReader]:
    """Reads in a process of its own, as in the agent."""
    for name in ("LD_LIBRARY_PATH", "JOULECUT_FAKE_NVML_STATE"):
        monkeypatch.setenv(name, fake_nvml.environment()[name])
    with closing(
        DriverReader("joulecut_agent.nvml:backend", {"permission": "driver"}, str(tmp_path))
    ) as it:
        yield it


def _measured(eye: DriverReader) -> list[str]:
    return [reading.uuid for reading in eye.read() if reading.snapshot is not None]


def test_a_name_that_is_no_text_costs_the_name(fake_nvml: FakeNvml, eye: DriverReader) -> None:
    with fake_nvml._shared.turn() as state:
        state.gpus[1].name = NO_TEXT
    assert [gpu.model for gpu in eye.describe()][:2] == [eye.gpus[0].model, "unreadable"]
    assert eye.gpus[1].controllable
    assert _measured(eye) == list(fake_nvml.uuids)


def test_an_identity_that_is_no_text_costs_its_gpu(fake_nvml: FakeNvml, eye: DriverReader) -> None:
    with fake_nvml._shared.turn() as state:
        right, state.gpus[1].uuid = state.gpus[1].uuid, NO_TEXT
    others = [uuid for uuid in fake_nvml.uuids if uuid != right.decode()]
    assert [gpu.uuid for gpu in eye.describe()] == others
    assert _measured(eye) == others
    with fake_nvml._shared.turn() as state:
        state.gpus[1].uuid = right
    assert len(eye.describe()) == len(fake_nvml.uuids)
    assert _measured(eye) == list(fake_nvml.uuids)


def test_a_driver_that_is_reloaded_just_when_it_is_described_is_opened_again(
    fake_nvml: FakeNvml, eye: DriverReader
) -> None:
    eye.describe()
    fake_nvml.reload_driver()
    with pytest.raises(JoulecutError, match="uninitialized"):
        eye.describe()
    assert _measured(eye) == []
    assert _measured(eye) == list(fake_nvml.uuids)


def test_a_driver_older_than_the_binding_is_read(
    fake_nvml: FakeNvml, eye: DriverReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of such a driver the binding says "mismatch", which is none of NVML's errors."""
    newest = "nvmlDeviceGetComputeRunningProcesses_v3"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build(flags=(f"-D{newest}=hidden",))))
    eye.describe()
    readings = eye.read()
    assert [reading.error for reading in readings] == [None] * len(fake_nvml.uuids)
    assert all(reading.snapshot for reading in readings)


def test_a_gpu_that_is_counted_and_does_not_open_is_said(
    fake_nvml: FakeNvml, eye: DriverReader, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As after a driver reload in a container. Once; it is read when it opens again."""
    fake_nvml.set_error("nvmlDeviceGetHandleByIndex_v2", 999, gpu=1)
    others = [uuid for index, uuid in enumerate(fake_nvml.uuids) if index != 1]
    sampler = Sampler(eye, 1.0, Counters(), jobs=dict, file=EnergyFile(tmp_path / "energy", "boot"))
    sampler._turn()
    sampler._turn()
    picture = sampler.latest()
    assert ([gpu.uuid for gpu in picture.snapshot.gpus], picture.complete) == (others, False)
    assert sampler.unread == (1,)
    assert capfd.readouterr().err.count("GPU 1 is counted and cannot be opened") == 1
    fake_nvml.clear_errors()
    eye.describe()
    sampler._turn()
    assert sampler.unread == ()
    assert (sampler.latest() or picture).complete
