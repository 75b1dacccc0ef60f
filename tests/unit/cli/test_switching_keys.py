"""The `switching` key as a person writes it, and what `plan` and `frontier` then print."""

import json
from pathlib import Path

import pytest

from joulecut_cli import main as cli
from joulecut_cli.jobfile import read
from joulecut_engine.optimize.clock_changes import UNLIMITED, Switching
from joulecut_wire.command import guarded
from joulecut_wire.errors import BadInput

# Two equal stages with three clocks; the shortest operation takes a second.
ROWS = [
    (kind, clock, factor * time_s, energy_j * factor)
    for kind, factor in (("forward", 1.0), ("backward", 2.0))
    for clock, time_s, energy_j in ((1400, 1.0, 300.0), (1200, 1.1, 260.0), (900, 1.5, 240.0))
]


def job(folder: Path, *lines: str) -> Path:
    rows = [f"{s},{k},{f},{t},{e}\n" for s in (0, 1) for k, f, t, e in ROWS]
    (folder / "profile.csv").write_text("stage,instruction,frequency,time,energy\n" + "".join(rows))
    path = folder / "job.yaml"
    shape = "pipeline: {schedule: 1f1b, stages: 2, microbatches: 2}"
    fixed = (shape, "profile: profile.csv", "blocking_power_w: 50")
    path.write_text("\n".join((*fixed, *lines)) + "\n")
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = guarded("joulecut", lambda: cli.dispatch(list(words)))
    out, err = capsys.readouterr()
    return status, out, err


def test_every_key_is_read(tmp_path: Path) -> None:
    keys = "min_dwell_s: 0.5, max_per_iteration: 4, cost_s: 0.01, cost_j: 2, latency_s: 0.1"
    path = job(tmp_path, f"switching: {{{keys}, late: within}}")
    assert read(path).switching == Switching(0.5, 4, 0.01, 2.0, 0.1, "within")
    assert read(job(tmp_path, "switching: {}")).switching == Switching()
    assert read(job(tmp_path)).switching is None
    assert Switching().max_per_iteration == UNLIMITED


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["switching: {latency: 0.1}"], "unknown key"),
        (["switching: {latency_s: -1}"], "switching.latency_s"),
        (["switching: {latency_s: soon}"], "switching.latency_s"),
        (["switching: {cost_j: .nan}"], "switching.cost_j"),
        (["switching: {max_per_iteration: 2.5}"], "switching.max_per_iteration"),
        (["switching: {max_per_iteration: -2}"], "switching.max_per_iteration"),
        (["switching: {late: never}"], "switching.late"),
        (["switching: 4"], "not a mapping"),
    ],
)
def test_bad_keys_are_named(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        read(job(tmp_path, *lines))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_plan_tells_what_is_asked_and_what_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job(tmp_path, "switching: {max_per_iteration: 2, latency_s: 0.05, cost_j: 1}")
    status, out, err = said(capsys, "plan", str(path), "--max-slowdown", "10", "--json")
    assert (status, err) == (0, "")
    plan = json.loads(out)
    free = json.loads(said(capsys, "plan", str(job(tmp_path)), "--max-slowdown", "10", "--json")[1])
    assert set(plan) - set(free) == {"switching", "stages"}
    assert plan["switching"]["without_limits"]["energy_j"] == pytest.approx(free["energy_j"])
    assert plan["iteration_time_s"] <= plan["deadline_s"] * (1 + 1e-9)
    assert free["lower_bound_j"] * (1 - 1e-9) <= plan["energy_j"]
    counts = [len(stage["switches"]) for stage in plan["stages"]]
    assert max(counts) <= 2
    assert sum(counts) == plan["switching"]["switches"]
    work_j = sum(operation["energy_j"] for operation in plan["operations"])
    busy_s = sum(operation["duration_s"] for operation in plan["operations"])
    waiting_j = 50 * (2 * plan["iteration_time_s"] - busy_s)
    assert plan["energy_j"] == pytest.approx(work_j + waiting_j + sum(counts), rel=1e-12)
    assert all(operation["asked_mhz"] in (900, 1200, 1400) for operation in plan["operations"])


def test_with_jitter_both_times_and_all_changes_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "switching: {max_per_iteration: 2, latency_s: 0.05}", "jitter: {operation: 3%}"
    path = job(tmp_path, *lines)
    status, out, err = said(capsys, "plan", str(path), "--max-slowdown", "10", "--json")
    assert (status, err) == (0, "")
    plan = json.loads(out)
    assert plan["jitter"]["met"]
    assert plan["p95_iteration_time_s"] <= plan["jitter"]["target_s"]
    assert plan["jitter"]["given_up_j"] >= 0.0
    assert plan["energy_j"] <= plan["baseline"]["energy_j"]
    assert plan["switching"]["switches"] == sum(len(s["switches"]) for s in plan["stages"])
    status, _, err = said(capsys, "plan", str(path), "--deadline", "6.6")
    assert status == 2
    assert "--deadline" in err
    assert err.count("\n") == 1


def test_a_plan_says_it_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job(tmp_path, "switching: {max_per_iteration: 2}")
    status, out, _ = said(capsys, "plan", str(path), "--max-slowdown", "10")
    assert status == 0
    assert "clock changes per iteration" in out
    assert "those really run" in out


@pytest.mark.parametrize("command", ["plan", "frontier"])
def test_clocks_too_late_for_a_granularity_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = job(tmp_path, "switching: {latency_s: 0.21}")
    for granularity in ("computation", "edge"):
        status, out, err = said(capsys, command, str(path), "--granularity", granularity)
        assert (status, out) == (2, "")
        assert err.count("\n") == 1
        assert "more than a fifth of the shortest operation" in err
    assert said(capsys, command, str(path), "--granularity", "gpu")[0] == 0


def test_a_deadline_below_what_was_found_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job(tmp_path, "switching: {max_per_iteration: 2}")
    status, out, err = said(capsys, "plan", str(path), "--deadline", "8")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert "below the fastest iteration time found under this switching, 9 s" in err


def test_the_frontier_shows_it_beside_the_free_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job(tmp_path, "switching: {max_per_iteration: 2, latency_s: 0.1}")
    words = ("frontier", str(path), "--granularity", "all", "--points", "3")
    status, out, _ = said(capsys, *words)
    assert status == 0
    assert "computation, switching" in out
    shown = json.loads(said(capsys, *words, "--json")[1])
    assert set(shown) == {"gpu", "edge", "computation", "switching", "solve_seconds"}
    assert shown["switching"]["refused"] is None
    assert len(shown["switching"]["points"]) == 7
    late = job(tmp_path, "switching: {latency_s: 0.3}")
    status, out, _ = said(capsys, "frontier", str(late), "--granularity", "all", "--points", "3")
    assert status == 0
    assert "refused" in out
    plain = json.loads(said(capsys, "frontier", str(job(tmp_path)), *words[2:], "--json")[1])
    assert set(plain) == {"gpu", "edge", "computation", "solve_seconds"}


def test_a_frontier_under_switching_never_rises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = job(tmp_path, "switching: {max_per_iteration: 2}")
    status, out, _ = said(capsys, "frontier", str(path), "--points", "4", "--json")
    assert status == 0
    energies_j = [point["energy_j"] for point in json.loads(out)["points"]]
    assert len(energies_j) > 1
    assert energies_j == sorted(energies_j, reverse=True)
