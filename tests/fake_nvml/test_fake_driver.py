"""The fake as a driver: who may, who waits, who is refused, and what a reload forgets."""

import signal
import subprocess
import sys
from pathlib import Path

from fixture import FakeNvml
from nvml_codes import INVALID, LOST, NO_PERMISSION


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
