"""The fake library itself, through the unmodified binding: what it must keep of NVML's manners."""

import itertools
import time
from pathlib import Path

import pytest

from fixture import CompilerMissing, FakeNvml
from nvml_codes import INVALID, NOT_FOUND, NOT_SUPPORTED, TOO_SMALL


@pytest.fixture(params=["a100", "a40", "h100"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> FakeNvml:
    try:
        return FakeNvml(tmp_path / "gpus.state", 2, request.param)
    except CompilerMissing as missing:
        pytest.skip(str(missing))


def test_a_device_tells_who_it_is(node: FakeNvml) -> None:
    told = node.ask("""
answer = []
for index in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(index)
    uuid, bus = n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetPciInfo(h).busId
    again = [n.nvmlDeviceGetHandleByUUID(uuid), n.nvmlDeviceGetHandleByPciBusId(bus),
             n.nvmlDeviceGetHandleBySerial(n.nvmlDeviceGetSerial(h))]
    assert [n.nvmlDeviceGetIndex(other) for other in again] == [index] * 3
    answer.append([uuid, n.nvmlDeviceGetName(h), n.nvmlDeviceGetCudaComputeCapability(h),
                   n.nvmlDeviceGetMemoryInfo(h).total, n.nvmlDeviceGetArchitecture(h),
                   n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).total])
""")
    with node._shared.turn() as state:
        expected = [
            [
                gpu.uuid.decode(),
                gpu.name.decode(),
                [gpu.compute_major, gpu.compute_minor],
                gpu.memory_total_bytes,
                gpu.architecture,
                gpu.memory_total_bytes,
            ]
            for gpu in state.gpus[:2]
        ]
    assert told == expected


def test_clock_lists_are_sized_in_two_calls(node: FakeNvml) -> None:
    told = node.ask("""
from ctypes import byref, c_uint
h = n.nvmlDeviceGetHandleByIndex(0)
lists = [n.nvmlDeviceGetSupportedGraphicsClocks(h, m)
         for m in n.nvmlDeviceGetSupportedMemoryClocks(h)]
count = c_uint(3)
small = n.nvmlLib.nvmlDeviceGetSupportedMemoryClocks(h, byref(c_uint(0)), None)
room = (c_uint * 3)()
memory_mhz = n.nvmlDeviceGetSupportedMemoryClocks(h)[0]
cut = n.nvmlLib.nvmlDeviceGetSupportedGraphicsClocks(h, c_uint(memory_mhz), byref(count), room)
answer = [lists, small, cut, count.value, list(room),
          code(n.nvmlDeviceGetSupportedGraphicsClocks, h, 1)]
""")
    lists, small, cut, count, room, unknown = told
    with node._shared.turn() as state:
        clocks_mhz = list(state.gpus[0].clocks_mhz[: state.gpus[0].clock_count])
    assert all(listed == clocks_mhz[::-1] for listed in lists)
    assert (small, cut, unknown) == (TOO_SMALL, TOO_SMALL, NOT_FOUND)
    assert (count, room) == (len(clocks_mhz), [0, 0, 0])


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


def test_numbers_between_two_clocks_are_snapped_down(fake_nvml: FakeNvml) -> None:
    fake_nvml.ask(
        "answer = n.nvmlDeviceSetGpuLockedClocks(n.nvmlDeviceGetHandleByIndex(0), 224, 1000)"
    )
    assert fake_nvml.locks()[0] == (210, 990)


def test_power_follows_clock_and_load_and_stops_at_the_limit(tmp_path: Path) -> None:
    node = _a40(tmp_path)
    node.set_load(0, 1.0)
    script = """
h = n.nvmlDeviceGetHandleByIndex(0)
answer = []
for clock in (1740, 1455, 1005, 210):
    n.nvmlDeviceSetGpuLockedClocks(h, 210, clock)
    time.sleep(0.1)
    instant = n.nvmlDeviceGetFieldValues(h, [(186, 0)])[0].value.uiVal
    answer.append([n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM), instant,
                   n.nvmlDeviceGetCurrentClocksEventReasons(h)])
"""
    clocks_mhz, powers_mw, reasons = zip(*node.ask(script), strict=True)
    assert clocks_mhz == (1455, 1455, 1005, 210)  # the cap binds above 1455 MHz
    assert list(powers_mw) == sorted(powers_mw, reverse=True)
    assert powers_mw[0] <= 300_000
    assert powers_mw[2] == int((95 + 107 * 1.005) * 1000)  # below the knee V is 1
    assert reasons == (4, 4, 0, 0)
    node.set_out_of_band_limit(0, 150)
    told = node.ask("""
h = n.nvmlDeviceGetHandleByIndex(0)
n.nvmlDeviceResetGpuLockedClocks(h)
time.sleep(0.1)
answer = [n.nvmlDeviceGetPowerManagementLimit(h), n.nvmlDeviceGetEnforcedPowerLimit(h),
          n.nvmlDeviceGetFieldValues(h, [(186, 0)])[0].value.uiVal]
""")
    assert told[:2] == [300_000, 150_000]
    assert told[2] <= 150_000


def test_a_power_limit_is_kept_within_its_constraints(fake_nvml: FakeNvml) -> None:
    told = fake_nvml.ask("""
h = n.nvmlDeviceGetHandleByIndex(0)
low, high = n.nvmlDeviceGetPowerManagementLimitConstraints(h)
answer = [code(n.nvmlDeviceSetPowerManagementLimit, h, mw) for mw in (low - 1, high + 1, low)]
answer += [n.nvmlDeviceGetPowerManagementLimit(h), low]
answer += [n.nvmlDeviceGetPowerManagementDefaultLimit(h)]
""")
    assert told == [INVALID, INVALID, 0, 100_000, 100_000, 400_000]


def test_energy_is_exact_over_hours_and_moves_in_steps(fake_nvml: FakeNvml) -> None:
    script = "answer = n.nvmlDeviceGetTotalEnergyConsumption(n.nvmlDeviceGetHandleByIndex(0))"
    fake_nvml.set_load(0, 1.0)
    first_mj, started_s = fake_nvml.ask(script), time.monotonic()
    fake_nvml.advance(3600)
    fake_nvml.set_load(0, 0.0)
    fake_nvml.advance(3600)
    second_mj, spent_s = fake_nvml.ask(script), time.monotonic() - started_s
    busy_w = 52 + 150 * 1.41 * (1 + 0.76 * (1.41 - 1.107)) ** 2
    slack_mj = (spent_s + 1.0) * busy_w * 1000  # real time went on, too
    assert abs(second_mj - first_mj - 3600 * (busy_w + 50) * 1000) < slack_mj
    seen = fake_nvml.ask("""
h, answer, until = n.nvmlDeviceGetHandleByIndex(1), [], time.monotonic() + 90
while len(set(answer)) < 4 and time.monotonic() < until:
    answer.append(n.nvmlDeviceGetTotalEnergyConsumption(h))
""")
    levels_mj = sorted(set(seen))
    assert seen == sorted(seen)
    assert len(levels_mj) == 4
    assert len(seen) > 40  # most readings found the counter unmoved
    for low_mj, high_mj in itertools.pairwise(levels_mj):
        assert (high_mj - low_mj + 1) % 5000 <= 2  # 50 W for whole 100 ms, in whole mJ


def test_power_usage_means_what_the_architecture_says(tmp_path: Path) -> None:
    script = """
h = n.nvmlDeviceGetHandleByIndex(0)
values = n.nvmlDeviceGetFieldValues(h, [(185, 0), (186, 0), (186, 2), (83, 0), (9999, 0)])
answer = [n.nvmlDeviceGetPowerUsage(h), [v.nvmlReturn for v in values],
          [v.value.uiVal for v in values[:2]], values[3].value.ullVal]
"""
    for model, average_known in (("a100", False), ("h100", True)):
        node = FakeNvml(tmp_path / model, 1, model)
        node.set_load(0, 1.0)  # the average has had no time to follow
        usage_mw, codes, (average_mw, instant_mw), energy_mj = node.ask(script)
        assert codes == [0 if average_known else NOT_SUPPORTED, 0, NOT_SUPPORTED, 0, NOT_SUPPORTED]
        assert instant_mw > 300_000
        if average_known:
            assert average_mw < instant_mw
            assert usage_mw < instant_mw
        else:
            assert usage_mw == instant_mw
        assert energy_mj >= 0


def _a40(tmp_path: Path) -> FakeNvml:
    try:
        return FakeNvml(tmp_path / "gpus.state", 1, "a40")
    except CompilerMissing as missing:
        pytest.skip(str(missing))
