"""A GH200 by the fake NVML library: the counter of its module is not the GPU's energy."""

import time

from driven_agent import agent_on, fake_driver
from running_agent import eventually


def test_the_counter_of_a_module_is_not_the_gpus_energy() -> None:
    with fake_driver(1, "gh200", {0: 1.0}) as driver, agent_on(driver) as agent:
        agent.start()
        (gpu,) = agent.describe().gpus
        assert gpu.energy_scope == "module"
        (first,) = eventually("a reading", lambda: agent.watch().gpus)
        time.sleep(2.0)
        (second,) = agent.watch().gpus
        assert (first.energy_j, second.energy_j) == (None, None)
        shown = agent.metrics()
        assert 'energy_scope="module"' in shown
        assert "joulecut_gpu_energy_joules_total{" not in shown
        assert "joulecut_gpu_energy_integrated_joules_total{" in shown
        assert "joulecut_gpu_idle_energy_integrated_joules_total{" in shown
        # The module draws 60 W more than the GPU.
        assert second.energy_integrated_j > first.energy_integrated_j
