"""The agent's `/metrics` as a text that a person reads: names, labels, help and what is absent."""

import re
from pathlib import Path

from golden_text import same_as_golden
from running_agent import RunningAgent, eventually

from joulecut import Reporter

GOLDEN = Path(__file__).with_name("agent_metrics.txt")
STEADY = (  # told by the configuration, a command, or the card's data sheet
    "build_info", "collect_success", "keeper_up", "gpu_info", "gpu_power_limit_watts",
    "gpu_clock_limit_hertz", "gpu_allocation_info", "gpu_clock_event_active",
    "control_commands_total", "control_restores_total", "job_reports_total",
    "gpu_memory_used_bytes", "gpu_intent_info", "gpu_intent_slowdown_max_ratio",
    "agent_released", "control_stopped",
)  # fmt: skip


def _normalised(text: str) -> str:
    """Measured values become #, the version too; buckets beyond the first are left out."""
    lines = []
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if line.startswith("#"):
            lines.append(line)
        elif "_bucket{" not in line or 'le="0.0001"' in line:
            name = series.partition("{")[0].removeprefix("joulecut_")
            series = re.sub(r'(version)="[^"]*"', r'\1="#"', series)
            lines.append(f"{series} {value if name in STEADY else '#'}")
    return "\n".join(lines)


def test_metrics_read_as_they_always_did() -> None:
    with RunningAgent(cards=2) as node:
        node.start()
        assert node.apply({1: 1005})[0].accepted
        assert node.clear()[0].accepted
        reporter = Reporter("gpt3-175b", node.gpus.uuid(0), 0, node.ready["socket"])
        reporter.iteration(1, 0.5, {"forward": (4, 0.1)})
        reporter.close()
        # In the name of the job that has the GPU: another's would be given back within a second.
        assert node.apply({0: 1005}, generation=2, job="gpt3-175b")[0].accepted
        assert not node.apply({0: 1001}, generation=3)[0].accepted
        text = eventually(
            "everything told",
            lambda: (
                m
                if "gpu_clock_limit" in (m := node.metrics())
                and "collect_success 1.0" in m
                and "keeper_up 1.0" in m
                and "job_energy_joules_total{" in m
                and "control_restores_total{" in m
                else ""
            ),
        )
        same_as_golden(GOLDEN, _normalised(text))
