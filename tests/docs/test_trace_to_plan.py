"""From a trace to a plan, typed as docs/model.md prints it, on a trace of a real step.

Here the step runs on a CPU. Kernels of a GPU are added for its products, at a known share of the
peak: simulated, in the form of the profiler.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import commands
import pytest
import yaml
from docs_commands import ROOT, blocks

PEAK_FLOPS, SHARE = 312e12, 0.5  # of an A100, and what the added kernels reach
STEP = """
import torch
width = 2048
layer = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Linear(width, width))
def train_step():
    layer(torch.randn(4096, width)).square().mean().backward()
"""


def _products(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A kernel for each product of matrices, with its operator's own shapes."""
    kernels, at_us = list[dict[str, Any]](), 0.0
    for event in events:
        if event.get("name") not in {"aten::mm", "aten::addmm"}:
            continue
        args = event["args"]
        left, right = [shape for shape in args["Input Dims"] if len(shape) == 2][:2]
        args["Input type"] = ["c10::BFloat16" for _ in args["Input type"]]
        took_us = 1e6 * 2.0 * left[0] * left[1] * right[1] / (PEAK_FLOPS * SHARE)
        where = {"device": 0, "stream": 7, "External id": args["External id"]}
        kernels.append({
            "ph": "X", "cat": "kernel", "name": "sm80_xmma_gemm_bf16", "ts": event["ts"] + at_us,
            "dur": took_us, "pid": 0, "tid": 7, "args": where,
        })  # fmt: skip
        at_us += took_us
    return kernels


@pytest.mark.long
def test_the_page_leads_from_a_recorded_step_to_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    page = (ROOT / "docs" / "model.md").read_text()
    section = page.partition("### From a trace to a plan\n")[2].partition("\n## ")[0]
    (record, run, typed) = (content for _, _, content in blocks(section))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(run)
    subprocess.run([sys.executable, "-c", STEP + record], check=True, capture_output=True)
    trace, profile, plan = (shlex.split(line)[1:] for line in typed.splitlines())
    refused = commands.run(*trace)
    assert refused.returncode == 2
    assert "no GPU kernels; allowed:" in refused.stderr

    file = tmp_path / "rank0.json"
    recorded = json.loads(file.read_text())
    kernels = _products(recorded["traceEvents"])
    assert len(kernels) >= 5, "two layers, forward and backward"
    recorded["traceEvents"] += kernels
    file.write_text(json.dumps(recorded))
    for words in (trace, profile):
        done = commands.run(*words)
        assert done.returncode == 0, done.stderr
    planned = commands.run(*plan)
    assert planned.returncode == 0, planned.stderr
    measured = yaml.safe_load((tmp_path / "mine.yaml").read_text())
    assert measured["system"]["matrix_efficiency"] == pytest.approx(SHARE, rel=0.01)
    slower, saved = re.findall(
        r"^plan .*?\+([\d.]+) %.* -([\d.]+) %", planned.stdout, re.MULTILINE
    )[0]
    assert float(slower) <= 2.0
    assert float(saved) > 0.0
