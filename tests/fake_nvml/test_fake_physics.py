"""The physics behind the fake: what one reading says must agree with what all others say."""

import itertools
import json
import time
from pathlib import Path

import pytest

from fixture import CompilerMissing, FakeNvml

IDLE, APPLICATION, POWER_CAP, HW_SLOWDOWN = 0x1, 0x2, 0x4, 0x8
SW_THERMAL, HW_THERMAL, BRAKE = 0x20, 0x40, 0x80
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, VERSION_MISMATCH = 3, 4, 6, 25

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


def test_looking_often_changes_nothing(tmp_path: Path) -> None:
    """The same history, looked at once and a hundred times: the same energy and counters."""
    ends, busy_w = [], 300.0  # at its limit
    for looks in (1, 100):
        node = _node(tmp_path, "a40")
        with node._shared.turn() as state:
            state.clock_skew_ns += 10**9 - state.gpus[0].motion[0].updated_ns % 10**9
        began_s = time.monotonic()
        node.set_load(0, 1.0)
        node.set_ambient(0, 60)
        for _ in range(looks):
            node.advance(300 / looks)
            node.locks()
        used_j, warm_s, seen = node.energies_j()[0], _counters_s(node)[1], node.ask(SEEN)
        ends.append((used_j, warm_s, seen, time.monotonic() - began_s))
    (once_j, once_s, once, one_s), (often_j, often_s, often, other_s) = ends
    real_s = one_s + other_s  # it went on as well
    assert often_j == pytest.approx(once_j, abs=0.002 * once_j + real_s * busy_w)
    assert often_s == pytest.approx(once_s, abs=0.5 + real_s)
    assert often == once


def test_the_power_brake_halves_the_clock(tmp_path: Path) -> None:
    node = _node(tmp_path)
    node.set_load(0, 1.0)
    node.set_power_brake(0, True)
    assert node.ask(SEEN)[:2] == [705, BRAKE | HW_SLOWDOWN]
    node.advance(50)
    node.set_power_brake(0, False)
    assert node.ask(SEEN)[:2] == [1410, 0]
    assert 50 <= _counters_s(node)[3] < 80


def test_the_cap_is_counted_while_it_binds(tmp_path: Path) -> None:
    node = _node(tmp_path, "a40")
    node.set_load(0, 1.0)
    node.advance(100)
    assert node.ask(SEEN)[1] == POWER_CAP
    counted_s = _counters_s(node)[0]
    assert 100 <= counted_s < 130
    node.set_load(0, 0.0)
    between_s = _counters_s(node)[0]
    node.advance(100)
    assert node.ask(SEEN)[1] == IDLE
    assert _counters_s(node)[0] == between_s


def test_application_clocks_bind_and_say_so(tmp_path: Path) -> None:
    node = _node(tmp_path)
    node.set_load(0, 1.0)
    told = node.ask(
        SEEN.replace(
            "answer =",
            "n.nvmlDeviceSetApplicationsClocks(h, 1593, 1095)\n"
            "app = n.nvmlDeviceGetApplicationsClock(h, 1)\nanswer = [app] +",
        )
    )
    assert told[:3] == [1095, 1095, APPLICATION]


def test_the_sample_buffer_holds_what_happened(tmp_path: Path) -> None:
    node = _node(tmp_path)
    told = node.ask(f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from fixture import FakeNvml
from pathlib import Path
node = FakeNvml(Path({str(node.path)!r}), gpus=None)
h = n.nvmlDeviceGetHandleByIndex(0)
def samples(kind, since=0):
    return [[s.timeStamp, s.sampleValue.uiVal] for s in n.nvmlDeviceGetSamples(h, kind, since)[1]]
passed_s, began_s = 0.0, float("-inf")
while time.monotonic() - began_s > 1.0:  # or what was before is in the buffer no more
    node.set_load(0, 1.0)
    node.advance(10)
    node.locks()
    began_s = time.monotonic()
    node.set_load(0, 0.0)
    node.advance(1)
    kinds = [samples(kind) for kind in (0, 1, 5)]
    passed_s += 11
later = samples(0, kinds[0][-10][0])
answer = [kinds, later, code(n.nvmlDeviceGetSamples, h, 0, 2**63), time.time() * 1e6,
          code(n.nvmlDeviceGetSamples, h, 7, 0), n.nvmlDeviceGetSamples(h, 0, 0)[0], passed_s]
""")
    (powers, busy, clocks), later, nothing_new, now_us, module, kind, passed_s = told
    assert (nothing_new, module, kind) == (NOT_FOUND, NOT_SUPPORTED, 1)
    assert [len(powers), len(busy), len(clocks)] == [128] * 3
    times_us = [sample[0] for sample in powers]
    steps_us = {later - earlier for earlier, later in itertools.pairwise(times_us)}
    assert steps_us <= {19_999, 20_000, 20_001}
    ahead_us = times_us[-1] - now_us  # of the wall clock
    assert abs(ahead_us - passed_s * 1e6) < 60e6
    assert powers[0][1] > 250_000
    assert {value for _, value in busy} == {100, 0}
    assert {value for _, value in clocks} == {1410, 210}
    assert powers[-1][1] == 50_000
    assert len(later) >= 9
    assert all(at > times_us[-10] for at, _ in later)


def test_links_count_their_traffic(tmp_path: Path) -> None:
    node = _node(tmp_path, "b200")
    node.set_traffic(0, nvlink_tx=1.8e9, nvlink_rx=0.9e9, pcie_tx=1024e3, pcie_rx=2048e3)
    node.advance(100)
    told = node.ask("""
h = n.nvmlDeviceGetHandleByIndex(0)
wanted = [(138, 0xffffffff), (139, 0xffffffff), (138, 17), (138, 18), (202, 0xffffffff), (197, 0),
          (91, 0)]
answer = [[v.nvmlReturn, v.value.ullVal] for v in n.nvmlDeviceGetFieldValues(h, wanted)]
answer += [n.nvmlDeviceGetPcieThroughput(h, d) for d in (0, 1)]
""")
    (tx, rx, one, beyond, tx_bytes, pcie, links), rates = told[:7], told[7:]
    assert [value[0] for value in told[:7]] == [0, 0, 0, 2, 0, 0, 0]
    assert tx[1] == pytest.approx(100 * 1.8e9 / 1024, rel=0.2)
    assert rx[1] == pytest.approx(tx[1] / 2, rel=1e-6)
    assert one[1] == pytest.approx(tx[1] / 18, rel=1e-6)
    assert tx_bytes[1] == pytest.approx(tx[1] * 1024, rel=1e-6)
    assert pcie[1] == pytest.approx(100 * 1024e3, rel=0.2)
    assert links[1] == 18
    assert rates == [1000, 2000]
    assert beyond[0] == 2


def test_workload_power_profiles_are_shown_and_felt(tmp_path: Path) -> None:
    node = _node(tmp_path, "b200")
    node.set_load(0, 1.0)
    script = """
from ctypes import byref
h, known = n.nvmlDeviceGetHandleByIndex(0), n.c_nvmlWorkloadPowerProfileProfilesInfo_v1_t()
n.nvmlDeviceWorkloadPowerProfileGetProfilesInfo(h, byref(known))
now = n.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
n.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(h, byref(now))
old = n.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
old.version = 1
answer = [known.perfProfilesMask.mask[0], known.perfProfile[7].profileId,
          now.requestedProfilesMask.mask[0], now.enforcedProfilesMask.mask[0],
          n.nvmlDeviceGetEnforcedPowerLimit(h), n.nvmlDeviceGetClockInfo(h, 1),
          code(n.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles, h, byref(old))]
"""
    free = node.ask(script)
    assert free[:5] == [0x1FF, 7, 0, 0, 1_000_000]
    assert free[6] == VERSION_MISMATCH
    node.set_profiles(0, requested=(1, 7), enforced=(1,))
    bound = node.ask(script)
    assert bound[:5] == [0x1FF, 7, 0b10000010, 0b10, 800_000]
    assert bound[5] < free[5]
    ask = """
from ctypes import byref
h, asked = n.nvmlDeviceGetHandleByIndex(0), n.c_nvmlWorkloadPowerProfileRequestedProfiles_v1_t()
asked.requestedProfilesMask.mask[0] = 0b10
answer = [code(n.nvmlDeviceWorkloadPowerProfile%sRequestedProfiles, h, byref(asked))]
"""
    assert node.ask(ask % "Clear") == [0]
    assert node.ask(script)[2] == 0b10000000
    node.set_permission(False)
    assert node.ask(ask % "Set") == [NO_PERMISSION]
    assert _node(tmp_path, "h100").ask(ask % "Set") == [NOT_SUPPORTED]


def test_an_older_card_lacks_what_it_never_had(tmp_path: Path) -> None:
    told = _node(tmp_path, "v100").ask("""
h = n.nvmlDeviceGetHandleByIndex(0)
answer = [code(n.nvmlDeviceSetMemoryLockedClocks, h, 877, 877), code(n.nvmlDeviceGetMigMode, h),
          code(n.nvmlDeviceSetGpuLockedClocks, h, 135, 1005),
          len(n.nvmlDeviceGetSupportedGraphicsClocks(h, 877)),
          n.nvmlDeviceGetPowerUsage(h), n.nvmlDeviceGetCurrPcieLinkGeneration(h)]
""")
    assert told == [NOT_SUPPORTED, NOT_SUPPORTED, 0, 187, 40_000, 3]


def test_processes_are_those_alive(tmp_path: Path) -> None:
    node = _node(tmp_path)
    told = node.ask(f"""
import os, sys, subprocess
sys.path.insert(0, {str(Path(__file__).parent)!r})
from fixture import FakeNvml
from pathlib import Path
gone = subprocess.Popen(["true"])
gone.wait()
node = FakeNvml(Path({str(node.path)!r}), gpus=None)
node.set_processes(0, {{os.getpid(): 5 << 30, gone.pid: 1}})
h = n.nvmlDeviceGetHandleByIndex(0)
found = n.nvmlDeviceGetComputeRunningProcesses(h)
answer = [[p.pid == os.getpid(), p.usedGpuMemory] for p in found]
answer.append(os.path.basename(n.nvmlSystemGetProcessName(os.getpid()))[:6])
answer.append(len(n.nvmlDeviceGetGraphicsRunningProcesses(h)))
""")
    assert told == [[True, 5 << 30], "python", 0]
    with pytest.raises(ValueError, match="at most 16"):
        node.set_processes(0, dict.fromkeys(range(17), 1))
    assert json.dumps(node.ask("answer = []")) == "[]"
