"""`joulecut compare`: the same judge for all, and bad input in one line."""

from pathlib import Path
from typing import Any

import pytest
from commands import answer, printed
from jobs import write_job

from joulecut_cli.main import dispatch
from joulecut_engine.money import Iteration, Prices, worth
from joulecut_wire.errors import BadInput


def compared(folder: Path, *flags: str, more: str = "") -> dict[str, Any]:
    return answer("compare", write_job(folder, more), *flags)


def test_ours_is_on_time_and_nobody_on_time_uses_less(tmp_path: Path) -> None:
    found = compared(tmp_path, "--max-slowdown", "0,3%")
    assert found["slowdowns"] == [0.0, 0.03]
    assert found["left_out"] == ""
    rules = {rule["name"]: rule for rule in found["rules"]}
    ours = rules["Joulecut computation"]["points"]
    assert set(rules) >= {"highest clock", "one clock for all", "Perseus", "EnvPipe-like"}
    for place, deadline_s in enumerate(found["deadlines_s"]):
        limit_s = deadline_s * (1 + 1e-9)
        assert ours[place]["iteration_time_s"] <= limit_s
        for name, rule in rules.items():
            point = rule["points"][place]
            assert point["gap"] >= 0.0
            saved = 1 - point["energy_j"] / found["baseline"]["energy_j"]
            assert point["saving_ratio"] == pytest.approx(saved)
            if point["iteration_time_s"] <= limit_s and "cap" not in name:
                assert point["energy_j"] >= ours[place]["energy_j"] * (1 - 1e-9)
                assert point["energy_j"] >= found["lower_bounds_j"][place] * (1 - 1e-9)


def test_money_names_the_best_point_of_each_rule(tmp_path: Path) -> None:
    """No point of a rule is worth more; where energy is dear slowdowns pay."""
    for kwh in ("0.08", "5"):
        found = compared(tmp_path, "--max-slowdown", "0,10", "--kwh", kwh)
        prices = Prices(kwh=float(kwh))
        default = Iteration(*found["baseline"].values())
        for rule in found["rules"]:
            each = [
                worth(default, Iteration(one["iteration_time_s"], one["energy_j"]), 4, prices)
                for one in rule["points"]
            ]
            best = max(0.0, *(one.net_per_gpu_hour for one in each))
            assert rule["money"]["net_per_gpu_hour"] >= best * (1 - 1e-2)
    caps = next(rule for rule in found["rules"] if rule["name"].startswith("power cap"))
    assert caps["money"]["slowdown_ratio"] > 0.0


def test_a_rule_that_cannot_be_on_time_is_shown_late(tmp_path: Path) -> None:
    """Measured sweeps are rough: the highest clock is not always the fastest."""
    job, profile = write_job(tmp_path), tmp_path / "profile.csv"
    rough = [
        line.replace("1410", "1425").replace("1305", "1410").replace("1425", "1305")
        for line in profile.read_text().splitlines()
        if ",forward," in line
    ]
    whole = [line for line in profile.read_text().splitlines() if ",forward," not in line]
    profile.write_text("\n".join([*whole, *rough]) + "\n")
    found = answer("compare", job, "--max-slowdown", "0", "--straggler", "1.2")
    rules = {rule["name"]: rule for rule in found["rules"]}
    [deadline_s] = found["deadlines_s"]
    for name in ("highest clock", "Joulecut gpu"):
        [point] = rules[name]["points"]
        late = point["iteration_time_s"] / deadline_s - 1
        assert late > 0.0
        assert point["late_ratio"] == pytest.approx(late)
        assert point["gap"] >= 0.0
        assert len(rules[name]["stragglers"]) == 1
    assert rules["Joulecut computation"]["points"][0]["late_ratio"] == 0.0
    text = printed("compare", job, "--max-slowdown", "0")
    assert "%*" in text
    assert "* later than the slowdown" in text


def test_stragglers_raise_what_those_save_who_react(tmp_path: Path) -> None:
    flags = "--max-slowdown", "0", "--straggler", "1,1.1,1.3", "--pipelines", "4"
    found = compared(tmp_path, *flags)
    rules = {rule["name"]: rule for rule in found["rules"]}
    ours = [row["saving_ratio"] for row in rules["Joulecut computation"]["stragglers"]]
    alone = [row["saving_ratio"] for row in rules["EnvPipe-like"]["stragglers"]]
    assert [row["factor"] for row in rules["Perseus"]["stragglers"]] == [1.0, 1.1, 1.3]
    alone_ratio = rules["Joulecut computation"]["points"][0]["saving_ratio"]
    assert ours[0] == pytest.approx(alone_ratio, abs=1e-6)
    assert ours[0] < ours[1] < ours[2]
    assert alone[0] >= alone[1] >= alone[2]
    assert all(row["late_ratio"] < 1e-9 for row in rules["Joulecut computation"]["stragglers"])


@pytest.mark.parametrize(
    ("flags", "where"),
    [
        (("--straggler", "0.9"), "--straggler"),
        (("--straggler", "1.1,x"), "--straggler"),
        (("--straggler", ",".join(["1.1"] * 17)), "--straggler"),
        (("--straggler", "1.1", "--pipelines", "1"), "--pipelines"),
        (("--pipelines", "0"), "--pipelines"),
        (("--perseus-unit", "0"), "--perseus-unit"),
    ],
)
def test_bad_input_is_one_line(flags: tuple[str, ...], where: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=where):
        dispatch(["compare", write_job(tmp_path), *flags])


def test_a_plan_keeps_its_deadline_under_the_jitter_of_the_job_file(tmp_path: Path) -> None:
    jitter = "jitter: {operation: 3%, gpu: 0.5%, communication: 0.1ms, siblings: 8"
    held = answer("plan", write_job(tmp_path, f"{jitter}}}\n"), "--max-slowdown", "6")
    assert held["jitter"]["hold"] == "mean"
    assert held["mean_iteration_time_s"] <= held["jitter"]["target_s"]
    job = write_job(tmp_path, f"{jitter}, hold: p95}}\n")
    plan = answer("plan", job, "--max-slowdown", "6")
    told = plan["jitter"]
    assert told["met"]
    assert plan["p95_iteration_time_s"] <= told["target_s"]
    assert plan["mean_iteration_time_s"] <= plan["p95_iteration_time_s"]
    assert plan["p95_iteration_time_s"] > plan["iteration_time_s"]
    assert told["without_margin"]["p95_iteration_time_s"] >= plan["p95_iteration_time_s"]
    late_s = told["baseline"]["p95_iteration_time_s"] * 1.01
    assert "is met" in printed("plan", job, "--deadline", str(late_s))
    with pytest.raises(BadInput, match="P95 of even the fastest plan"):
        dispatch(["plan", job, "--deadline", str(plan["baseline"]["iteration_time_s"])])


@pytest.mark.parametrize(
    "jitter",
    ["3%", "{operation: 3}", "{siblings: 0}", "{speed: 3%}", "{communication: 3}", "{hold: max}"],
)
def test_jitter_is_read_strictly(jitter: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="jitter"):
        dispatch(["plan", write_job(tmp_path, f"jitter: {jitter}\n")])


def test_stages_of_different_cards_are_compared_as_far_as_rules_go(tmp_path: Path) -> None:
    """No clock that all stages have, then none that one stage has for all its work."""
    job, profile = write_job(tmp_path), tmp_path / "profile.csv"
    written = profile.read_text()
    odd = [("1410", "1415"), ("1305", "1310"), ("1200", "1205"), ("1050", "1055")]

    def shifted(line: str) -> str:
        for old, new in [*odd, ("1155", "1160"), ("990", "995"), ("855", "860")]:
            line = line.replace(f",{old},", f",{new},")
        return line

    for first, refused in (
        ("0,", {"one clock for all"}),
        ("0,forward,", {"one clock for all", "clock per stage", "Joulecut gpu"}),
    ):
        lines = [shifted(x) if x.startswith(first) else x for x in written.splitlines()]
        profile.write_text("\n".join(lines) + "\n")
        rules = {r["name"]: r for r in answer("compare", job, "--max-slowdown", "0")["rules"]}
        without = {name for name, rule in rules.items() if not rule["points"]}
        assert refused <= without <= refused | {"Joulecut changes:2", "Joulecut changes:4"}
        assert all("no clock that all" in rules[name]["remark"] for name in without)
    assert "no clock that all" in printed("compare", job, "--max-slowdown", "0")
    shown = printed("frontier", job, "--granularity", "all", "--points", "3")
    assert "gpu: stage 0 has no clock that all its operations" in shown
    told = answer("frontier", job, "--granularity", "all", "--points", "3")
    assert "gpu" in told["refused"]
    assert "gpu" not in told
    assert len(told["computation"]["points"]) > 1
    with pytest.raises(BadInput, match="one common clock"):
        dispatch(["frontier", job, "--granularity", "gpu"])


def test_what_the_job_says_and_no_rule_hears_is_told(tmp_path: Path) -> None:
    more = "jitter: {operation: 3%}\nswitching: {max_per_iteration: 2}\n"
    alone = "--max-slowdown", "0"
    told = compared(tmp_path, *alone, more=more)["left_out"]
    assert told.startswith("without the job's jitter and switching")
    assert told in printed("compare", write_job(tmp_path, more), *alone)
    job = write_job(tmp_path, "jitter: {operation: 3%}\n")
    assert "without the job's jitter" in printed("frontier", job, "--points", "3")
    assert "without" not in printed("frontier", write_job(tmp_path), "--points", "3")
