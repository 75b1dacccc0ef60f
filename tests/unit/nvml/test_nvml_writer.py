"""What the writer does to a GPU, call by call, and what it never does."""

from pathlib import Path

import pytest

from fixture import FakeNvml

OPEN = """
import os
from joulecut_agent.nvml import backend
from joulecut_agent.ports.failure import DeviceError
writer = backend.open_writer({"permission": "driver"}, "")
uuid = "GPU-fa4e0000-0000-4000-8000-000000000002"
def kind(function, *arguments):
    try:
        function(*arguments)
    except DeviceError as error:
        return [type(error).__name__, error.code]
    return None
"""


def test_it_locks_and_resets_and_nothing_else(fake_nvml: FakeNvml) -> None:
    pid = fake_nvml.ask(
        OPEN
        + """
writer.permission(), writer.clocks_mhz(uuid), writer.uncontrollable(uuid)
writer.lock(uuid, 0, 1005)
writer.lock(uuid, 510, 1200)
writer.reset(uuid)
writer.close()
answer = os.getpid()
"""
    )
    written = [(w.pid, w.gpu, w.function, w.arguments, w.code) for w in fake_nvml.writes()]
    lock, reset = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"
    assert written == [
        (pid, 2, lock, (210, 1005), 0),
        (pid, 2, lock, (510, 1200), 0),
        (pid, 2, reset, (0, 0), 0),
    ]


@pytest.mark.parametrize(
    ("code", "kind", "word"),
    [
        (4, "NotPermitted", "no_permission"),
        (15, "Gone", "gpu_is_lost"),
        (3, "Unsupported", "not_supported"),
        (10, "Transient", "timeout"),
        (999, "Transient", "unknown"),
    ],
)
def test_a_failed_write_is_reported_by_its_kind(
    fake_nvml: FakeNvml, code: int, kind: str, word: str
) -> None:
    fake_nvml.set_error("nvmlDeviceSetGpuLockedClocks", code, gpu=2)
    fake_nvml.set_error("nvmlDeviceResetGpuLockedClocks", code, gpu=2)
    told = fake_nvml.ask(
        OPEN + "answer = [kind(writer.lock, uuid, 0, 900), kind(writer.reset, uuid)]"
    )
    assert told == [[kind, word]] * 2
    assert [write.code for write in fake_nvml.writes()] == [code, code]


def test_the_highest_memory_clock_decides_which_clocks_there_are(tmp_path: Path) -> None:
    node = FakeNvml(tmp_path / "gpus.state", 1, "a40")
    clocks_mhz = node.ask(OPEN + f"answer = writer.clocks_mhz({node.uuids[0]!r})")
    assert clocks_mhz == list(range(210, 1741, 15))
    node.set_error("nvmlDeviceGetSupportedGraphicsClocks", 15)
    told = node.ask(OPEN + f"u = {node.uuids[0]!r}\n"
                    "answer = [writer.clocks_mhz(u), writer.uncontrollable(u)]")  # fmt: skip
    assert told[0] == []
    assert "gpu is lost" in told[1]


def test_permission_is_judged_by_the_capability_before_anything_is_tried(
    fake_nvml: FakeNvml,
) -> None:
    """As the kernel tells it at that moment: root loses CAP_SYS_ADMIN by becoming another user."""
    script = """
import os
from pathlib import Path
from joulecut_agent.nvml import backend
def capable():
    effective = Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0]
    return bool(int(effective, 16) >> 21 & 1)
writer = backend.open_writer({}, "")
answer = [[capable(), writer.permission()]]
if os.geteuid() == 0:
    os.setuid(65534)
    answer.append([capable(), writer.permission()])
"""
    refusal = "setting clocks needs CAP_SYS_ADMIN, which this process does not have"
    told = fake_nvml.ask(script)
    assert told[-1] == [False, refusal]
    for capable, permission in told:
        assert permission == ("" if capable else refusal)
    assert fake_nvml.writes() == ()


def test_the_keeper_does_not_carry_the_reader(fake_nvml: FakeNvml) -> None:
    script = "import sys\nanswer = sorted(name for name in sys.modules if '.nvml' in name)"
    package = "joulecut_agent.nvml"
    assert fake_nvml.ask(OPEN + script) == [package, f"{package}.driver", f"{package}.writer"]
