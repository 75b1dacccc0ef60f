"""Job files: what they describe becomes the problem that is solved, or one line says why not."""

import json
import os
from pathlib import Path

import pipelines
import pytest

from joulecut_cli import main as cli
from joulecut_cli.jobfile import JobFile, read
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import SCHEDULES_ALL, Kind, Schedule
from joulecut_engine.graph.shape import part_of
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import solve
from joulecut_wire.errors import BadInput

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "schedules"
HEADER = "stage,instruction,frequency,time,energy\n"
CLOCKS = ((1400, 1.0, 30.0), (1200, 1.1, 26.0), (900, 1.5, 24.0))
POWER_W = 8.0


def profile(
    path: Path, stages: int, kinds: dict[str, float], slower: float = 1.0, heavier: float = 0.0
) -> None:
    """Rows for every stage; stage s takes 1 + s * heavier of the time."""
    rows = [
        f"{s},{kind},{clock},{work * (1 + s * heavier) * time_s * slower},{work * energy_j}\n"
        for s in range(stages)
        for kind, work in kinds.items()
        for clock, time_s, energy_j in CLOCKS
    ]
    path.write_text(HEADER + "".join(rows))


WHOLE = {"forward": 1.0, "backward": 2.0}
SPLIT = {"forward": 1.0, "input": 1.2, "weight": 0.8}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    profile(tmp_path / "whole.csv", 2, WHOLE)
    profile(tmp_path / "split.csv", 2, SPLIT)
    profile(tmp_path / "slow.csv", 2, WHOLE, slower=1.25)
    profile(tmp_path / "parts.csv", 4, WHOLE, heavier=0.1)
    return tmp_path


def job(folder: Path, shape: str, csv: str = "whole.csv", *more: str) -> JobFile:
    path = folder / "job.yaml"
    lines = (f"pipeline: {{{shape}}}", f"profile: {csv}", f"blocking_power_w: {POWER_W}", *more)
    path.write_text("\n".join(lines) + "\n")
    return read(path)


def explicit(folder: Path, text: str, name: str = "graph.yaml", csv: str = "whole.csv") -> JobFile:
    (folder / name).write_text(text)
    path = folder / "job.yaml"
    path.write_text(f"graph: {name}\nprofile: {csv}\nblocking_power_w: {POWER_W}\n")
    return read(path)


def menus(problem: Problem, kind: Kind) -> set[tuple[ClockOption, ...]]:
    every = zip(problem.graph.operations, problem.measured, strict=True)
    return {menu for operation, menu in every if operation.kind == kind}


def agreed(problem: Problem) -> None:
    """Both granularities solve it, and somebody who does not know the solver agrees."""
    for granularity in ("computation", "gpu"):
        fastest_s = baseline(problem).iteration_time_s
        goal = Goal(fastest_s * 1.1)
        found = solve(problem, goal, "gpu" if granularity == "gpu" else "computation")
        assert check(problem, goal, found) == ()


@pytest.mark.parametrize("schedule", SCHEDULES_ALL)
def test_every_schedule_is_planned(folder: Path, schedule: Schedule) -> None:
    agreed(job(folder, f"schedule: {schedule}, stages: 2, microbatches: 4", "split.csv").problem())


def test_a_stated_share_splits_backwards(folder: Path) -> None:
    shape = "schedule: zb-h1, stages: 2, microbatches: 4"
    problem = job(folder, shape, "whole.csv", "weight_share: 0.4").problem()
    for kind, share in (("input", 0.6), ("weight", 0.4)):
        known: Kind = "input" if kind == "input" else "weight"
        (menu,) = menus(problem, known)
        for option, (clock, time_s, energy_j) in zip(menu, CLOCKS, strict=True):
            assert option.clock_mhz == clock
            assert option.time_s == pytest.approx(2 * time_s * share)
            assert option.energy_j == pytest.approx(2 * energy_j * share)


def test_halves_that_were_measured_make_a_whole_backward(folder: Path) -> None:
    """At one clock, one after the other; which is what a whole backward is."""
    whole = job(folder, "schedule: 1f1b, stages: 2, microbatches: 4").problem()
    halves = job(folder, "schedule: 1f1b, stages: 2, microbatches: 4", "split.csv").problem()
    (ours,), (measured,) = menus(halves, "backward"), menus(whole, "backward")
    for option, expected in zip(ours, measured, strict=True):
        assert option.clock_mhz == expected.clock_mhz
        assert option.time_s == pytest.approx(expected.time_s)
        assert option.energy_j == pytest.approx(expected.energy_j)


def test_a_profile_by_parts_prices_each_chunk(folder: Path) -> None:
    for schedule, more in (("interleaved-1f1b", ()), ("zb-v", ("weight_share: 0.5",))):
        file = job(folder, f"schedule: {schedule}, stages: 2, microbatches: 4", "parts.csv", *more)
        problem = file.problem()
        for operation, menu in zip(problem.graph.operations, problem.measured, strict=True):
            part = part_of(file.pipeline, operation.stage, operation.chunk)
            if operation.kind == "forward":
                assert menu[0].time_s == pytest.approx(1 + 0.1 * part)


def test_a_tensor_parallel_group_is_as_slow_as_its_slowest(folder: Path) -> None:
    problem = job(
        folder, "schedule: 1f1b, stages: 2, microbatches: 4", "[whole.csv, slow.csv]"
    ).problem()
    (menu,) = menus(problem, "forward")
    for option, (clock, time_s, energy_j) in zip(sorted(menu), reversed(CLOCKS), strict=True):
        assert option.clock_mhz == clock
        assert option.time_s == pytest.approx(1.25 * time_s)
        # Both draw the same energy; the fast one also waits for the slow one.
        assert option.energy_j == pytest.approx(energy_j + POWER_W * 0.25 * time_s / 2)


@pytest.mark.parametrize("synchronous", ["false", "true"])
def test_a_transfer_costs_its_time_and_its_energy_on_top(folder: Path, synchronous: str) -> None:
    """On one critical path, with nothing else beside it, both show in full."""
    shape = "schedule: 1f1b, stages: 2, microbatches: 1"
    free = baseline(job(folder, shape).problem())
    send = f"communication: {{p2p_s: 0.5, p2p_energy_j: 3, synchronous: {synchronous}}}"
    problem = job(folder, shape, "whole.csv", send).problem()
    paid = baseline(problem)
    assert paid.iteration_time_s == pytest.approx(free.iteration_time_s + 2 * 0.5)
    waiting_j = 2 * POWER_W * (paid.iteration_time_s - free.iteration_time_s)
    assert paid.energy_j == pytest.approx(free.energy_j + 2 * 3 + waiting_j)
    agreed(problem)


def test_collectives_and_the_optimizer_fixed_or_as_measured(folder: Path) -> None:
    profile(folder / "all.csv", 2, {**WHOLE, "collective": 0.3, "optimizer": 0.2})
    problem = job(
        folder,
        "schedule: 1f1b, stages: 2, microbatches: 3",
        "all.csv",
        "collectives: {tensor: {time_s: 0.01, energy_j: 0.2}, data: profile}",
        "optimizer: profile",
    ).problem()
    (optimizer,) = menus(problem, "optimizer")
    assert {o.clock_mhz for o in optimizer} == {clock for clock, _, _ in CLOCKS}
    for operation, kept in zip(problem.graph.operations, problem.options, strict=True):
        if operation.kind.startswith("tensor-"):
            assert kept == (ClockOption(0, 0.01, 0.2),)
    agreed(problem)


GRAPH = """\
operations:
  - {id: f0, stage: 0, kind: forward}
  - {id: x0, stage: 0, kind: send-forward, after: [f0], time_s: 0.25, energy_j: 0}
  - {id: f1, stage: 1, kind: forward, after: [x0]}
  - {id: b1, stage: 1, kind: backward, after: [f1], row: 0}
  - {id: b0, stage: 0, kind: backward, after: [b1]}
  - {id: u1, stage: 1, kind: optimizer, time_s: 0.5, energy_j: 9}
"""
GRAPH_CSV = """\
id,stage,kind,after,row,time_s,energy_j
f0,0,forward,,,,
x0,0,send-forward,f0,,0.25,0
f1,1,forward,x0,,,
b1,1,backward,f1,0,,
b0,0,backward,b1,,,
u1,1,optimizer,,,0.5,9
"""


@pytest.mark.parametrize(("name", "text"), [("g.yaml", GRAPH), ("g.csv", GRAPH_CSV)])
def test_an_explicit_graph(folder: Path, name: str, text: str) -> None:
    file = explicit(folder, text, name)
    problem = file.problem()
    named = [o.name for o in problem.graph.operations]
    edges = {(named[a], named[b]) for a, b in problem.graph.edges}
    assert edges == {
        ("f0", "x0"), ("x0", "f1"), ("f1", "b1"), ("b1", "b0"), ("f0", "b0"), ("b1", "u1"),
    }  # fmt: skip
    assert baseline(problem).iteration_time_s == pytest.approx(1 + 0.25 + 1 + 2 + 2)
    assert "explicit graph, 2 stages, 6 operations" in file.title("computation")[0]
    agreed(problem)


def test_an_explicit_graph_of_fixed_costs_needs_no_profile(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text(
        "id,stage,kind,after,time_s,energy_j\na,0,forward,,1,30\nb,1,forward,a,1,30\n"
    )
    (tmp_path / "job.yaml").write_text("graph: g.csv\nblocking_power_w: 10\n")
    problem = read(tmp_path / "job.yaml").problem()
    assert baseline(problem).iteration_time_s == 2.0
    assert baseline(problem).energy_j == pytest.approx(60 + 10 * 2)


@pytest.mark.parametrize("synchronous", ["false", "true"])
def test_no_choice_is_better_where_some_operations_have_no_clock(
    folder: Path, synchronous: str
) -> None:
    problem = job(
        folder,
        "schedule: 1f1b, stages: 2, microbatches: 1",
        "whole.csv",
        f"communication: {{p2p_s: 0.3, p2p_energy_j: 2, synchronous: {synchronous}}}",
        "optimizer: {time_s: 0.4, energy_j: 5}",
    ).problem()
    for slower in (1.0, 1.1, 1.3, 2.0):
        goal = Goal(baseline(problem).iteration_time_s * slower)
        best_j = pipelines.brute_force(problem, goal)
        best_gpu_j = pipelines.brute_force_gpu(problem, goal)
        found = solve(problem, goal, "computation")
        assert found.energy_j == pytest.approx(best_j, rel=1e-9)
        assert found.lower_bound_j <= best_j * (1 + 1e-9)
        assert solve(problem, goal, "gpu").energy_j == pytest.approx(best_gpu_j, rel=1e-9)


SHAPE = "schedule: 1f1b, stages: 2, microbatches: 4"
BAD_JOBS: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "a schedule that splits backwards": (
        "schedule: zb-h1, stages: 2, microbatches: 4", "whole.csv", (),
        "job.yaml:1: pipeline.schedule: zb-h1 needs input and weight apart",
    ),
    "a share that nobody needs": (
        SHAPE, "whole.csv", ("weight_share: 0.5",), "job.yaml:4: weight_share: 1f1b never splits",
    ),
    "a share of what was measured": (
        "schedule: zb-h1, stages: 2, microbatches: 4", "split.csv", ("weight_share: 0.5",),
        "weight_share: the profile tells them",
    ),
    "microbatches that make no rounds": (
        "schedule: interleaved-1f1b, stages: 2, microbatches: 5", "whole.csv", (),
        "microbatches: 5 microbatches on 2 stages with interleaved-1f1b; allowed: a multiple of 2",
    ),
    "chunks where there is one": (
        SHAPE + ", chunks: 2", "whole.csv", (), "pipeline.chunks: 2 with 1f1b; allowed: 1",
    ),
    "chunks that do not divide": (
        "schedule: interleaved-1f1b, stages: 2, microbatches: 4, chunks: 3", "parts.csv", (),
        "pipeline has 2 of 3 chunks; allowed: a profile of 2 (each chunk alike) or 6 (by chunk)",
    ),
    "too few for a V": (
        "schedule: dualpipe-v, stages: 2, microbatches: 3", "split.csv", (),
        "pipeline.microbatches: 3 microbatches on 2 stages with dualpipe-v; allowed: at least 4",
    ),
    "transfers that wait for each other": (
        "schedule: zb-v, stages: 2, microbatches: 4", "split.csv",
        ("communication: {p2p_s: 0.1, synchronous: true}",),
        "communication.synchronous: synchronous transfers wait for each other forever: circle: ",
    ),
    "an optimizer that was not measured": (
        SHAPE, "whole.csv", ("optimizer: profile",), "profile has no optimizer of stage 0",
    ),
    "a cost in words": (
        SHAPE, "whole.csv", ("optimizer: cheap",), 'optimizer: "cheap" is no cost',
    ),
    "members of other stages": (
        SHAPE, "[whole.csv, parts.csv]", (), "profile: only some tell backward of stage 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_JOBS)
def test_a_bad_job_is_one_line(folder: Path, case: str) -> None:
    shape, csv, more, expected = BAD_JOBS[case]
    with pytest.raises(BadInput) as caught:
        job(folder, shape, csv, *more)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


F0, F1 = "{id: f0, stage: 0, kind: forward", "{id: f1, stage: 1, kind: forward"
BAD_GRAPHS = {
    "a circle": ((F0 + ", after: [f1]}", F1 + ", after: [f0]}"), "circle: f"),
    "a circle through the order of a stage": (
        (F0 + ", after: [g0]}", "{id: g0, stage: 0, kind: backward}"), "circle: f0 -> g0 -> f0",
    ),
    "two parts": ((F0 + "}", F1 + "}"), "disconnected: f1 and f0 never wait for each other"),
    "an id twice": ((F0 + "}", F0 + "}"), "id: f0 again, first in "),
    "an unknown id": ((F0 + "}", F1 + ", after: [f9]}"), 'after: "f9" is not an operation'),
    "itself": ((F0 + ", after: [f0]}",), "after: f0 waits for itself"),
    "no energy": ((F0 + ", time_s: 1, energy_j: 0}",), "energy_j: 0 for an operation that runs"),
    "time alone": ((F0 + ", time_s: 1}",), "time_s: given alone"),
    "a row and a cost": ((F0 + ", row: 0, time_s: 1, energy_j: 1}",), "row: contradicts time_s"),
    "a send without a cost": (
        (F0 + "}", "{id: x, stage: 0, kind: send-forward, after: [f0]}"), "time_s: missing for a",
    ),
    "a row that is not there": ((F0 + ", row: 7}",), "f0 has no cost: no forward of stage 7"),
    "a kind that was not measured": (
        ("{id: w, stage: 0, kind: weight}",), "w has no cost: no weight of stage 0",
    ),
    "an unknown kind": (("{id: f, stage: 0, kind: fwd}",), 'kind: "fwd" is not allowed'),
    "a stage without work": (("{id: f, stage: 1, kind: forward}",), "nothing to do for stage 0"),
    "nothing": ((), "no operations"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_GRAPHS)
def test_a_bad_graph_is_one_line(folder: Path, case: str) -> None:
    entries, expected = BAD_GRAPHS[case]
    items = "".join(f"  - {entry}\n" for entry in entries)
    with pytest.raises(BadInput) as caught:
        explicit(folder, f"operations:\n{items}" if items else "operations: []\n")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "graph.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id,stage\nf,0\n", "column kind is missing"),
        ("id,stage,kind,kind\n", "column kind given twice"),
        ("id,stage,kind,colour\n", 'unknown column "colour"'),
        ("id,stage,kind\nf,0\n", "2 fields; allowed: 3, as in the header"),
        ("id,stage,kind\n", "no operations"),
        ("", "no header"),
        ('id,stage,kind\n"f,0\n', "unexpected end of data"),
    ],
)
def test_a_bad_table_is_one_line(folder: Path, text: str, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        explicit(folder, text, "g.csv")
    assert expected in str(caught.value)


@pytest.mark.parametrize("named", ["graph: none.csv", "profile: none.csv", "profile: [none.csv]"])
def test_a_file_that_is_not_there_is_named_with_its_key(folder: Path, named: str) -> None:
    shape = "" if "graph" in named else "pipeline: {schedule: 1f1b, stages: 1, microbatches: 1}\n"
    (folder / "job.yaml").write_text(f"{shape}blocking_power_w: 1\n{named}\n")
    with pytest.raises(BadInput) as caught:
        read(folder / "job.yaml")
    key = named.partition(":")[0] + ("[0]" if "[" in named else "")
    said = str(caught.value)
    assert f"{folder}/job.yaml:{3 if shape else 2}: {key}: {folder}/none.csv: No such file" in said
    assert said.endswith("; allowed: a readable CSV file")


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_a_job(tmp_path: Path, example: Path) -> None:
    for path in EXAMPLES.glob("*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    profile(tmp_path / "stage_profile.csv", 8, WHOLE)
    file = read(tmp_path / example.name)
    assert file.pipeline.schedule == example.stem
    assert baseline(file.problem()).iteration_time_s > 0


def test_there_is_an_example_for_every_schedule() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == {*SCHEDULES_ALL, "explicit"}


@pytest.mark.parametrize("granularity", ["computation", "gpu"])
def test_an_impossible_deadline_names_who_is_critical(folder: Path, granularity: str) -> None:
    profile(folder / "heavy.csv", 2, WHOLE, heavier=1.0)
    job(folder, "schedule: 1f1b, stages: 2, microbatches: 3", "heavy.csv")
    words = ["plan", str(folder / "job.yaml"), "--deadline", "1", "--granularity", granularity]
    with pytest.raises(BadInput) as caught:
        cli.dispatch(words)
    # One forward on stage 0, all six operations of stage 1 (twice as slow), one backward back.
    assert " (critical path of 8 operations: 6 on stage 1, 2 on stage 0)" in str(caught.value)
    assert "; allowed: at least 21 s" in str(caught.value)


def test_the_plan_names_chunks_and_ids_where_there_are_any(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job(folder, "schedule: zb-v, stages: 2, microbatches: 3", "split.csv")
    assert cli.dispatch(["plan", str(folder / "job.yaml"), "--json"]) == 0
    operations = json.loads(capsys.readouterr().out)["operations"]
    assert {operation.get("chunk", 0) for operation in operations} == {0, 1}
    assert {operation["kind"] for operation in operations} == {"forward", "input", "weight"}
    explicit(folder, GRAPH)
    assert cli.dispatch(["plan", str(folder / "job.yaml"), "--json"]) == 0
    operations = json.loads(capsys.readouterr().out)["operations"]
    assert {operation["id"]: operation["clock_mhz"] is None for operation in operations} == {
        "f0": False, "x0": True, "f1": False, "b1": False, "b0": False, "u1": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("times", "energies", "unit"), [(1e3, 1.0, "milliseconds"), (1.0, 1e3, "millijoules")]
)
def test_wrong_units_are_refused(folder: Path, times: float, energies: float, unit: str) -> None:
    """A profile in milliseconds was planned at half a watt per operation."""
    clocks = [(clock, 0.08 * time_s, 20.0 * energy_j) for clock, time_s, energy_j in CLOCKS]
    rows = [
        f"{stage},{kind},{clock},{times * time_s},{energies * energy_j / 240.0}\n"
        for stage in range(2)
        for kind in WHOLE
        for clock, time_s, energy_j in clocks
    ]
    (folder / "wrong.csv").write_text(HEADER + "".join(rows))
    with pytest.raises(BadInput, match=unit):
        job(folder, "schedule: 1f1b, stages: 2, microbatches: 4", "wrong.csv")


def test_a_pipe_without_a_writer_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job.yaml")
    with pytest.raises(BadInput, match="not a regular file"):
        read(tmp_path / "job.yaml")


def test_a_policy_is_no_job_file(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("apiVersion: joulecut/v1\nkind: Policy\njobs: []\n")
    with pytest.raises(BadInput, match="joulecut policy check"):
        read(tmp_path / "policy.yaml")
