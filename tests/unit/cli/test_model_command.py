"""`joulecut model`: the contract of its JSON, its bad-input lines, sweeps."""

import csv
import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, CompletedProcess, Popen

import commands
import pytest
from running_agent import PATIENCE_S, eventually

from joulecut_cli.main import main as joulecut
from joulecut_lab import run_file
from joulecut_lab.model import formula
from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.run import Attention, Run
from joulecut_lab.model.stack import STACKS

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


@pytest.mark.parametrize("name", ["gpt3-175b", "llama-3-70b", "deepseek-v3",
                                  "llama-2-70b-components"])  # fmt: skip
def test_examples_are_estimated(name: str) -> None:
    said = _run(EXAMPLES / f"{name}.yaml", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["fits"]


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("layers: 96, ", "", "run.yaml:1: model"),
        ("a100-sxm-80gb", "a100", "run.yaml:2: system.accelerator"),
        ("schedule: 1f1b", "schedule: 2f2b", "run.yaml:3: run.schedule"),
        ("tensor: 8, pipeline: 8", "tensor: 64, pipeline: 1", "run.yaml:3: run.tensor"),
        ("global_batch: 512", "global_batch: 511", "run.global_batch"),
        ("clock_mhz: 1410", "clock_mhz: 1", "run.clock_mhz"),
        ("sequence: 2048", "sequence: 1000000000000", "run.sequence"),
        ("512, tensor: 8, pipeline: 8, data: 8", "99, pipeline: 99", "run.pipeline"),
        ("run:", "runs:", "run.yaml:3: runs"),
        ("run:", "cost: {tokens: 1e9, iterations: 9}\nrun:", "cost: tokens and iterations"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, old: str, new: str, where: str) -> None:
    assert old in RUN
    said = _run(_file(tmp_path, RUN.replace(old, new)))
    assert said.returncode == 2
    assert said.stderr.count("\n") == 1
    assert where in said.stderr
    assert "allowed:" in said.stderr


@pytest.mark.parametrize("words", [(), ("sweep",), ("trace",), ("marginal",)])
def test_a_pipe_is_refused_at_once(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Without a writer, reading would wait for ever."""
    path = tmp_path / "run.yaml"
    os.mkfifo(path)
    said = _run(*words, path)
    assert said.returncode == 2
    assert said.stderr.count("\n") == 1
    assert "not a regular file" in said.stderr


def test_what_is_too_large_to_lay_out_is_refused(tmp_path: Path) -> None:
    text = RUN.replace("global_batch: 512", "global_batch: 800000000")
    said = _run(_file(tmp_path, text), "--level", "graph")
    assert said.returncode == 2
    assert "run.global_batch" in said.stderr


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
    assert {row["recompute"] for row in rows} <= {"none", "selective", "pointwise", "full"}
    assert not list(tmp_path.glob(".*"))  # nothing is left to go on with


def test_ctrl_c_ends_a_sweep_without_a_word_of_its_workers(tmp_path: Path) -> None:
    """A terminal sends it to all of them, also to those that have just been started. A second one
    comes while they are ended.
    """
    command = [str(Path(sys.executable).with_name("joulecut")), "model", "sweep", "--jobs", "2"]
    sweep = [*command, str(EXAMPLES / "megatron-1t-sweep.yaml")]
    with Popen(sweep, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True) as process:
        eventually("workers", lambda: _heeds_interrupts_beside_workers(process.pid))
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        assert (process.communicate(timeout=PATIENCE_S), process.returncode) == (("", ""), 130)


def _heeds_interrupts_beside_workers(pid: int) -> bool:
    process = Path(f"/proc/{pid}")
    children = (process / "task" / str(pid) / "children").read_text().split()
    ignored = (process / "status").read_text().partition("SigIgn:")[2].split()[0]
    return len(children) > 1 and not int(ignored, 16) & 1 << signal.SIGINT - 1


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("tensor: all", "tensor: some", "sweep.tensor"),
        ("tensor: all", "tensors: all", "sweep.tensors"),
        ("pipeline: [1, 2, 4]", "pipeline: [1, two]", "sweep.pipeline[1]"),
        ("[1410, 1005]", "[1410, 5000]", "sweep.clock_mhz"),
        ("tensor: all", "tensor: [1, 0]", "sweep.tensor[1]"),
    ],
)
def test_bad_sweeps_are_one_line(tmp_path: Path, old: str, new: str, where: str) -> None:
    said = _run("sweep", _file(tmp_path, SWEEP.replace(old, new), "sweep.yaml"))
    assert said.returncode == 2
    assert where in said.stderr
    assert said.stderr.count("\n") == 1


def test_what_does_not_fit_says_by_how_much(tmp_path: Path) -> None:
    text = RUN.replace("tensor: 8, pipeline: 8, data: 8", "tensor: 2, pipeline: 8, data: 32")
    said = _run(_file(tmp_path, text))
    assert said.returncode == 0
    assert "Does not fit" in said.stdout
    assert "more than a GPU has" in said.stdout
    assert "joulecut model sweep lists the layouts that fit" in said.stdout
    near = "model: llama-3-8b\nsystem: dgx-h100\nrun: {stack: megatron, gpus: 8, global_batch: 64, "
    said = _run(_file(tmp_path, near + "sequence: 4096}\n"))  # above what is free, below all
    assert re.search(r"needs 83\.\d+ GB, \d\.\d+ GB more than a GPU has for it", said.stdout)


def test_an_evaluation_has_no_profile(tmp_path: Path) -> None:
    """Nothing runs backward, so that nothing can be planned."""
    run = tmp_path / "run.yaml"
    run.write_text(RUN.replace("run: {", "run: {forward_only: true, "))
    done = _run("profile", run, "--out", tmp_path / "job")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "run.forward_only: an evaluation has no plan" in done.stderr


def test_a_profile_is_planned_as_a_measured_one(tmp_path: Path) -> None:
    """The plan's baseline is the model's iteration, with transfers, gradients and optimizer."""
    run = _file(tmp_path, RUN.replace("clock_mhz: 1410", "clock_mhz: 1200"))
    assert _run("profile", run, "--out", tmp_path / "job").returncode == 0
    said = commands.run("plan", str(tmp_path / "job" / "job.yaml"), "--json", main=joulecut)
    assert said.returncode == 0, said.stderr
    plan = json.loads(said.stdout)
    model = json.loads(_run(run, "--json").stdout)
    baseline = plan["baseline"]
    assert baseline["iteration_time_s"] == pytest.approx(model["iteration_time_s"], rel=0.02)
    pipelines = 512 / 8  # one GPU per stage: eight tensor ranks of each of eight copies
    assert baseline["energy_j"] * pipelines == pytest.approx(model["energy_j"], rel=0.03)


def test_a_calibration_brings_back_the_system_that_made_the_rows(tmp_path: Path) -> None:
    """Rows made by a slower system: after calibration they are predicted."""
    system = SYSTEMS["dgx-a100"]
    truth = replace(system, matrix_efficiency=0.6, scale_up_efficiency=0.5)
    rows = ["model,gpus,tensor,data,microbatch,global_batch,sequence,recompute,iteration_time_s"]
    for tensor, microbatch, recompute in ((1, 1, "none"), (8, 4, "none"), (8, 1, "full")):
        run = Run(8, tensor=tensor, data=8 // tensor, microbatch=microbatch, global_batch=64,
                  recompute=recompute)  # fmt: skip
        time_s = formula.estimate(ARCHITECTURES["gpt3-6.7b"], truth, run).iteration_time_s
        rows.append(f"gpt3-6.7b,8,{tensor},{run.data},{microbatch},64,2048,{recompute},{time_s}")
    data = _file(tmp_path, "\n".join(rows), "data.csv")
    out = tmp_path / "mine.yaml"
    said = _run("calibrate", data, "--system", "dgx-a100", "--out", out, "--json")
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    assert found["rows"] == 3
    assert found["time_error"] < 0.02
    text = RUN.replace(RUN.splitlines()[1], "system: {file: mine.yaml}")
    slow = json.loads(_run(_file(tmp_path, text), "--json").stdout)
    fast = json.loads(_run(_file(tmp_path, RUN, "fast.yaml"), "--json").stdout)
    assert slow["iteration_time_s"] > fast["iteration_time_s"]


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ("layerz,iteration_time_s\n1,2", "data.csv:1"),
        ("model,iteration_time_s\ngpt5,2\n", "data.csv:2: model"),
        ("model,tensor,iteration_time_s\ngpt2,5,2\n", "data.csv:2: tensor"),
        ("model,hbm_gb_s,iteration_time_s\ngpt2,1555,2\n", "data.csv:2: hbm_gb_s"),
        ("model,iteration_time_s\ngpt2,2\n", "data.csv"),
    ],
)
def test_bad_measurements_are_one_line(tmp_path: Path, rows: str, where: str) -> None:
    data = _file(tmp_path, rows, "data.csv")
    said = _run("calibrate", data, "--system", "dgx-a100", "--out", tmp_path / "out.yaml")
    assert said.returncode == 2
    assert where in said.stderr
    assert said.stderr.count("\n") == 1


def test_marginal_and_scale_name_the_component_that_pays() -> None:
    path = EXAMPLES / "llama-2-70b-components.yaml"
    found = json.loads(_run("marginal", path, "--json").stdout)["marginal"]
    assert {one["component"] for one in found} == {"sm", "hbm", "scale_up", "scale_out"}
    said = _run("scale", path, "--component", "scale_out", "--range", "0.5:1.5", "--json")
    points = json.loads(said.stdout)["points"]
    assert points[0]["factor"] == 0.5
    assert points[-1]["factor"] == 1.5
    assert points[-1]["total_j"] < points[0]["total_j"]


@pytest.mark.parametrize("given", ["1.5:0.5", "0.5", "a:b", "0:2", "0.5:1000"])
def test_bad_ranges_are_one_line(given: str) -> None:
    path = EXAMPLES / "llama-2-70b-components.yaml"
    said = _run("scale", path, "--component", "sm", "--range", given)
    assert said.returncode == 2
    assert "--range" in said.stderr


def test_timelines_and_pictures_are_written(tmp_path: Path) -> None:
    run = _file(tmp_path, RUN.replace("global_batch: 512", "global_batch: 64"))
    said = _run(run, "--timeline", tmp_path / "t.json", "--plot", tmp_path / "p.html")
    assert said.returncode == 0, said.stderr
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    work = [e for e in events if e["ph"] == "X" and e["cat"] in {"forward", "backward"}]
    assert len(work) == 2 * 8 * 8
    assert "memory of a GPU by stage" in (tmp_path / "p.html").read_text()


def test_technology_prints_sources(tmp_path: Path) -> None:
    said = _run("technology", "--plot", str(tmp_path / "growth.html"))
    assert "Horowitz" in said.stdout
    assert "power per package" in (tmp_path / "growth.html").read_text()
    shown = json.loads(_run("technology", "--json").stdout)
    split = shown["power_check"]
    assert split["limit_w"] == pytest.approx(sum(v for k, v in split.items() if k[-2:] == "_w") / 2)
    assert [row["tops"] for row in shown["number_check"]["rows"]] == [19.5, 156.0, 312.0, 624.0]


def test_a_rate_that_the_check_does_not_explain_is_a_sentence() -> None:
    said = _run("technology", "--system", "b200").stdout
    row = next(line for line in said.splitlines() if line.startswith("matrix TF32 "))
    assert row.split()[-1] == "-"
    assert "matrix TF32: the parts exceed" in said
    assert "--system" in _run("technology", "--system", "b2000").stderr


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_sets_what_the_run_does_not_and_prints_it(tmp_path: Path, stack: str) -> None:
    text = (
        "model: llama-3-8b\nsystem: dgx-h100\n"
        f"run: {{gpus: 16, tensor: 2, global_batch: 16, stack: {stack}, gradient_bytes: 2}}\n"
    )
    path = _file(tmp_path, text)
    file = run_file.read(path)
    assert file.run.gradient_bytes == 2, "the run's own key wins"
    assert file.run.flash_attention is (stack != "plain")
    said, text = json.loads(_run("--json", path).stdout)["stack"], _run(path).stdout
    assert said["name"] == stack
    for one in said["defaults"]:
        assert getattr(file.run, one["key"]) == one["value"]
        assert one["source"] in text
    keys = {one["key"]: one["value"] for one in said["defaults"]}
    assert len(keys) == len(said["defaults"])
    wanted = {"torchtitan": "flash2", "megatron": "cudnn", "megatron-bridge": "cudnn"}
    assert keys.get("attention") == wanted.get(stack, None if stack == "plain" else "flash2")


def test_a_stack_knows_the_card_and_a_run_without_one_says_what_is_off(tmp_path: Path) -> None:
    run = "run: {gpus: 8, global_batch: 8, stack: megatron-bridge, dtype: fp8}\n"
    path = _file(tmp_path, f"model: llama-3-8b\nsystem: dgx-b200\n{run}")
    assert run_file.read(path).run.scaling == "delayed", "by tiles"
    assert not run_file.read(path).run.sequence_parallel, "without a tensor group"
    path.write_text(f"model: llama-3-8b\nsystem: dgx-h100\n{run}")
    assert run_file.read(path).run.scaling == "dynamic"
    path.write_text(f"model: llama-3-8b\nsystem: dgx-a100\n{run.replace('fp8', 'bf16')}")
    assert run_file.read(path).run.attention == "system"
    path.write_text(RUN)
    assert "no stack: what a run does not give is off" in _run(path).stdout
    path.write_text(RUN.replace("run: {", "run: {stack: apex, "))
    assert "megatron | megatron-bridge | torchtitan" in _run(path).stderr


def test_kernels_of_attention_differ_where_the_card_says_so() -> None:
    run = Run(8, data=8, global_batch=8, sequence=32768, flash_attention=True)
    model = ARCHITECTURES["llama-3-8b"]

    def seconds(system: str, kernel: Attention) -> float:
        found = formula.estimate(model, SYSTEMS[system], replace(run, attention=kernel))
        return found.iteration_time_s

    order: tuple[Attention, ...] = ("flash3", "cudnn", "flash2")
    times = [seconds("dgx-h100", kernel) for kernel in order]
    assert times == sorted(times)
    assert times[0] < times[2]
    assert seconds("dgx-h100", "system") == times[2]
    assert seconds("dgx-b200", "system") == seconds("dgx-b200", "cudnn")
    assert len({seconds("dgx-a100", kernel) for kernel in order}) == 1


def test_serving_prints_batches_and_the_clocks_within_a_limit(tmp_path: Path) -> None:
    picture = tmp_path / "serving.html"
    flags = ("--tensor", "4", "--dtype", "fp8", "--max-token-ms", "1,100")
    said = _run("serving", "llama-3-70b", "dgx-h100", *flags, "--json", "--plot", str(picture))
    assert said.returncode == 0, said.stderr
    assert "J per token by clock" in picture.read_text()
    shown = json.loads(said.stdout)
    assert [one["decode"] is None for one in shown["best_clocks"]] == [True, False]
    assert shown["best_clocks"][1]["decode"]["time_s"] <= 0.1
    batches = [one["serving"]["batch"] for one in shown["served"]]
    assert batches == sorted(batches)
    assert "--tensor" in _run("serving", "llama-3-70b", "dgx-h100", "--tensor", "3").stderr
