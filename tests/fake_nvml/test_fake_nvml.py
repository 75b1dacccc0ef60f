"""The fake library through the unmodified binding: what it must keep of NVML and of a card."""

from pathlib import Path

import pytest

from fixture import CompilerMissing, FakeNvml
from nvml_codes import INVALID, LOST, NO_PERMISSION

HW_SLOWDOWN, SW_THERMAL, HW_THERMAL = 0x8, 0x20, 0x40

SEEN = """
h = n.nvmlDeviceGetHandleByIndex(0)
answer = [n.nvmlDeviceGetClockInfo(h, 1), n.nvmlDeviceGetCurrentClocksEventReasons(h),
          n.nvmlDeviceGetTemperature(h, 0)]
"""


def _node(tmp_path: Path, model: str = "a100") -> FakeNvml:
    try:
        return FakeNvml(tmp_path / f"{model}.state", 1, model)
    except CompilerMissing as missing:
        pytest.skip(str(missing))


def _counters_s(node: FakeNvml) -> list[float]:
    """Seconds under: power cap, software thermal, hardware thermal, power brake, app clocks."""
    told = node.ask("""
h = n.nvmlDeviceGetHandleByIndex(0)
values = n.nvmlDeviceGetFieldValues(h, [74, 269, 270, 271, 80])
answer = [[v.nvmlReturn, v.valueType, v.value.ullVal] for v in values]
status = [n.nvmlDeviceGetViolationStatus(h, policy) for policy in (0, 1)]
answer.append([v.violationTime for v in status])
""")
    assert [value[:2] for value in told[:5]] == [[0, 3]] * 5
    counted_s = [value[2] / 1e9 for value in told[:5]]
    assert [ns / 1e9 for ns in told[5]] == pytest.approx(counted_s[:2], abs=1.0)
    return counted_s


def test_hot_air_slows_a_busy_board_until_it_bears_the_heat(tmp_path: Path) -> None:
    node = _node(tmp_path)
    node.set_load(0, 1.0)
    node.advance(600)
    clock_mhz, reasons, celsius = node.ask(SEEN)
    assert (clock_mhz, reasons) == (1410, 0)
    assert 55 < celsius < 70
    node.set_ambient(0, 55)
    node.advance(600)
    slow_mhz, reasons, celsius = node.ask(SEEN)
    assert reasons == SW_THERMAL
    assert 210 < slow_mhz < 1410
    assert 82 <= celsius <= 86
    node.set_ambient(0, 90)
    node.advance(600)
    assert node.ask(SEEN)[:2] == [210, SW_THERMAL | HW_THERMAL | HW_SLOWDOWN]
    node.set_ambient(0, 28)
    node.advance(600)
    assert node.ask(SEEN)[:2] == [1410, 0]
    cap_s, warm_s, hot_s, brake_s, _ = _counters_s(node)
    assert (cap_s, brake_s) == (0, 0)
    assert 1000 < warm_s < 1300
    assert 500 < hot_s < 700


def test_lock_arguments_are_checked_as_the_header_says(fake_nvml: FakeNvml) -> None:
    tdp, unlimited = 0xFFFFFF01, 0xFFFFFF02
    pairs = [(210, 1410), (1410, 1410), (1000, 1001), (tdp, tdp), (unlimited, tdp)]
    bad = [(1410, 210), (209, 1410), (210, 1411), (tdp, 1410), (210, unlimited), (tdp, 0xFFFFFFFF)]
    told = fake_nvml.ask(f"""
h = n.nvmlDeviceGetHandleByIndex(5)
answer = [code(n.nvmlDeviceSetGpuLockedClocks, h, *pair) for pair in {pairs + bad}]
""")
    assert told == [0] * len(pairs) + [INVALID] * len(bad)
    assert fake_nvml.locks()[5] == (210, 1410)  # as the last good pair left it
    assert [write.arguments for write in fake_nvml.writes()] == pairs + bad
    assert [write.code for write in fake_nvml.writes()] == told
    assert {(write.gpu, write.function) for write in fake_nvml.writes()} == {
        (5, "nvmlDeviceSetGpuLockedClocks")
    }


def test_errors_hit_the_calls_they_are_meant_for(fake_nvml: FakeNvml) -> None:
    fake_nvml.set_error("nvmlDeviceGetPowerUsage", 999, gpu=1, skip=2, count=1)
    fake_nvml.set_error("field:186", LOST, gpu=1)
    script = """
h = [n.nvmlDeviceGetHandleByIndex(i) for i in (0, 1)]
answer = [[code(n.nvmlDeviceGetPowerUsage, d) for _ in range(5)] for d in h]
answer += [[v.nvmlReturn for v in n.nvmlDeviceGetFieldValues(d, [(186, 0), (83, 0)])] for d in h]
"""
    assert fake_nvml.ask(script) == [[0] * 5, [0, 0, 999, 0, 0], [0, 0], [LOST, 0]]
    fake_nvml.clear_errors()
    fake_nvml.lose(1)
    told = fake_nvml.ask("""
answer = [code(n.nvmlDeviceGetHandleByIndex, i) for i in (0, 1, 8)]
answer.append(code(n.nvmlDeviceGetHandleByUUID, "GPU-fa4e0000-0000-4000-8000-000000000001"))
answer.append(n.nvmlDeviceGetCount())
""")
    assert told == [0, LOST, INVALID, LOST, 8]


def test_permission_can_be_anybodys_nobodys_or_a_capability(fake_nvml: FakeNvml) -> None:
    script = """
h = n.nvmlDeviceGetHandleByIndex(0)
answer = [code(n.nvmlDeviceSetGpuLockedClocks, h, 210, 900),
          code(n.nvmlDeviceResetGpuLockedClocks, h), code(n.nvmlDeviceSetPersistenceMode, h, 1),
          code(n.nvmlDeviceSetPowerManagementLimit, h, 400000),
          code(n.nvmlDeviceSetMemoryLockedClocks, h, 1593, 1593),
          code(n.nvmlDeviceGetPowerUsage, h)]
"""
    assert fake_nvml.ask(script) == [0] * 6
    assert fake_nvml.memory_locks()[0] == (1593, 1593)
    fake_nvml.set_permission(False)
    assert fake_nvml.ask(script) == [NO_PERMISSION] * 5 + [0]
    fake_nvml.set_permission(None)
    status = Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0]
    capable = int(status, 16) >> 21 & 1
    assert fake_nvml.ask(script) == ([0] if capable else [NO_PERMISSION]) * 5 + [0]
