"""`joulecut doctor`: the first thing that is missing, and the command that mends it."""

import json
from dataclasses import replace

import boards
import commands
import pytest
from job_states import changed
from serving import Serving

from joulecut_controller.board import Board
from joulecut_controller.cluster.summary import cluster_of
from joulecut_controller.policy.parse import parse
from joulecut_controller.view import NodeView
from joulecut_engine.graph.pipeline import Profile
from joulecut_wire.document import parse as document
from joulecut_wire.messages import POWER_PROFILE, Allocation, ReportFault

NEVER_S = float("inf")


def _doctor(board: Board, *words: str) -> tuple[int, dict[str, object]]:
    with Serving(board) as server:
        done = commands.run("doctor", *words, "--json", "--controller", server.url)
    return done.returncode, json.loads(done.stdout)


def _with_faults(board: Board, *faults: ReportFault) -> Board:
    """The job has never reported; what came could not be used."""
    job = board.jobs[0]
    view = changed(job.view, report_age_s=NEVER_S, baseline=None)
    nodes = (replace(board.view.nodes[0], faults=faults), *board.view.nodes[1:])
    shown = replace(board.view, nodes=nodes, jobs=(view,))
    return replace(board, view=shown, jobs=(replace(job, view=view, timing=None),))


def _profiled(board: Board) -> Board:
    """All GPUs under a profile of the vendor."""
    told = (f"{POWER_PROFILE}max_q",)
    gpus = {
        uuid: replace(gpu, snapshot=gpu.snapshot and replace(gpu.snapshot, event_reasons=told))
        for uuid, gpu in board.view.gpus.items()
    }
    return replace(board, view=replace(board.view, gpus=gpus))


def _measured_only(board: Board) -> Board:
    """Agents without a keeper, by their configuration."""
    gpus = {
        uuid: replace(
            gpu, description=replace(gpu.description, controllable=False, reason="no keeper")
        )
        for uuid, gpu in board.view.gpus.items()
    }
    return replace(board, view=replace(board.view, gpus=gpus))


def test_a_vendors_power_profile_is_named_and_nothing_is_missing() -> None:
    board = _profiled(boards.board())
    status, found = _doctor(board, "gpt3-175b")
    assert (status, found["missing"]) == (0, None)
    assert "max_q on 8 of 8 GPUs" in json.dumps(found)
    [need] = [one for one in cluster_of(board).needs if "power profile" in one.text]
    assert (need.severity, "max_q" in need.text) == ("note", True)


def test_an_enforced_job_lacks_nothing() -> None:
    status, found = _doctor(boards.board(), "gpt3-175b")
    assert (status, found["missing"], found["next"]) == (0, None, None)


@pytest.mark.parametrize(
    ("board", "missing", "mend"),
    [
        (boards.board("recommend"), "enforced", "mode: enforce in the entry of gpt3-175b"),
        (boards.measuring(), "baseline", "wait: default clocks are measured first"),
        (
            replace(
                boards.board(),
                view=replace(
                    boards.board().view, nodes=(NodeView("n9:9431", "n9", False, error="refused"),)
                ),
            ),
            "agents",
            "on n9: systemctl status joulecut-agent",
        ),
        (
            _measured_only(boards.board("recommend")),
            "control",
            "`keeper: none` in the agent.yaml of node1 only measures (docs/agent.md)",
        ),
        (_with_faults(boards.board()), "reports", "joulecut run --job gpt3-175b -- COMMAND"),
    ],
)
def test_the_first_missing_step_comes_with_its_remedy(
    board: Board, missing: str, mend: str
) -> None:
    status, found = _doctor(board, "gpt3-175b")
    assert (status, found["missing"]) == (1, missing)
    assert str(found["next"]).startswith(mend)


def test_a_job_that_is_not_in_the_policy() -> None:
    status, found = _doctor(boards.board(), "gpt4")
    assert (status, found["missing"]) == (1, "policy")
    assert "name: gpt4" in str(found["next"])


def test_a_wrong_report_is_shown_to_the_owner_of_its_sender() -> None:
    text = "datagram: ops[0].kind is 'fwd'; allowed: forward"
    mine = ReportFault("python", (boards.uuid(0),), "report", text, 7, 1.0)
    other = ReportFault("python", ("GPU-of-another-job",), "report", "not mine", 9, 0.5)
    board = _with_faults(boards.board(), mine, other)
    status, found = _doctor(board, "gpt3-175b")
    assert (status, found["missing"], found["next"]) == (1, "reports", text)
    with Serving(board) as server:
        page = commands.run("status", "--controller", server.url).stdout
    assert text in page
    assert "not mine" not in page


def test_a_name_that_fits_no_entry_is_shown_at_the_entry_it_resembles() -> None:
    board = boards.board()
    job = board.jobs[0]
    view = changed(job.view, stages=(), report_age_s=NEVER_S, baseline=None)
    view = replace(view, policy=replace(view.policy, gpus=()))
    gpus = {
        uuid: replace(gpu, allocation=Allocation(uuid, "gpt3-175", source="report"))
        for uuid, gpu in board.view.gpus.items()
    }
    shown = replace(board.view, gpus=gpus, jobs=(view,))
    job = replace(job, view=view, timing=None)
    _, found = _doctor(replace(board, view=shown, jobs=(job,)), "gpt3-175b")
    assert found["missing"] == "reports"
    assert "JOULECUT_JOB=gpt3-175b" in str(found["next"])


def test_text_has_a_line_for_each_step() -> None:
    with Serving(boards.board("recommend")) as server:
        text = commands.run("doctor", "gpt3-175b", "--controller", server.url).stdout
    assert text.count("  ok  ") == 9
    assert text.splitlines()[-1] == "Next: mode: enforce in the entry of gpt3-175b"


def test_a_job_without_an_entry_gets_the_line_that_enforces_it() -> None:
    """The remedy is a policy that loads."""
    board = boards.board("recommend")
    job = board.jobs[0]
    policy = replace(job.view.policy, name="slurm:4711", found=True)
    view = changed(job.view, policy=policy)
    board = replace(board, jobs=(replace(job, view=view, timing=None),))
    status, found = _doctor(board, "slurm:4711")
    assert (status, found["missing"]) == (1, "enforced")
    assert str(found["next"]).startswith("add to ")
    line = str(found["next"]).partition(": ")[2]
    assert line.endswith("}, mode: enforce}")
    text = f"apiVersion: joulecut/v1\nkind: Policy\njobs:\n  {line}\n"
    read = parse(document(text.encode(), "policy.yaml"), lambda _: Profile({}))
    assert read.jobs[0].mode == "enforce"


def test_an_entry_without_reports_is_shown_the_jobs_that_no_entry_takes() -> None:
    board = _with_faults(boards.board())
    silent = board.jobs[0]
    policy = replace(silent.view.policy, name="slurm:4711", found=True)
    other = replace(silent, view=changed(silent.view, policy=policy, report_age_s=1.0))
    _, found = _doctor(replace(board, jobs=(silent, other)), silent.view.policy.name)
    assert found["missing"] == "reports"
    assert "slurm:4711, which no entry takes" in str(found["next"])


def test_a_job_without_a_plan_says_why_and_not_that_none_saves() -> None:
    _, found = _doctor(boards.measuring(), "gpt3-175b")
    steps = {step["name"]: step for step in found["steps"]}
    assert "no plan saves" not in steps["plan"]["found"]
    assert "baseline" in steps["plan"]["found"]
