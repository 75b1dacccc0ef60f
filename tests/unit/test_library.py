"""`from joulecut_engine import plan, model`: files and dictionaries give what the commands give."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import commands
import pandas
import pytest
from jobs import write_job

from joulecut_cli.main import main as joulecut
from joulecut_engine import model, plan

EXAMPLES = Path(__file__).parents[2] / "examples" / "model"
SHAPE = {"schedule": "1f1b", "stages": 2, "microbatches": 4}
ROWS = [
    {"stage": stage, "instruction": kind, "frequency": mhz, "time": work / mhz, "energy": mhz / 9}
    for stage in (0, 1)
    for kind, work in (("forward", 100.0 + 20 * stage), ("backward", 200.0))
    for mhz in (1400, 1200, 1000, 800)
]


def test_a_job_file_gives_the_plan_of_the_command(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    said = commands.run("plan", job, "--max-slowdown", "5", "--json", main=joulecut)
    theirs = json.loads(said.stdout)
    ours = plan(job, max_slowdown=5)
    assert ours.iteration_time_s == theirs["iteration_time_s"]
    assert ours.energy_j == theirs["energy_j"]
    assert ours.operations() == theirs["operations"]
    assert 0.0 < ours.saved_ratio < 1.0
    assert ours.slowdown_ratio <= 0.05 + 1e-9


def test_a_stack_says_what_it_sets() -> None:
    found = model("llama-3-8b", "dgx-h100", stack="torchtitan", data=8, global_batch=8)
    assert {one.key: one.value for one in found.defaults}["zero"] == found.run.zero == 3
    assert all(one.source for one in found.defaults)
    assert not model("llama-3-8b", "dgx-h100").defaults


def test_a_slowdown_is_in_percent_as_on_the_command_line() -> None:
    asked = [5, 5.0, "5", "5%", " 5 % "]
    plans = [plan(ROWS, SHAPE, blocking_power_w=20.0, max_slowdown=one) for one in asked]
    assert {round(one.deadline_s / one.baseline.iteration_time_s, 9) for one in plans} == {1.05}


def test_files_rows_columns_and_frames_are_one_profile(tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    frame = pandas.DataFrame(ROWS)
    frame.to_csv(path, index=False)
    given = (path, str(path), ROWS, frame, frame.to_dict("list"))
    plans = [plan(one, SHAPE, blocking_power_w=20.0, max_slowdown=10) for one in given]
    assert len({one.energy_j for one in plans}) == 1
    assert len({one.iteration_time_s for one in plans}) == 1


def test_a_frontier_is_rows_a_frame_and_a_picture(tmp_path: Path) -> None:
    found = plan(ROWS, SHAPE, blocking_power_w=20.0).frontier(points=6)
    frame = found.to_pandas()
    assert len(frame) == len(found) >= 2
    assert frame["iteration_time_s"].is_monotonic_increasing
    assert frame["energy_j"].is_monotonic_decreasing
    assert (frame["lower_bound_j"] <= frame["energy_j"] * (1 + 1e-9)).all()
    shown = found.plot(tmp_path / "frontier.svg")
    assert (tmp_path / "frontier.svg").read_text().startswith("<?xml")
    assert shown._repr_png_().startswith(b"\x89PNG")


def test_names_dictionaries_and_files_give_the_estimate_of_the_command(tmp_path: Path) -> None:
    said = commands.run("model", str(EXAMPLES / "llama-3-70b.yaml"), "--json", main=joulecut)
    theirs = json.loads(said.stdout)
    del theirs["run_totals"]
    assert json.loads(json.dumps(model(EXAMPLES / "llama-3-70b.yaml").as_dict())) == theirs
    named = model("llama-3-70b", "dgx-h100", tensor=8)
    assert named.run.gpus == 8
    shape = {"layers": 2, "hidden": 512, "heads": 8, "vocab": 1000}
    small = model(shape, {"accelerator": "h100-sxm"}, level="graph", data=4, global_batch=4)
    assert small.fits
    assert small.estimate.level == "graph"
    assert model(EXAMPLES / "llama-3-8b.json", "dgx-h100").memory_bytes > 80e9


def test_a_sweep_is_that_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(
        "model: gpt3-13b\nsystem: dgx-a100\nrun: {gpus: 16, global_batch: 32}\n"
        "sweep: {tensor: all, pipeline: [1, 2, 4], recompute: all, clock_mhz: [1410, 1005]}\n"
    )
    said = commands.run("model", "sweep", str(tmp_path / "sweep.yaml"), "--json", "--jobs", "1",
                        main=joulecut)  # fmt: skip
    theirs = json.loads(said.stdout)
    steps: list[tuple[int, int]] = []
    run = model("gpt3-13b", "dgx-a100", gpus=16, data=16, global_batch=32)
    found = run.sweep(
        lambda done, of: steps.append((done, of)),
        tensor="all", pipeline=[1, 2, 4], recompute="all", clock_mhz=[1410, 1005],
    )  # fmt: skip
    assert (len(found), found.too_large, found.impossible) == (
        theirs["fitting"], theirs["too_large"], theirs["impossible"],
    )  # fmt: skip
    front = found.front.to_pandas()
    assert list(front["energy_j"]) == [one["energy_j"] for one in theirs["pareto"]]
    assert set(front["recompute"]) <= {"none", "selective", "pointwise", "full"}
    assert steps[-1][0] == steps[-1][1]
    found.plot(tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (lambda: plan(ROWS, SHAPE), "blocking_power_w"),
        (lambda: plan(ROWS, SHAPE, blocking_power_w="8"), "blocking_power_w"),
        (lambda: plan(5, SHAPE, blocking_power_w=9), "int is no profile"),
        (lambda: plan(ROWS[:-4], SHAPE, blocking_power_w=9), "backward of stage 1"),
        (lambda: plan(ROWS, {**SHAPE, "stages": 3}, blocking_power_w=9), "2 stages"),
        (lambda: plan(ROWS, SHAPE, blocking_power_w=9, deadline_s=1e-3), "fastest possible"),
        (lambda: plan(ROWS, SHAPE, blocking_power_w=9, deadline_s=float("nan")), "deadline_s"),
        (lambda: plan(ROWS, SHAPE, blocking_power_w=9, deadline_s="soon"), "deadline_s 'soon'"),
        (lambda: plan(ROWS, SHAPE, blocking_power_w=9, granularity="layer"), "computation"),
        (lambda: plan("nowhere.csv", SHAPE, blocking_power_w=9), "nowhere.csv"),
        (lambda: plan(ROWS, SHAPE, blocking_power_w=9, max_slowdown="5x"), "max_slowdown"),
        (
            lambda: plan(ROWS, SHAPE, blocking_power_w=9, max_slowdown=1, deadline_s=9),
            "max_slowdown and deadline_s",
        ),
        (lambda: model("llama", "dgx-h100"), "llama-3-8b"),
        (lambda: model("gpt2", "dgx-a100", dtype="fp8"), "run.dtype.*no fp8"),
        (lambda: model("gpt2", "dgx-a100").sweep(dtype=["bf16", "fp8"]), "no fp8"),
        (lambda: model("gpt2", "dgx-v100", sparsity=0.5), "no 2:4 sparsity"),
        (lambda: model("gpt2", "dgx-h100", gradient_bytes=3), "gradient_bytes.*1 | 2 | 4"),
        (
            lambda: model("gpt2", {"accelerator": "dgx-a100", "power_cap_w": 50}),
            "power_cap_w.*above idle power, 55 W",
        ),
        (
            lambda: model("llama-3-8b", {"accelerator": "dgx-a100", "power_cap_w": 60}),
            "power_cap_w: 60 W: at the lowest clock this run draws",
        ),
        (lambda: model("gpt2", "dgx"), "dgx-h100"),
        (lambda: model("gpt2", "dgx-h100", tensor=7), "tensor"),
        (lambda: model("gpt2", "dgx-h100", tensr=7), "did you mean tensor"),
        (lambda: model("gpt2", "dgx-h100", level="layer"), "formula"),
        (lambda: model({"layers": 3}, "dgx-h100"), "hidden"),
        (lambda: model("gpt2", "dgx-h100").sweep(tensor=3), "a list"),
    ],
)
def test_bad_input_is_a_value_error_of_one_line(asked: Callable[[], object], named: str) -> None:
    with pytest.raises(ValueError, match=named) as raised:
        asked()
    assert "\n" not in str(raised.value)


def test_printed_an_answer_is_one_line_with_units() -> None:
    wide = str(model("llama-3-70b", "dgx-h100", tensor=8))
    assert wide.startswith("llama-3-70b on 8 GPUs of dgx-h100, predicted: ")
    assert wide.endswith("GB on the fullest GPU (too much)")
    saved = str(plan(ROWS, SHAPE, blocking_power_w=20.0, max_slowdown="10%"))
    assert saved.startswith("predicted: ")
    assert "\n" not in wide + saved


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plan(ROWS, SHAPE, blocking_power_w=20.0)
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        found.to_pandas()
    with pytest.raises(ModuleNotFoundError, match="pip install matplotlib"):
        found.plot()
