"""Other clients of NVML beside a running agent: between the same steps of the energy counter all
read the same energy, and the same power. Each is a process of its own over the fake driver;
one that is not installed is skipped (`make producers`).
"""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from driven_agent import agent_on, fake_driver
from running_agent import RunningAgent, eventually

from fixture import FakeNvml

pytestmark = pytest.mark.nightly
STEP_S = 4.0  # of the counter: every client reads between two steps, on a slow machine too
SETTLED_S = 600.0  # until temperature, and with it power, no longer moves

# Each names joules and watts of both GPUs. `wait()` returns when the next part shall begin.
CLIENTS = {
    "zeus": """
        from zeus.monitor import ZeusMonitor
        from zeus.device import get_gpus
        monitor = ZeusMonitor(gpu_indices=[0, 1], approx_instant_energy=False)
        wait()
        monitor.begin_window("window", sync_execution=False)
        wait()
        energy = monitor.end_window("window", sync_execution=False).gpu_energy
        joules = [energy[key] for key in sorted(energy)]
        watts = [get_gpus().get_instant_power_usage(gpu) / 1e3 for gpu in (0, 1)]
    """,
    "codecarbon": """
        from codecarbon.core.gpu import AllGPUDevices
        from codecarbon.core.units import Time
        gpus = AllGPUDevices()
        wait()
        gpus.start()
        wait()
        seen = gpus.get_delta(Time(1.0))
        joules = [3.6e6 * one["delta_energy_consumption"].kWh for one in seen]
        watts = [one["power_usage"] for one in gpus.get_gpu_details()]
    """,
    "nvitop": """
        from nvitop import Device
        wait()
        wait()
        joules, watts = None, [gpu.power_usage() / 1e3 for gpu in Device.all()]
    """,
    "gpustat": """
        import gpustat
        wait()
        wait()
        joules, watts = None, [gpu.power_draw for gpu in gpustat.new_query()]
    """,
    "py3nvml": """
        from py3nvml import py3nvml as n
        n.nvmlInit()
        gpus = [n.nvmlDeviceGetHandleByIndex(gpu) for gpu in (0, 1)]
        wait()
        wait()
        joules, watts = None, [n.nvmlDeviceGetPowerUsage(gpu) / 1e3 for gpu in gpus]
    """,
}
AROUND = """
import json, sys
def wait():
    print("ready", flush=True)
    sys.stdin.readline()
{}
print(json.dumps([joules, watts]), flush=True)
"""


def _start(script: str, node: FakeNvml, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", AROUND.format(textwrap.dedent(script))], env=node.environment(),
        cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def _says(client: subprocess.Popen[str]) -> str:
    """The next line for us; libraries print some of their own."""
    assert client.stdout is not None
    return next(line for line in client.stdout if line.startswith(("ready", "[")))


def _go_on(client: subprocess.Popen[str]) -> str:
    client.stdin.write("\n")
    client.stdin.flush()
    return _says(client)


def _after_a_step(agent: RunningAgent) -> list[float]:
    """Joules of both GPUs as the agent shows them just after a step of both counters."""
    before = [agent.gpu(place).energy_j for place in (0, 1)]

    def stepped() -> list[float]:
        now = [agent.gpu(place).energy_j or 0.0 for place in (0, 1)]
        return now if all(new != old for new, old in zip(now, before, strict=True)) else []

    return eventually("a step of the counters", stepped)


@pytest.mark.parametrize("name", sorted(CLIENTS))
def test_it_reads_what_the_agent_reads(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    with fake_driver(2, load={0: 1.0, 1: 0.4}) as node, agent_on(node) as agent:
        for gpu in (0, 1):
            node.set_counter(gpu, step_s=STEP_S)
        node.advance(SETTLED_S)
        agent.start()
        with _start(CLIENTS[name], node, tmp_path) as client:
            assert _says(client) == "ready\n"
            begun_j = _after_a_step(agent)
            assert _go_on(client) == "ready\n"
            ended_j = _after_a_step(agent)
            joules, watts = json.loads(_go_on(client))
            shown_w = [agent.gpu(place).power_instant_w for place in (0, 1)]
    assert watts == pytest.approx(shown_w, rel=0.01)
    assert watts[1] < watts[0]
    if joules is not None:
        taken_j = [end - begin for begin, end in zip(begun_j, ended_j, strict=True)]
        assert taken_j == pytest.approx([watt * STEP_S for watt in shown_w], rel=0.02)
        assert joules == pytest.approx(taken_j, rel=0.001)
