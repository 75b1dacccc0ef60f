"""`joulecut plan` and `joulecut frontier` as a person types them, right and wrong."""

import os
import pty
import time
from pathlib import Path
from typing import Any

import pytest
from commands import answer, printed, refusal

from joulecut_cli.progress import Progress

HEADER = "stage,instruction,frequency,time,energy\n"
# Two equal stages with three clocks; the fastest iteration takes 9 s.
ROWS = [
    (kind, clock, factor * time_s, energy_j * factor)
    for kind, factor in (("forward", 1.0), ("backward", 2.0))
    for clock, time_s, energy_j in ((1400, 1.0, 300.0), (1200, 1.1, 260.0), (900, 1.5, 240.0))
]
FASTEST_S = 9.0


@pytest.fixture
def job(tmp_path: Path) -> Path:
    lines = [f"{s},{k},{f},{t},{e}\n" for s in (0, 1) for k, f, t, e in ROWS]
    (tmp_path / "profile.csv").write_text(HEADER + "".join(lines))
    path = tmp_path / "job.yaml"
    path.write_text(
        "pipeline: {schedule: 1f1b, stages: 2, microbatches: 2}\n"
        "profile: profile.csv\n"
        "blocking_power_w: 50\n"
    )
    return path


def test_json_has_the_contract_and_adds_up(job: Path) -> None:
    plan = answer("plan", job, "--max-slowdown", "10%")
    assert set(plan) == {
        "iteration_time_s", "energy_j", "lower_bound_j", "bound_granularity", "gap",
        "gap_of_saving", "granularity", "deadline_s", "baseline", "solve_seconds", "operations",
        "money",
    }  # fmt: skip
    assert plan["granularity"] == plan["bound_granularity"] == "computation"
    assert plan["baseline"]["iteration_time_s"] == FASTEST_S
    assert plan["deadline_s"] == FASTEST_S * 1.1
    assert plan["iteration_time_s"] <= FASTEST_S * 1.1 * (1 + 1e-9)
    operations = plan["operations"]
    assert len(operations) == 8
    assert set(operations[0]) == {
        "stage", "microbatch", "kind", "clock_mhz", "start_s", "duration_s", "energy_j",
    }  # fmt: skip
    rows = {(k, f): (t, e) for k, f, t, e in ROWS}
    for operation in operations:
        assert rows[operation["kind"], operation["clock_mhz"]] == (
            operation["duration_s"],
            operation["energy_j"],
        )
    ends = [operation["start_s"] + operation["duration_s"] for operation in operations]
    assert max(ends) == plan["iteration_time_s"]
    busy_s = sum(operation["duration_s"] for operation in operations)
    work_j = sum(operation["energy_j"] for operation in operations)
    expected_j = work_j + 50.0 * (2 * plan["iteration_time_s"] - busy_s)
    assert plan["energy_j"] == pytest.approx(expected_j, rel=1e-12)
    bound_j, baseline_j = plan["lower_bound_j"], plan["baseline"]["energy_j"]
    assert plan["gap"] == pytest.approx(plan["energy_j"] / bound_j - 1)
    assert plan["gap_of_saving"] == pytest.approx(
        (plan["energy_j"] - bound_j) / (baseline_j - bound_j)
    )


def test_no_flag_means_no_slowdown(job: Path) -> None:
    plan = answer("plan", job)
    assert plan["iteration_time_s"] == plan["deadline_s"] == FASTEST_S
    assert plan["energy_j"] < plan["baseline"]["energy_j"]


@pytest.mark.parametrize("flags", [("--max-slowdown", "2"), ("--max-slowdown=2%",)])
def test_a_percentage_with_or_without_its_sign(job: Path, flags: tuple[str, ...]) -> None:
    plan = answer("plan", job, *flags)
    assert plan["deadline_s"] == FASTEST_S * 1.02


def test_proving_never_costs_and_never_lowers_the_bound(job: Path) -> None:
    plain, proved = (answer("plan", job, "--max-slowdown", "1", *w) for w in ((), ("--prove", "1")))
    assert proved["lower_bound_j"] <= proved["energy_j"] <= plain["energy_j"]
    assert proved["gap"] <= plain["gap"]


def test_one_clock_per_gpu(job: Path) -> None:
    plan = answer("plan", job, "--granularity", "gpu", "--max-slowdown", "20")
    clocks = {(o["stage"], o["clock_mhz"]) for o in plan["operations"]}
    assert len(clocks) == 2
    assert (plan["granularity"], plan["bound_granularity"]) == ("gpu", "gpu")


def test_where_hardly_anything_can_be_saved_round_off_is_no_saving(job: Path) -> None:
    """One clock per GPU costs more than the baseline here: nothing is possible to save."""
    rows = [("forward", 1400, 1, 10), ("forward", 900, 2, 30)]
    rows += [("backward", 1400, 2, 30), ("backward", 900, 1, 10)]
    job.write_text(job.read_text().replace("stages: 2", "stages: 1").replace("50", "0"))
    job.with_name("profile.csv").write_text(
        HEADER + "".join(f"0,{k},{f},{t},{e}\n" for k, f, t, e in rows)
    )
    plan = answer("plan", job, "--granularity", "gpu", "--max-slowdown", "60")
    assert plan["energy_j"] == 80.0
    assert 40.0 * (1 - 1e-9) <= plan["lower_bound_j"] <= 80.0
    assert plan["gap_of_saving"] == 0.0


def test_a_frontier_ascends(job: Path) -> None:
    drawn = answer("frontier", job, "--points", "9")
    assert set(drawn) == {"granularity", "points", "money", "solve_seconds"}
    assert set(drawn["points"][0]) == {"iteration_time_s", "energy_j", "lower_bound_j"}
    times = [point["iteration_time_s"] for point in drawn["points"]]
    assert times == sorted(set(times))
    assert times[0] == FASTEST_S


def test_prices_decide_which_point_costs_least(job: Path) -> None:
    """Dear time: no slowdown. Free time: the plan of least energy. Flags replace the defaults."""

    def money(*flags: str) -> dict[str, Any]:
        drawn: dict[str, Any] = answer("frontier", job, "--points", "9", *flags)
        return drawn["money"] | {"points": drawn["points"]}

    usual, dear, free = money(), money("--gpu-hour", "1000"), money("--gpu-hour", "0", "--pue", "2")
    assert usual["prices"]["assumed"] == ["gpu_hour", "kwh", "pue"]
    assert dear["least_cost"]["slowdown_ratio"] == pytest.approx(0.0, abs=1e-9)
    last = free["points"][-1]
    assert free["least_cost"]["slowdown_ratio"] == pytest.approx(
        last["iteration_time_s"] / FASTEST_S - 1.0
    )
    assert free["prices"]["assumed"] == ["kwh"]
    plan = answer("plan", job, "--max-slowdown", "10%")
    worth = plan["money"]["plan"]
    assert (worth["net_per_gpu_hour"] > 0.0) == (
        worth["slowdown_ratio"] < worth["break_even_slowdown_ratio"]
    )


def test_every_granularity_beside_each_other(job: Path) -> None:
    words = ("frontier", job, "--points", "5", "--granularity", "all")
    drawn = answer(*words)
    assert set(drawn) == {"gpu", "changes", "computation", "solve_seconds"}
    for name in ("gpu", "changes", "computation"):
        points = drawn[name]["points"]
        assert set(points[0]) == {"iteration_time_s", "energy_j", "lower_bound_j"}
        assert all(p["lower_bound_j"] <= p["energy_j"] for p in points)
    rows = [line.split() for line in printed(*words).splitlines() if line.strip().endswith("%")]
    saved = [[float(cell) for cell in row if cell != "%"] for row in rows if len(row) == 10]
    assert len(saved) == 7
    for _, gpu, changes, computation, most in saved:
        assert gpu <= changes <= computation <= most


BAD_FLAGS = {
    "both targets": (
        ("--max-slowdown", "2", "--deadline", "9"),
        "--deadline: not allowed with argument --max-slowdown",
    ),
    "a deadline too short": (
        ("--deadline", "8.99"),
        "9 s (critical path of 6 operations: 4 on stage 1, 2 on stage 0); allowed: at least 9 s",
    ),
    "a negative slowdown": (("--max-slowdown", "-1"), "--max-slowdown:"),
    "no slowdown at all": (("--max-slowdown", "nan%"), "is not a number"),
    "a deadline that is no number": (("--deadline", "9s"), '"9s" is not a number'),
    "an endless deadline": (("--deadline", "1e999"), "out of range"),
    "two dashes for a deadline": (("--deadline=--",), "--deadline"),
    "no seconds to prove": (("--prove", "0"), "--prove:"),
    "no granularity": (
        ("--granularity", "kernel"),
        '"kernel" is none; allowed: gpu, changes',
    ),
    "thousands of digits": (("--granularity", "changes:" + "9" * 5000), "is not a whole number"),
    "every granularity at once": (("--granularity", "all"), '"all" is none; allowed: gpu, changes'),
    "a plot": (("--plot", "x.pdf"), '--plot: "x.pdf" ends in none of them'),
    "a timeline": (("--timeline", "x.txt"), '--timeline: "x.txt" is no .json file'),
    "an unknown flag": (("--fast",), "unrecognized arguments: --fast"),
    "one point": (("--points", "1"), "--points: 1 is out of range; allowed: a whole number from 2"),
}


@pytest.mark.parametrize("case", BAD_FLAGS)
def test_a_bad_flag_is_one_line(job: Path, case: str) -> None:
    flags, expected = BAD_FLAGS[case]
    assert expected in refusal("frontier" if "--points" in flags else "plan", job, *flags)


def test_progress_shows_on_a_terminal_and_wipes_itself_out() -> None:
    above, below = pty.openpty()
    try:
        with os.fdopen(below, "w") as terminal:
            with Progress("planning job", terminal, patience_s=0.0) as progress:
                progress.advance(3, 50)
                seen = b""
                limit_s = time.monotonic() + 90.0
                while b"3 of 50" not in seen and time.monotonic() < limit_s:
                    seen += os.read(above, 1024)
            assert b"planning job" in seen
            assert b"3 of 50" in seen
            assert os.read(above, 1024).endswith(b"\x1b[K")
    finally:
        os.close(above)


def test_what_has_no_clock_of_its_own_shows_none(job: Path) -> None:
    """One stage's forward costs the same at every clock, the other's does not."""
    job.with_name("graph.csv").write_text(
        "id,stage,kind,after,time_s,energy_j\n"
        "a,0,forward,,1.0,200\nb,1,forward,a,,\nc,1,forward,b,1.0,200\n"
        "d,1,backward,c,,\ne,0,backward,d,,\n"
    )
    job.write_text("graph: graph.csv\nprofile: profile.csv\nblocking_power_w: 50\n")
    table = printed("plan", job).split("forward MHz")[1].splitlines()
    assert table[1].split()[:3] == ["0", "-", "1400"]
    assert table[2].split()[:3] == ["1", "1400", "1400"]
