"""`joulecut profile`: from a running job that began without a profile to one that `plan` reads."""

import json
from dataclasses import replace
from pathlib import Path

import boards
import commands
import pytest
from serving import Serving

from joulecut_controller.board import Board
from joulecut_controller.policy.policy import Mode
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Pipeline, Profile

STAGES, MICROBATCHES = 4, 12


def _measured(clocks_mhz: tuple[int, ...]) -> Profile:
    """As if all work slowed by half of what its clock does."""
    options = {
        (stage, kind): tuple(
            ClockOption(mhz, seconds, seconds * 300.0 * mhz / 1410)
            for mhz in clocks_mhz
            for seconds in ((1 + at) * 0.01 * (0.5 + 0.5 * 1410 / mhz),)
        )
        for stage in range(STAGES)
        for at, kind in enumerate(KINDS)
    }
    return Profile(options)


def _board(measured: Profile | None, mode: Mode = "enforce") -> Board:
    board = boards.board(mode)
    job = board.jobs[0]
    pipeline = Pipeline("1f1b", STAGES, MICROBATCHES)
    policy = replace(job.view.policy, profile=None, pipeline=pipeline, blocking_power_w=70.0)
    job = replace(job, view=replace(job.view, policy=policy), measured_profile=measured)
    return replace(board, jobs=(job,))


def test_what_was_measured_is_a_profile_that_plan_reads(tmp_path: Path) -> None:
    with Serving(_board(_measured((1260, 1350, 1410)))) as served:
        flags = ("--output", "gpt3.csv", "--json", "--controller", served.url)
        done = commands.run("profile", "gpt3-175b", *flags, cwd=tmp_path)
        page = commands.run("profile", "gpt3-175b", "--controller", served.url, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["blocking_power_w"] == 70.0
    assert found["stages"][0] == {"stage": 0, "measured_mhz": [1260, 1350, 1410]}
    assert "1260-1410 MHz" in page.stdout
    planned = commands.run(
        "plan", "gpt3.yaml", "--granularity", "gpu", "--max-slowdown", "3%", "--json", cwd=tmp_path
    )
    assert planned.returncode == 0, planned.stderr
    assert {one["clock_mhz"] for one in json.loads(planned.stdout)["operations"]} <= {
        1260,
        1350,
        1410,
    }


@pytest.mark.parametrize(
    ("board", "words"),
    [
        (boards.board(), "it has a profile"),
        (_board(None, "recommend"), "set mode: enforce"),
        (_board(None), "nothing is measured yet"),
        (_board(_measured((1410,))), "ran at one clock alone so far"),
        (_board(Profile({})), "single operations are not known"),
    ],
)
def test_a_job_without_measurements_is_refused_in_one_line(
    tmp_path: Path, board: Board, words: str
) -> None:
    with Serving(board) as served:
        done = commands.run("profile", "gpt3-175b", "--controller", served.url, cwd=tmp_path)
        unknown = commands.run("profile", "gpt4", "--controller", served.url)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert words in done.stderr
    assert unknown.returncode == 2
    assert not list(tmp_path.iterdir())
