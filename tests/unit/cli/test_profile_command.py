"""`joulecut profile`: from windows measured on a running job to a profile that `plan` reads."""

import json
from dataclasses import replace
from pathlib import Path

import boards
import commands
import pytest
from learning import Course
from serving import Serving

from joulecut_controller.board import Board
from joulecut_controller.learn.advice import Advice, Verdict
from joulecut_controller.learn.measurement_log import ProbedJob
from joulecut_controller.policy.policy import Mode
from joulecut_controller.sources.profile import write
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Pipeline, Profile
from joulecut_sim.plant import Noise, Plant
from joulecut_sim.skus import find

STAGES, MICROBATCHES = 4, 12
SKU = find("a100-sxm", "")
TOP_MHZ = 1365  # the power cap leaves no more
WALK_MHZ = (TOP_MHZ, 1305, 1245, 1185, 1125)


def _plant(jitter: float, seed: int) -> Plant:
    noise = Noise(operation=jitter)
    return Plant((SKU,) * STAGES, MICROBATCHES, time_scale=0.1, noise=noise, seed=seed)


def _walked(*, detailed: bool, blocking_power_w: float | None = None) -> ProbedJob:
    """Stages lowered in turn and together, as probing does it."""
    course = Course(_plant, 0.01, 3, 0.05, detailed, blocking_power_w=blocking_power_w)
    settings = [(mhz,) * STAGES for mhz in WALK_MHZ]
    settings += [
        tuple(low if at == stage else TOP_MHZ for at in range(STAGES))
        for stage in range(STAGES)
        for low in (1275, 1155)
    ]
    for clocks in settings:
        course.now_mhz = clocks
        course.log, trouble = course.log.add(course._measure())
        assert not trouble
    facts = course.facts()
    return ProbedJob(facts.constants, facts.grids, facts.alike, course.log.measurements, 30.0)


def _board(probed: ProbedJob | None, mode: Mode = "enforce", verdict: Verdict = "enough") -> Board:
    board = boards.board(mode)
    job = board.jobs[0]
    pipeline = Pipeline("1f1b", STAGES, MICROBATCHES)
    policy = replace(job.view.policy, profile=None, pipeline=pipeline)
    advice = Advice(verdict, "stage 2 to 1200 MHz", (), measurements=1)
    job = replace(job, view=replace(job.view, policy=policy), probing=advice, probed=probed)
    return replace(board, jobs=(job,))


def _planned(folder: Path, job_file: str) -> tuple[int, ...]:
    """Clock of each stage in the plan at 3 %."""
    done = commands.run(
        "plan", job_file, "--granularity", "gpu", "--max-slowdown", "3%", "--json", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    clocks = {one["stage"]: one["clock_mhz"] for one in json.loads(done.stdout)["operations"]}
    return tuple(clocks[stage] for stage in range(STAGES))


def _true_job_file(folder: Path) -> str:
    """The simulator's own times and powers, as a job file."""
    plant = _plant(0.0, 3)
    options = {}
    for stage in range(STAGES):
        for kind in KINDS:
            options[stage, kind] = tuple(
                ClockOption(mhz, seconds, seconds * plant.power_w(stage, kind, mhz))
                for mhz in SKU.clocks_mhz
                if WALK_MHZ[-1] <= mhz <= TOP_MHZ
                for seconds in [plant.time_s(stage, kind, mhz)]
            )
    with (folder / "true.csv").open("w") as out:
        write(Profile(options), out)
    (folder / "true.yaml").write_text(
        f"pipeline: {{schedule: 1f1b, stages: {STAGES}, microbatches: {MICROBATCHES}}}\n"
        f"profile: true.csv\nblocking_power_w: {SKU.blocking_power_w}\n"
    )
    return "true.yaml"


@pytest.mark.parametrize("blocking_power_w", [None, 0.0])
def test_a_plan_on_the_measured_profile_is_near_the_plan_on_the_true_one(
    tmp_path: Path, blocking_power_w: float | None
) -> None:
    probed = _walked(detailed=True, blocking_power_w=blocking_power_w)
    with Serving(_board(probed)) as served:
        flags = ("--output", "gpt3.csv", "--json", "--controller", served.url)
        done = commands.run("profile", "gpt3-175b", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["operation_times"] == "measured"
    assert found["blocking_power"] == ("policy" if blocking_power_w is None else "fitted")
    assert abs(found["blocking_power_w"] / SKU.blocking_power_w - 1.0) < 0.2
    seen = {mhz for one in probed.measurements for mhz in one.clocks_mhz[:1]}
    assert set(found["stages"][0]["measured_mhz"]) == seen
    assert min(found["stages"][0]["fitted_mhz"]) > min(seen)

    plant = _plant(0.0, 3)
    default = plant.iterate((TOP_MHZ,) * STAGES)
    measured = plant.iterate(_planned(tmp_path, "gpt3.yaml"))
    true = plant.iterate(_planned(tmp_path, _true_job_file(tmp_path)))
    saved, possible = (1.0 - one.energy_j / default.energy_j for one in (measured, true))
    assert saved >= possible - 0.005
    assert measured.own_s <= 1.033 * default.own_s


@pytest.mark.parametrize(
    ("board", "words"),
    [
        (boards.board(), "it has a profile"),
        (_board(None, "recommend"), "set mode: enforce"),
        (_board(None), "no window measured yet"),
    ],
)
def test_a_job_that_was_not_probed_is_refused_in_one_line(board: Board, words: str) -> None:
    with Serving(board) as served:
        done = commands.run("profile", "gpt3-175b", "--controller", served.url)
        unknown = commands.run("profile", "gpt4", "--controller", served.url)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert words in done.stderr
    assert unknown.returncode == 2


def test_a_job_probed_too_little_says_how_long_it_will_take(tmp_path: Path) -> None:
    probed = _walked(detailed=True)
    few = replace(probed, measurements=probed.measurements[:2])
    with Serving(_board(few, verdict="probe")) as served:
        done = commands.run("profile", "gpt3-175b", "--controller", served.url, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "fewer than 3 clocks of stage 0, 1, 2, 3; about 9 min more" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_rate_alone_tells_no_single_operations(tmp_path: Path) -> None:
    with Serving(_board(_walked(detailed=False))) as served:
        done = commands.run("profile", "gpt3-175b", "--controller", served.url, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "single operations are not known" in done.stderr
    assert not list(tmp_path.iterdir())
