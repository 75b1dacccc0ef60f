"""Other people's NVML clients run against the fake as they are: what it shows is NVML's manner,
and not what our own reader happens to ask.

Each is a process of its own. Those that are too big for the developer's tools (zeus, nvitop) are
taken from the Python that JOULECUT_NVML_CLIENTS names, or from this one; where they are not
there, that test is skipped.
"""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fixture import CompilerMissing, FakeNvml

OTHER_PYTHON = os.environ.get("JOULECUT_NVML_CLIENTS", sys.executable)


@pytest.fixture(params=["a100", "h100", "b200"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> FakeNvml:
    """Two cards, the first of them busy, the second lent to this process."""
    try:
        made = FakeNvml(tmp_path / "gpus.state", 2, request.param)
    except CompilerMissing as missing:
        pytest.skip(str(missing))
    made.set_load(0, 1.0)
    made.set_memory_used(0, 7 << 30)
    made.set_processes(1, {os.getpid(): 3 << 30})
    made.advance(60)  # averages and temperature settle
    return made


@functools.cache
def _python_with(module: str) -> str:
    for python in (sys.executable, OTHER_PYTHON):
        asked = [python, "-c", f"import {module}"]
        if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
            return python
    pytest.skip(f"{module} is not installed: JOULECUT_NVML_CLIENTS may name a Python that has it")


def _run(node: FakeNvml, *command: str) -> str:
    done = subprocess.run(
        command, env=node.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nvidia_ml_py_reads_all_there_is(node: FakeNvml) -> None:
    """Every getter of the binding, as the binding wraps it: an answer or a known refusal."""
    told = node.ask("""
import inspect
h = n.nvmlDeviceGetHandleByIndex(0)
answered, codes = [], {}
for name, function in sorted(vars(n).items()):
    if not name.startswith("nvmlDeviceGet") or name.startswith("nvmlDeviceGetHandle"):
        continue
    if len(inspect.signature(function).parameters) != 1:
        continue
    try:
        function(h)
        answered.append(name)
    except n.NVMLError as error:
        codes[name] = error.value
answer = [answered, codes]
""")
    answered, codes = told
    assert len(answered) > 30
    # A binding that swallows a return code, or a symbol that is missing (13), would show here.
    assert set(codes.values()) <= {2, 3, 6}
    for wanted in ("PowerUsage", "TotalEnergyConsumption", "Name", "UUID", "PciInfo", "MigMode"):
        assert f"nvmlDeviceGet{wanted}" in answered


def test_gpustat_sees_the_cards(node: FakeNvml) -> None:
    python = _python_with("gpustat")
    told = json.loads(_run(node, python, "-m", "gpustat", "--json", "--no-color"))
    busy, idle = told["gpus"]
    assert [gpu["uuid"] for gpu in told["gpus"]] == list(node.uuids)
    assert (busy["utilization.gpu"], idle["utilization.gpu"]) == (100, 0)
    assert busy["memory.used"] == 7 << 10  # MiB
    assert idle["power.draw"] < busy["power.draw"] <= busy["enforced.power.limit"]
    assert [process["pid"] for process in idle["processes"]] == [os.getpid()]
    assert idle["processes"][0]["gpu_memory_usage"] == 3 << 10
    node.lose(1)
    _run(node, python, "-m", "gpustat", "--no-color")  # it shows the loss its own way


@pytest.mark.long
def test_nvitop_sees_the_cards(node: FakeNvml) -> None:
    screen = _run(node, _python_with("nvitop"), "-m", "nvitop", "--once", "--ascii")
    name = node.ask("answer = n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(0))")
    assert screen.count(name.removeprefix("NVIDIA ").split("-")[0][:8]) >= 2
    busy, idle = re.findall(r"(\d+)W / (\d+)W \|\s*(\S+) / \S+ \|\s*(\d+)%", screen)
    assert (busy[3], idle[3]) == ("100", "0")
    assert int(idle[0]) < int(busy[0]) <= int(busy[1])
    assert busy[2] == "7168MiB"
    assert str(os.getpid()) in screen


@pytest.mark.long
def test_zeus_measures_and_sets(node: FakeNvml) -> None:
    """Its monitor from the energy counter, then its setters, which ours must be told from."""
    script = """
import json, time
from zeus.device import get_gpus
from zeus.monitor import ZeusMonitor

monitor = ZeusMonitor(gpu_indices=[0, 1], approx_instant_energy=False)
began = time.monotonic()
monitor.begin_window("window", sync_execution=False)
time.sleep(1.0)
measured = monitor.end_window("window", sync_execution=False)
took = time.monotonic() - began
gpus = get_gpus()
power_mw = gpus.get_instant_power_usage(0)
gpus.set_gpu_locked_clocks(0, 345, 1005)
gpus.set_power_management_limit(1, gpus.get_power_management_limit_constraints(1)[0])
print(json.dumps([measured.gpu_energy, took, power_mw, gpus.get_power_management_limit(1)]))
"""
    energy_j, took_s, power_mw, limit_mw = json.loads(
        _run(node, _python_with("zeus.monitor"), "-c", script).splitlines()[-1]
    )
    power_w = power_mw / 1000
    step_s = 0.1  # of the counter, at either end
    assert power_w * (1.0 - step_s) * 0.99 <= energy_j["0"] <= power_w * (took_s + step_s) * 1.01
    assert 0 < energy_j["1"] < energy_j["0"]
    assert node.locks()[0] == (345, 1005)
    assert node.limits_w()[1] * 1000 == limit_mw
    assert [write.function for write in node.writes()] == [
        "nvmlDeviceSetGpuLockedClocks",
        "nvmlDeviceSetPowerManagementLimit",
    ]
