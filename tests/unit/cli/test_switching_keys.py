"""Granularity `changes` and its limits as a person writes them, and what is then printed."""

from pathlib import Path

import pytest
from commands import answer, refusal

from joulecut_cli.jobfile import read
from joulecut_engine.optimize.problem import TWO_CHANGES, ChangeLimits
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


def test_every_key_is_read(tmp_path: Path) -> None:
    keys = "min_dwell_s: 0.5, max_per_iteration: 4, cost_s: 0.01, cost_j: 2, latency_s: 0.1"
    path = job(tmp_path, f"switching: {{{keys}, late: within}}")
    assert read(path).switching == ChangeLimits(4, 0.5, 0.01, 2.0)
    assert read(job(tmp_path, "switching: {}")).switching == TWO_CHANGES
    assert read(job(tmp_path)).switching is None


def test_what_varies_makes_a_stretch_long_enough(tmp_path: Path) -> None:
    """Latency itself is no matter: changes are sent ahead by it. Where its spread is not known
    all of it may be spread."""
    for keys, dwell_s in (
        ("latency_s: 0.1", 0.2),
        ("latency_s: 0.1, latency_spread_s: 0.01", 0.02),
        ("latency_spread_s: 0.01, start_jitter_s: 0.03", 0.08),
        ("start_jitter_s: 0.03, min_dwell_s: 0.5", 0.5),
    ):
        switching = read(job(tmp_path, f"switching: {{{keys}}}")).switching
        assert switching.min_dwell_s == pytest.approx(dwell_s)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["switching: {latency: 0.1}"], "unknown key"),
        (["switching: {latency_s: -1}"], "switching.latency_s"),
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


def test_a_plan_with_changes_has_their_timetable(tmp_path: Path) -> None:
    path = job(tmp_path, "switching: {max_per_iteration: 2, latency_s: 0.05, cost_j: 1}")
    plan = answer("plan", path, "--max-slowdown", "10")
    free = answer("plan", job(tmp_path), "--max-slowdown", "10")
    assert set(plan) - set(free) == {"limits", "changes"}
    assert (plan["granularity"], free["granularity"]) == ("changes", "computation")
    assert plan["iteration_time_s"] <= plan["deadline_s"] * (1 + 1e-9)
    assert free["lower_bound_j"] * (1 - 1e-9) <= plan["energy_j"]
    count = 0
    for stage in (0, 1):
        mine = [change for change in plan["changes"] if change["stage"] == stage]
        assert mine[0]["offset_s"] == 0.0
        assert [c["offset_s"] for c in mine] == sorted(c["offset_s"] for c in mine)
        clocks = [change["clock_mhz"] for change in mine]
        count += sum(a != b for a, b in zip(clocks, clocks[1:] + clocks[:1], strict=True))
        for operation in plan["operations"]:
            if operation["stage"] == stage:
                now = [c for c in mine if c["offset_s"] <= operation["start_s"]][-1]
                assert operation["clock_mhz"] == now["clock_mhz"]
    work_j = sum(operation["energy_j"] for operation in plan["operations"])
    busy_s = sum(operation["duration_s"] for operation in plan["operations"])
    waiting_j = 50 * (2 * plan["iteration_time_s"] - busy_s)
    assert plan["energy_j"] == pytest.approx(work_j + waiting_j + count, rel=1e-12)


def test_a_number_of_changes_goes_with_the_granularity(tmp_path: Path) -> None:
    path = job(tmp_path)

    def energy_j(granularity: str) -> float:
        plan = answer("plan", path, "--max-slowdown", "10", "--granularity", granularity)
        assert plan["granularity"] == "changes"
        return float(plan["energy_j"])

    assert energy_j("changes") == energy_j("changes:2")
    assert energy_j("changes:4") <= energy_j("changes:2") <= energy_j("changes:1")
    for word in ("changes:0", "changes:", "changes:two", "changes:2.5", "changes:65", "edge:2"):
        assert refusal("plan", path, "--granularity", word).startswith("joulecut: --granularity: ")


def test_a_deadline_that_changes_cannot_keep_names_time_and_next_step(tmp_path: Path) -> None:
    path = job(tmp_path, "switching: {max_per_iteration: 2}")
    err = refusal("plan", path, "--deadline", "8")
    assert "below the fastest possible iteration time, 9 s with few clock changes" in err
    assert "--granularity computation" in err


@pytest.mark.parametrize("granularity", ["gpu", "changes:2"])
def test_what_a_granularity_cannot_keep_is_asked_for_by_the_command_that_is_named(
    granularity: str, tmp_path: Path
) -> None:
    """No clock is fastest for forwards and for backwards."""
    path = job(tmp_path)
    swapped = (
        (tmp_path / "profile.csv").read_text().replace("backward,1400,2.0", "backward,800,2.0")
    )
    (tmp_path / "profile.csv").write_text(swapped.replace("backward,900,3.0", "backward,1400,3.0"))
    err = refusal("plan", path, "--granularity", granularity)
    command = err[err.index("(joulecut plan ") + 1 : err.rindex(")")].split()[1:]
    assert answer(*command)["granularity"] == granularity.partition(":")[0]
