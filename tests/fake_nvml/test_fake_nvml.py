"""The fake library itself, through the unmodified binding: what it must keep of NVML's manners."""

import ctypes
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pynvml
import pytest

import layout
from fake_library import build, own_symbols
from fixture import CompilerMissing, FakeNvml

HERE = Path(__file__).parent
UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TOO_SMALL = 1, 2, 3, 4, 6, 7
LOST = 15


@pytest.fixture(params=["a100", "a40", "h100"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> FakeNvml:
    try:
        return FakeNvml(tmp_path / "gpus.state", 2, request.param)
    except CompilerMissing as missing:
        pytest.skip(str(missing))


def test_python_and_c_agree_on_the_layout(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """Offsets, not only sizes: two swapped fields of one type would go unseen otherwise."""
    structs = {
        "gpu_state": layout.Gpu,
        "motion": layout.Motion,
        "sample": layout.Sample,
        "gpu_process": layout.GpuProcess,
        "foreign_writer": layout.ForeignWriter,
        "hook": layout.Hook,
        "write_record": layout.WriteRecord,
        "call_record": layout.CallRecord,
        "event": layout.Event,
        "client": layout.Client,
        "state": layout.State,
    }
    lines = [
        f'printf("%zu\\n", offsetof(struct {struct}, {field[0]}));'
        for struct, mirror in structs.items()
        for field in mirror._fields_
    ]
    offsets = [
        getattr(mirror, field[0]).offset for mirror in structs.values() for field in mirror._fields_
    ]
    source = tmp_path / "offsets.c"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "state.h"\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = tmp_path / "offsets"
    subprocess.run(["gcc", f"-I{HERE}", str(source), "-o", str(program)], check=True)
    told = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in told.split()] == offsets
    assert (tmp_path / "gpus.state").stat().st_size == offsets[-1] + ctypes.sizeof(
        layout.CallRecord * layout.CALLS_MAX
    )


def test_every_symbol_of_the_binding_is_there(fake_nvml: FakeNvml) -> None:
    """Real, or "not supported" where there is nothing to say; and the hooks reach all of them."""
    source = Path(pynvml.__file__).read_text()
    names = sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"', source)))
    assert len(names) > 300
    library = ctypes.CDLL(str(fake_nvml.library_dir / "libnvidia-ml.so.1"))
    assert [name for name in names if not hasattr(library, name)] == []  # hasattr is dlsym
    stubs = sorted(set(names) - own_symbols())
    assert len(stubs) > 200
    script = f"""
h = n.nvmlDeviceGetHandleByIndex(1)
answer = [sorted({{getattr(n.nvmlLib, name)(h) for name in {stubs}}})]
answer.append(sorted({{getattr(n.nvmlLib, name)(None) for name in {stubs}}}))
n.nvmlShutdown()
answer.append(sorted({{getattr(n.nvmlLib, name)(h) for name in {stubs}}}))
"""
    assert fake_nvml.ask(script) == [[NOT_SUPPORTED], [NOT_SUPPORTED], [UNINITIALIZED]]
    fake_nvml.lose(1)
    fake_nvml.set_error(stubs[0], 999)
    told = fake_nvml.ask(f"""
h = [n.nvmlDeviceGetHandleByIndex(0)] * 2
answer = [n.nvmlLib.{stubs[0]}(h[0]), n.nvmlLib.{stubs[1]}(h[0])]
""")
    assert told == [999, NOT_SUPPORTED]


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
h, answer, until = n.nvmlDeviceGetHandleByIndex(1), [], time.monotonic() + 30
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


def test_a_slow_call_delays_itself_alone(fake_nvml: FakeNvml) -> None:
    fake_nvml.set_error("nvmlDeviceGetTemperature", 0, gpu=0, delay_s=-1)
    script = """
import pynvml as n
n.nvmlInit()
print("in", flush=True)
n.nvmlDeviceGetTemperature(n.nvmlDeviceGetHandleByIndex(0), 0)
"""
    hung = subprocess.Popen(
        [sys.executable, "-c", script],
        env=fake_nvml.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    with hung:
        assert hung.stdout is not None
        assert hung.stdout.readline() == "in\n"
        told = fake_nvml.ask("""
h = [n.nvmlDeviceGetHandleByIndex(i) for i in (0, 1)]
answer = [n.nvmlDeviceGetPowerUsage(h[0]), n.nvmlDeviceGetTemperature(h[1], 0)]
""")
        assert told == [50_000, 33]
        assert hung.poll() is None
        hung.kill()
    assert hung.returncode == -signal.SIGKILL


def test_processes_take_turns(fake_nvml: FakeNvml) -> None:
    """A count that all of them lower must come out even: no two ever lower it at once."""
    script = """
import sys
import pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
print("ready", flush=True)
sys.stdin.readline()
failed = 0
for _ in range(20000):
    try:
        n.nvmlDeviceGetPowerUsage(h)
    except n.NVMLError:
        failed += 1
print(failed)
"""
    fake_nvml.set_error("nvmlDeviceGetPowerUsage", 999, count=35_000)
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=fake_nvml.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
    for client in clients:
        print(file=client.stdin, flush=True)
    failed = [int(client.communicate()[0]) for client in clients]
    assert sum(failed) == 35_000
    assert all(failed)


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


def test_nothing_answers_before_init_or_after_shutdown(fake_nvml: FakeNvml) -> None:
    told = fake_nvml.ask("""
answer = [code(n.nvmlShutdown), code(n.nvmlDeviceGetCount), code(n.nvmlShutdown)]
n.nvmlInit(), n.nvmlInit(), n.nvmlShutdown()
answer += [code(n.nvmlDeviceGetCount), str(n.NVMLError(7)), n.nvmlSystemGetDriverVersion()]
""")
    assert told == [0, 1, 1, 0, "Insufficient Size", "580.0.0-fake"]


def test_without_a_state_there_is_no_driver(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    for content in (None, b"", b"\0" * (tmp_path / "gpus.state").stat().st_size):
        other = tmp_path / "other.state"
        if content is not None:
            other.write_bytes(content)
        told = subprocess.run(
            [sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"],
            env={**fake_nvml.environment(), "JOULECUT_FAKE_NVML_STATE": str(other)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "NVMLError_DriverNotLoaded" in told.stderr


def test_a_driver_reload_forgets_locks_and_counters(fake_nvml: FakeNvml) -> None:
    fake_nvml.set_load(0, 1.0)
    fake_nvml.ask("""
h = n.nvmlDeviceGetHandleByIndex(0)
answer = [n.nvmlDeviceSetGpuLockedClocks(h, 210, 900), n.nvmlDeviceSetPersistenceMode(h, 1),
          n.nvmlDeviceSetPowerManagementLimit(h, 300000)]
""")
    fake_nvml.advance(100)
    fake_nvml.reload_driver()
    told = fake_nvml.ask("""
h = n.nvmlDeviceGetHandleByIndex(0)
answer = [n.nvmlDeviceGetPersistenceMode(h), n.nvmlDeviceGetPowerManagementLimit(h),
          n.nvmlDeviceGetClockInfo(h, 1), n.nvmlDeviceGetTotalEnergyConsumption(h) < 20_000_000]
""")
    assert told == [0, 400_000, 1410, True]
    assert fake_nvml.locks()[0] is None


def test_a_lock_takes_the_set_latency_to_show(fake_nvml: FakeNvml) -> None:
    fake_nvml.set_load(0, 1.0)
    fake_nvml.set_latency(0, 3600)
    script = "answer = n.nvmlDeviceGetClockInfo(n.nvmlDeviceGetHandleByIndex(0), 1)"
    lock = "n.nvmlDeviceSetGpuLockedClocks(n.nvmlDeviceGetHandleByIndex(0), 210, 900)\n"
    assert fake_nvml.ask(lock + script) == 1410
    fake_nvml.advance(3600)
    assert fake_nvml.ask(script) == 900


def test_the_control_tool_does_what_it_is_told(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    state = tmp_path / "by-hand"
    created = _control(state, "create", "--gpus", "2", "--model", "a40").stdout
    assert created == (
        f"export LD_LIBRARY_PATH={fake_nvml.library_dir}\nexport JOULECUT_FAKE_NVML_STATE={state}\n"
    )
    node = FakeNvml(state, gpus=None)
    _control(state, "load", "1", "0.5")
    _control(state, "error", "nvmlDeviceGetName", "15", "--gpu", "0")
    told = node.ask("""
h = [n.nvmlDeviceGetHandleByIndex(i) for i in (0, 1)]
n.nvmlDeviceSetGpuLockedClocks(h[1], 210, 900)
answer = [code(n.nvmlDeviceGetName, d) for d in h] + [n.nvmlDeviceGetUtilizationRates(h[1]).gpu]
""")
    assert told == [LOST, 0, 50]
    assert _control(state, "locks").stdout == "0 -\n1 210 900\n"
    assert "gpu 1 nvmlDeviceSetGpuLockedClocks(210, 900) = 0" in _control(state, "writes").stdout
    _control(state, "clear")
    _control(state, "reload")
    assert node.locks() == (None, None)
    for bad in (("load", "7", "1"), ("create", "--gpus", "99")):
        refused = _control(state, *bad, check=False)
        assert refused.returncode == 1
        assert len(refused.stderr.splitlines()) == 1
        assert refused.stderr.startswith("control.py: ")


def test_parallel_builders_get_one_library(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: it compiles the fake NVML library")
    script = (
        "import sys; from pathlib import Path; from fixture import build;"
        f"print(build(Path({str(tmp_path)!r})))"
    )
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", script], cwd=HERE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    folders = {builder.communicate()[0].strip() for builder in builders}
    assert [builder.returncode for builder in builders] == [0, 0]
    assert len(folders) == 1
    (folder,) = tmp_path.iterdir()
    assert [path.name for path in folder.iterdir()] == ["libnvidia-ml.so.1"]


def test_no_call_does_what_c_leaves_undefined(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """A run of everything under the sanitizer: it ends the process at the first fault."""
    folder = build(flags=("-fsanitize=undefined", "-fno-sanitize-recover=all"))
    fake_nvml.set_load(0, 1.0)
    fake_nvml.set_ambient(0, 60)
    fake_nvml.set_traffic(0, nvlink_tx=6e11, nvlink_rx=6e11, pcie_tx=6e10, pcie_rx=6e10)
    fake_nvml.set_foreign_writer(7, clock_mhz=900, limit_w=150, every_s=0.001)
    fake_nvml.set_error("nvmlDeviceGetName", 999, probability=0.5, seed=2**64 - 1)
    fake_nvml.advance(1e6)
    done = subprocess.run(
        [sys.executable, "-c", _TOUR],
        env={**fake_nvml.environment(), "LD_LIBRARY_PATH": str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 30


_TOUR = """
import pynvml as n
n.nvmlInit()
answered = 0
for i in (0, 7):
    h = n.nvmlDeviceGetHandleByIndex(i)
    n.nvmlDeviceSetGpuLockedClocks(h, 210, 1005)
    for name in dir(n):
        if name.startswith("nvmlDeviceGet"):
            try:
                getattr(n, name)(h)
                answered += 1
            except (n.NVMLError, TypeError):
                pass
    n.nvmlDeviceGetFieldValues(h, [(f, s) for f in range(310) for s in (0, 7, 0xffffffff)])
    for kind in range(12):
        for name in ("Samples", "ViolationStatus", "TemperatureThreshold", "NvLinkState"):
            try:
                getattr(n, "nvmlDeviceGet" + name)(h, *([kind, 0] if name == "Samples" else [kind]))
            except n.NVMLError:
                pass
    events = n.nvmlEventSetCreate()
    n.nvmlDeviceRegisterEvents(h, 8, events)
    try:
        n.nvmlEventSetWait_v2(events, 1)
    except n.NVMLError_Timeout:
        n.nvmlEventSetFree(events)
    for clock in range(4):
        n.nvmlDeviceGetClockInfo(h, clock), n.nvmlDeviceGetMaxClockInfo(h, clock)
    n.nvmlDeviceResetGpuLockedClocks(h)
n.nvmlShutdown()
print(answered)
"""


def _control(state: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / "control.py"), str(state), *words],
        capture_output=True,
        text=True,
        check=check,
        env={**os.environ, "COLUMNS": "100"},
    )


def _a40(tmp_path: Path) -> FakeNvml:
    try:
        return FakeNvml(tmp_path / "gpus.state", 1, "a40")
    except CompilerMissing as missing:
        pytest.skip(str(missing))
