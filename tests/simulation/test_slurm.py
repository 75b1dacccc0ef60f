"""A real Slurm with the prolog and epilog as shipped: whose a GPU is, and when it is given back."""

import json
from collections.abc import Iterator
from pathlib import Path

import commands
import pytest
from real_slurm import USERS, RealSlurm
from running_agent import RunningAgent, eventually
from running_cluster import Cluster, get

from joulecut_wire.slurm import SlurmJob, of_labels

ALICE, BOB = USERS
pytestmark = pytest.mark.long
POLICY = """
apiVersion: joulecut/v1
kind: Policy
mode: recommend
jobs:
  - {name: by-name, match: {slurm: {job_name: gpt 3}}, slo: {max_slowdown: 1%}}
  - {name: by-account, match: {slurm: {account: bio, partition: long}}, slo: {max_slowdown: 1%}}
  - name: small
    slo: {max_slowdown: 1%}
    each: true
    match: {slurm: {account: physics}}
"""


@pytest.fixture
def node() -> Iterator[RunningAgent]:
    made = RunningAgent(cards=3, attribution={"slurm": {"mapping_dir": "map"}})
    made.home.chmod(0o755)
    with made:
        yield made.start()


@pytest.fixture
def slurm(node: RunningAgent) -> Iterator[RealSlurm]:
    words = {
        "JOULECUT_SLURM_DIR": str(node.home / "map"),
        "JOULECUT_STATE_DIR": str(node.state_dir),
    }
    with RealSlurm(words, gpus=node.gpus.cards) as made:
        yield made


def _given(node: RunningAgent) -> dict[str, SlurmJob]:
    """The job of each GPU that has one, by its id."""
    return {one.job: of_labels(one.labels) for one in node.watch().allocations if one.job}


def _index(node: RunningAgent, job: str) -> int:
    (one,) = [one for one in node.watch().allocations if one.job == job]
    return next(i for i in range(node.gpus.cards) if node.gpus.uuid(i) == one.uuid)


def _hold(node: RunningAgent, index: int) -> None:
    held = iter(range(1, 1_000))
    eventually(  # in the moment of a hand-over it is given back: as a controller, again
        "held", lambda: node.apply({index: 1005}, generation=next(held)) and index in node.locked()
    )


def test_a_job_is_known_whole_and_its_gpus_are_back_before_it_has_ended(
    node: RunningAgent, slurm: RealSlurm
) -> None:
    words = ("-J", "gpt 3", "-A", "physics")
    job = slurm.submit(*words, user=ALICE)
    known = SlurmJob(job, name="gpt 3", user=ALICE, account="physics", partition="short")
    eventually("the whole job", lambda: _given(node) == {job: known})

    tasks = slurm.submit("-a", "1-3", "-p", "long", user=BOB)  # the third waits for a GPU
    eventually("two tasks", lambda: len(_given(node)) == 3)
    task = next(one for one in _given(node).values() if one.array_id == f"{tasks}_1")
    assert (task.user, task.partition, task.account, task.name) == (BOB, "long", "", "wrap")

    _hold(node, _index(node, job))
    slurm.run("scontrol", "requeue", job)
    all_three = {f"{tasks}_{number}" for number in (1, 2, 3)}
    eventually(
        "the third in its place",
        lambda: {one.array_id for one in _given(node).values()} == all_three,
    )
    assert not node.locked()
    assert slurm.states()[job] == "PENDING"

    index = _index(node, task.id)
    _hold(node, index)
    slurm.run("scancel", task.array_id)  # not by its id, which Slurm 22.05 leaves alone
    eventually("its end for Slurm", lambda: task.id not in slurm.states())
    assert index not in node.locked()
    slurm.run("scancel", *slurm.states())
    eventually("nobody", lambda: not _given(node) and not slurm.states())
    assert [*(node.home / "map").iterdir(), *(node.home / "map-jobs").iterdir()] == []
    assert (slurm.home / "prolog.log").read_text() == ""
    assert (slurm.home / "epilog.log").read_text() == ""


def test_a_node_that_fails_gives_its_gpus_back_when_its_daemon_is_back(
    node: RunningAgent, slurm: RealSlurm
) -> None:
    job = slurm.submit(user=ALICE)
    eventually("its owner", lambda: set(_given(node)) == {job})
    _hold(node, 0)
    slurm.kill_node()
    slurm.run("scancel", job)
    assert 0 in node.locked()  # nobody on this node knows yet
    slurm.start_node()
    eventually("given back", lambda: not _given(node) and not node.locked())
    assert not slurm.states()

    slurm.run("scontrol", "update", f"nodename={slurm.node}", "state=down", "reason=test")
    assert slurm.submit(user=ALICE) in slurm.states()
    assert not _given(node)


def test_a_policy_finds_jobs_by_every_word_of_their_record(
    node: RunningAgent, slurm: RealSlurm, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    cluster = Cluster(tmp_path, agents=[node.address])
    try:
        _, url, _ = cluster.controller()
        words = ("-A", "physics")
        named = slurm.submit("-J", "gpt 3", user=ALICE)
        grouped = slurm.submit("-A", "bio", "-p", "long", user=BOB)
        asking = slurm.submit(*words, user=BOB)

        def found() -> dict[str, bool]:
            jobs = json.loads(get(f"{url}/api/v1/board"))["jobs"]
            return {job["name"]: "no GPU is given to" not in job["complaint"] for job in jobs}

        wanted = {"by-name": True, "by-account": True, f"small:{asking}": True}
        eventually("all three", lambda: found() == wanted)

        def owners() -> dict[str, float]:
            store = f"sqlite:///{cluster.folder}/controller.db"
            told = commands.run("report", "--store", store, "--by", "user", "--json").stdout
            return {row["name"]: row["energy_j"] for row in json.loads(told)["rows"]}

        eventually("energy of both users", lambda: {*owners()} == {ALICE, BOB})
        assert min(owners().values()) > 0.0
        slurm.run("scancel", named, grouped, asking)
        eventually("none", lambda: found() == {"by-name": False, "by-account": False})
    finally:
        cluster.down()
