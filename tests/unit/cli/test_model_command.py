"""`joulecut model`: the contract of its JSON, its bad-input lines, sweeps that go on."""

import csv
import json
import signal
import sys
import time
from pathlib import Path
from subprocess import PIPE, CompletedProcess, Popen

import commands
import pytest

from joulecut_cli.main import main as joulecut

# Inputs and keys as users' files and programs have them: a change breaks those.
RUN = """\
model: {layers: 96, hidden: 12288, heads: 96, kv_heads: 96, ffn: 49152, vocab: 51200, gated: false}
system: {accelerator: a100-sxm-80gb, gpus_per_node: 8, scale_up_gb_s: 300, scale_out_gb_s: 25}
run: {gpus: 512, tensor: 8, pipeline: 8, data: 8, context: 1, expert: 1, schedule: 1f1b, chunks: 1,
      microbatch: 1, global_batch: 512, sequence: 2048, dtype: bf16, recompute: full,
      sequence_parallel: false, zero: 0, overlap_gradients: false, flash_attention: false,
      clock_mhz: 1410}
"""
KEYS = {
    "parameters", "model_flops", "hardware_flops", "iteration_time_s", "breakdown_s",
    "component_time_s", "memory", "energy_j", "energy_breakdown_j", "power_w_per_gpu",
    "node_power_w", "tokens_per_s", "mfu", "hfu", "fits",
}  # fmt: skip
BREAKDOWN = {
    "forward", "backward", "recompute", "tensor_comm", "pipeline_comm", "data_comm", "expert_comm",
    "context_comm", "bubble", "optimizer", "embedding_loss", "offload",
}  # fmt: skip
ENERGY = {"compute", "memory", "scale_up", "scale_out", "waiting", "static", "host"}
STAGE = {
    "stage", "weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes",
    "temporary_bytes", "total_bytes",
}  # fmt: skip
EXAMPLES = Path(__file__).parents[3] / "examples" / "model"
SWEEP = """\
model: gpt3-13b
system: dgx-a100
run: {gpus: 16, global_batch: 32, sequence: 2048}
sweep: {tensor: all, pipeline: [1, 2, 4], recompute: all, zero: [0, 1], clock_mhz: [1410, 1005]}
"""


def _file(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def _run(*words: str | Path) -> CompletedProcess[str]:
    return commands.run("model", *map(str, words), main=joulecut)


def test_json_has_the_keys_of_the_contract_and_sums(tmp_path: Path) -> None:
    said = _run(_file(tmp_path, RUN), "--json")
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert set(found) >= KEYS
    assert set(found["breakdown_s"]) == BREAKDOWN
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["iteration_time_s"], rel=1e-6)
    assert set(found["component_time_s"]) == {"compute", "memory", "network", "launch", "waiting"}
    assert set(found["energy_breakdown_j"]) == ENERGY
    host_j = found["energy_breakdown_j"]["host"]
    assert sum(found["energy_breakdown_j"].values()) == pytest.approx(found["energy_j"] + host_j)
    assert [stage["stage"] for stage in found["memory"]] == list(range(8))
    assert all(set(stage) == STAGE for stage in found["memory"])
    assert found["parameters"] == pytest.approx(174.6e9, rel=1e-3)  # SC21, table 1


def test_the_answer_in_words_names_what_it_rests_on(tmp_path: Path) -> None:
    said = _run(_file(tmp_path, RUN))
    for word in ("predicted", "tokens/s", "MFU", "J/token", "kWh", "backward", "bubble", "stage"):
        assert word in said.stdout


@pytest.mark.parametrize("name", ["gpt3-175b", "llama-3-70b", "deepseek-v3",
                                  "llama-2-70b-components"])  # fmt: skip
def test_examples_are_estimated(name: str) -> None:
    said = _run(EXAMPLES / f"{name}.yaml", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["fits"]


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("heads: 96,", "heads: none,", "run.yaml:1: model.heads"),
        ("layers: 96, ", "", "run.yaml:1: model"),
        ("vocab:", "vocabulary:", "run.yaml:1: model.vocabulary"),
        ("a100-sxm-80gb", "a100", "run.yaml:2: system.accelerator"),
        ("schedule: 1f1b", "schedule: 2f2b", "run.yaml:3: run.schedule"),
        ("tensor: 8", "tensor: 7", "gpus"),
        ("tensor: 8, pipeline: 8", "tensor: 64, pipeline: 1", "run.yaml:3: run.tensor"),
        ("global_batch: 512", "global_batch: 511", "run.global_batch"),
        ("dtype: bf16", "dtype: bf17", "run.dtype"),
        ("zero: 0", "zero: 4", "run.zero"),
        ("clock_mhz: 1410", "clock_mhz: fast", "run.clock_mhz"),
        ("run:", "runs:", "run.yaml:3: runs"),
        ("microbatch: 1", "microbatch: 0", "run.microbatch"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, old: str, new: str, where: str) -> None:
    assert old in RUN
    said = _run(_file(tmp_path, RUN.replace(old, new)))
    assert said.returncode == 2
    assert said.stderr.count("\n") == 1
    assert where in said.stderr
    assert "allowed:" in said.stderr


def test_a_configuration_of_hugging_face_names_its_own_fault(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    text = RUN.replace(RUN.splitlines()[0], "model: {huggingface: config.json}")
    said = _run(_file(tmp_path, text))
    assert said.returncode == 2
    assert "config.json: model_type" in said.stderr
    assert "llama" in said.stderr


def test_a_sweep_writes_its_layouts_and_names_the_front(tmp_path: Path) -> None:
    path = _file(tmp_path, SWEEP, "sweep.yaml")
    said = _run("sweep", path, "--jobs", "1", "--out", tmp_path / "all.csv", "--json")
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    assert len(rows) == found["fitting"]
    assert found["combinations"] == found["fitting"] + found["impossible"] + found["too_large"]
    fastest = min(float(row["iteration_time_s"]) for row in rows)
    assert found["pareto"][0]["iteration_time_s"] == pytest.approx(fastest)
    assert {row["recompute"] for row in rows} <= {"none", "selective", "full"}
    assert not list(tmp_path.glob(".*"))  # nothing is left to go on with


@pytest.mark.long
def test_an_interrupted_sweep_goes_on(tmp_path: Path) -> None:
    """Ctrl-C after the first parts: the same command evaluates only the others."""
    text = (EXAMPLES / "megatron-1t-sweep.yaml").read_text().replace("clock_mhz: all", "")
    path = _file(tmp_path, text.replace("[1f1b, zb-h1, zb-v]", "[1f1b]"), "sweep.yaml")
    whole = json.loads(_run("sweep", path, "--jobs", "1", "--json").stdout)
    command = ["model", "sweep", str(path), "--jobs", "1"]
    with Popen([sys.executable, "-m", "joulecut_cli.main", *command], stderr=PIPE) as process:
        parts = tmp_path / ".sweep.yaml.parts"
        while process.poll() is None and not list(parts.glob("[0-9]*.npz")):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"goes on" in complaint
    kept = {part: part.stat().st_mtime_ns for part in parts.glob("[0-9]*.npz")}
    assert kept
    again = json.loads(_run("sweep", path, "--jobs", "1", "--json").stdout)
    assert again["pareto"] == whole["pareto"]
    assert again["seconds"] < whole["seconds"]


def test_parts_of_another_sweep_are_not_used(tmp_path: Path) -> None:
    path = _file(tmp_path, SWEEP, "sweep.yaml")
    folder = tmp_path / ".sweep.yaml.parts"
    folder.mkdir()
    (folder / "digest").write_text("of an older file")
    (folder / "0.npz").write_bytes(b"no part at all")
    assert _run("sweep", path, "--jobs", "1").returncode == 0


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("tensor: all", "tensor: some", "sweep.tensor"),
        ("tensor: all", "tensors: all", "sweep.tensors"),
        ("pipeline: [1, 2, 4]", "pipeline: []", "sweep.pipeline"),
        ("pipeline: [1, 2, 4]", "pipeline: [1, two]", "sweep.pipeline[1]"),
        ("recompute: all", "sequence: all", "sweep.sequence"),
    ],
)
def test_bad_sweeps_are_one_line(tmp_path: Path, old: str, new: str, where: str) -> None:
    said = _run("sweep", _file(tmp_path, SWEEP.replace(old, new), "sweep.yaml"))
    assert said.returncode == 2
    assert where in said.stderr
    assert said.stderr.count("\n") == 1


def test_a_sweep_in_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = _file(tmp_path, SWEEP, "sweep.yaml")
    said = _run("sweep", path, "--jobs", "1", "--json", "--out", tmp_path / "all.parquet")
    table = parquet.read_table(tmp_path / "all.parquet")
    assert table.num_rows == json.loads(said.stdout)["fitting"]
    assert {"tensor", "data", "iteration_time_s", "money"} <= set(table.column_names)
