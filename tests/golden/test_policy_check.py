"""`joulecut policy check` as a person types it: its output, its exit status, its one line."""

import json
import os
import subprocess
from pathlib import Path

import commands
import pytest
import yaml

FILE = Path(__file__).with_name("policy_check.txt")
ROOT = Path(__file__).resolve().parents[2]

POLICY = """\
apiVersion: joulecut/v1
kind: Policy
mode: recommend
cluster:
  cost: {gpu_hour: 2.5, kwh: 0.08}
jobs:
  - name: controlled
    match: {gpus: [node1/0-1]}
    slo: {max_slowdown: 0.5%}
    clocks: {min_mhz: 900, min_dwell: 500ms}
    pipeline: {schedule: 1f1b, stages: 2, microbatches: 12, profile: p.csv, blocking_power_w: 83.64}
    ranks: {source: list}
    mode: enforce
    verify: {holdout: 5%}
  - name: pods
    match: {kubernetes: {namespace: train, labels: {app: gpt3, tier: gpu}}}
    slo: {max_slowdown: 1%}
    pipeline: {schedule: 1f1b, stages: 2, microbatches: 12, profile: p.csv, blocking_power_w: 83.64}
    ranks: {source: completion-index, order: pp-tp-cp-ep-dp}
    mode: enforce
  - name: batch
    match: {slurm: {job_name: llama-70b}}
    slo: {max_slowdown: 1%}
  - name: one-batch
    match: {slurm: {job_id: "4711"}}
    slo: {max_slowdown: 1%}
  - name: watched
    slo: {min_rate: {value: 12, unit: iterations/min}}
    pipeline: {schedule: gpipe, stages: 2, microbatches: 4, data_parallel: 3, profile: p.csv,
               blocking_power_w: 70}
    verify: {holdout: 2.5%, window: 10min}
  - name: unknown-cost
    slo: {max_iteration_time: 2min}
    pipeline: {schedule: gpipe, stages: 16, microbatches: 4}
    match: {gpus: [node2/0-15]}
  - name: unknown-shape
    slo: {max_slowdown: 0}
  - name: left-alone
    slo: {max_slowdown: 2%}
    mode: off
"""


def _profile(stages: int) -> str:
    return "stage,instruction,frequency,time,energy\n" + "".join(
        f"{stage},{kind},{clock},{60.0 / clock},{0.018 * clock}\n"
        for stage in range(stages)
        for kind in ("forward", "backward")
        for clock in (855, 1140, 1410)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "p.csv").write_text(_profile(stages=2))
    return tmp_path


def _joulecut(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return commands.run("policy", *arguments, cwd=folder)


def test_a_right_policy_is_summed_up(folder: Path) -> None:
    answer = _joulecut("check", "policy.yaml", folder=folder)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    if os.environ.get("JOULECUT_REWRITE_GOLDEN") == "1":
        FILE.write_text(answer.stdout)
    assert answer.stdout == FILE.read_text()


def test_the_same_for_programs(folder: Path) -> None:
    answer = _joulecut("check", "policy.yaml", "--json", folder=folder)
    assert answer.returncode == 0
    content = json.loads(answer.stdout)
    assert [job["name"] for job in content["jobs"]] == [
        "controlled", "pods", "batch", "one-batch",
        "watched", "unknown-cost", "unknown-shape", "left-alone",
    ]  # fmt: skip
    first = content["jobs"][0]
    assert first["gpus"] == ["node1/0", "node1/1"]
    assert first["slo"]["max_slowdown"] == 0.005
    pods, batch, one = content["jobs"][1:4]
    assert pods["pods"]["namespace"] == "train"
    assert (pods["ranks"], pods["rank_order"]) == ("completion-index", "pp-tp-cp-ep-dp")
    assert (batch["slurm"]["job_name"], one["slurm"]["job_id"]) == ("llama-70b", "4711")
    assert content["jobs"][4]["slo"]["max_iteration_time_s"] == 5.0
    assert all(job["outcome"] for job in content["jobs"])
    assert content["jobs"][7]["mode"] == "off"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "joulecut policy: no action; allowed: joulecut policy check FILE [--json]"),
        (("show",), "'show' is no action"),
        (("check",), "FILE"),
        (("check", "nowhere.yaml"), "nowhere.yaml: No such file or directory"),
        (("check", "."), "directory"),
        (("check", "policy.yaml", "--jsn"), "--jsn"),
        (("check", "broken.yaml"), 'broken.yaml:2: kind: "Polisy" is not known'),
        (("check", "policy.yaml", "--controller", "http://x"), "--controller"),
        (("check", "policy.yaml", "--profiles", "nowhere"), "--profiles: no folder nowhere"),
        (("check", "unprofiled.yaml"), "jobs[0].pipeline.profile: "),
    ],
)
def test_bad_input_is_one_line_and_status_two(
    folder: Path, arguments: tuple[str, ...], line: str
) -> None:
    (folder / "broken.yaml").write_text("apiVersion: joulecut/v1\nkind: Polisy\n")
    (folder / "unprofiled.yaml").write_text(POLICY.replace("p.csv", "nowhere.csv"))
    answer = _joulecut(*arguments, folder=folder)
    assert answer.returncode == 2
    assert answer.stdout == ""
    assert answer.stderr.count("\n") == 1
    assert line in answer.stderr


def test_the_example_is_fine() -> None:
    answer = _joulecut("check", "examples/policy.yaml", folder=ROOT)
    assert answer.returncode == 0, answer.stderr


def test_the_page_about_it_names_every_key_and_shows_a_right_policy(folder: Path) -> None:
    page = (ROOT / "docs/policy.md").read_text()
    example = page.split("```yaml\n")[1].split("```")[0]
    (folder / "doc.yaml").write_text(example)
    (folder / "gpt3.csv").write_text(_profile(stages=8))
    answer = _joulecut("check", "doc.yaml", folder=folder)
    assert answer.returncode == 0, answer.stderr
    for path in _keys(yaml.safe_load(example)):
        assert f"`{path}`" in page


def _keys(data: object, path: str = "") -> list[str]:
    """The keys of the example as the page names them: `slo.rate`, without `jobs[0]`."""
    if isinstance(data, list) and path == "jobs":
        return [key for item in data for key in _keys(item)]
    if isinstance(data, dict):
        return [
            key
            for name, value in data.items()
            for key in _keys(value, f"{path}.{name}" if path else name)
        ]
    return [path]
