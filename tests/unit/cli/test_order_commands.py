"""pause, resume and restore as a person types them."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import bcrypt
import boards
import commands
import pytest
from held_port import held_port
from serving import WAIT_S, Serving

from joulecut_cli.commands import all_commands
from joulecut_controller.orders import Done, Hold, Order
from joulecut_controller.sources.policy_file import load
from joulecut_wire.web_config import WebConfig

COMMANDS = all_commands()
POLICY = """\
apiVersion: joulecut/v1
kind: Policy
jobs:
  - name: a
    match: {gpus: [n1/0-1]}
    slo: {max_slowdown: 2%, rate: hook}
  - name: b
    mode: enforce
    match: {gpus: [n2/0-1]}
    slo: {max_slowdown: 1%, rate: hook}
"""


class Clerk:
    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.answer = Done("gpt3-175b paused: 8 GPUs asked to reset to default clocks", gpus=8)

    async def obey(self, order: Order) -> Done:
        self.orders.append(replace(order, by=""))
        return self.answer


@pytest.fixture(scope="module")
def clerk() -> Clerk:
    return Clerk()


@pytest.fixture(scope="module")
def served(clerk: Clerk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    path.write_text(POLICY)
    board = replace(boards.board("recommend"), policy=load(path))
    with Serving(board, obey=clerk.obey) as server:
        yield server


def joulecut(
    *words: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return commands.run(*words, env=environment)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_orders_reach_the_controller(served: Serving, clerk: Clerk) -> None:
    clerk.orders.clear()
    url = ("--controller", served.url)
    for words in (
        ("pause", "gpt3-175b", "--reason", "reset of node1"),
        ("pause", "--all"),
        ("resume", "gpt3-175b"),
        ("resume", "--all"),
        ("restore", "gpt3-175b"),
        ("restore", "node1"),
        ("restore", "--node", "node1"),
        ("restore", "--all", "--reason", "now"),
        ("adopt", "node1", "--reason", "new board"),
    ):
        done = joulecut(*words, *url)
        assert (done.returncode, done.stderr) == (0, ""), words
        assert done.stdout == "gpt3-175b paused: 8 GPUs asked to reset to default clocks.\n"
    assert clerk.orders == [
        Order("pause", job="gpt3-175b", reason="reset of node1"),
        Order("pause"),
        Order("resume", job="gpt3-175b"),
        Order("resume"),
        Order("restore", job="gpt3-175b"),
        Order("restore", node="node1"),
        Order("restore", node="node1"),
        Order("restore", reason="now"),
        Order("adopt", node="node1", reason="new board"),
    ]


def test_an_order_half_done_fails_and_tells_programs(served: Serving, clerk: Clerk) -> None:
    before, clerk.answer = clerk.answer, Done("held", gpus=8, unanswered=("n2:1: no answer",))
    done = joulecut("pause", "gpt3-175b", "--json", "--controller", served.url)
    clerk.answer = before
    assert done.returncode == 1
    assert json.loads(done.stdout)["unanswered"] == ["n2:1: no answer"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("pause", "x", "--all"), "a name and --all; allowed: JOB or --all"),
        (("resume",), "nothing named; allowed: JOB or --all (a paused job), or the node whose"),
        (("resume", "n1", "--cert", "c", "--all"), "--cert and --all; allowed: JOB or --all"),
        (("restore", "x", "--node", "y"), "more than one thing named"),
        (("restore", "x", "--direct"), "--direct without agents; allowed: --agents"),
        (("restore", "--all", "--direct", "--agents", "node7:9431"), "without TLS"),
        (("restore", "--all", "--config", "/nowhere.yaml"), "/nowhere.yaml"),
        (("restore", "--all", "--agents", ",,"), '--agents: ",," names none'),
        (("--version", "plan"), '"plan" behind it; allowed: nothing'),
        (("explian", "x"), "no such command (did you mean explain?)"),
        (("--versoin",), "no such command (did you mean --version?)"),
        (("status", "--controler=http://a"), "--controler=http://a (did you mean --controller?)"),
        (("policy", "upload", "a.csv"), "profiles are files, beside the policy"),
        (("policy", "diff", "p.yaml"), "policy check and status, which show the digest"),
        (("completion", "bash"), "completion: is gone; allowed: joulecut --help"),
        (("clear", "node7"), "clear: is gone; allowed: joulecut restore --direct"),
        (("status", "--watch", "soon"), '--watch: "soon"; allowed: above 0'),
    ],
)
def test_bad_words_are_one_line(words: tuple[str, ...], sentence: str) -> None:
    done = joulecut(*words)
    assert done.returncode == 2
    assert sentence in one_line(done)


def test_help_and_version_have_the_usual_words() -> None:
    alone = joulecut()
    assert alone.returncode == 0
    assert alone.stdout == joulecut("--help").stdout == joulecut("help").stdout
    titles = [line.partition(":")[0] for line in alone.stdout.splitlines() if line[:1].isupper()]
    assert titles == ["Cluster", "Jobs", "Node", "Laptop", "Lab"]
    assert joulecut("-V").stdout == joulecut("--version").stdout
    assert joulecut("help", "status").stdout == joulecut("status", "--help").stdout


def test_what_the_controller_refuses_is_one_line(served: Serving, clerk: Clerk) -> None:
    before, url = clerk.answer, ("--controller", served.url)
    clerk.answer = Done("no job 'x' in the policy; there are: a, b", "unknown")
    done = joulecut("pause", "x", *url)
    assert done.returncode == 2
    assert "no job 'x' in the policy; there are: a, b" in one_line(done)
    clerk.answer = Done("this controller is a standby and does not lead", "standby")
    done = joulecut("restore", "--all", *url)
    assert done.returncode == 1
    assert "does not lead; --agents HOST:PORT,... or --config" in one_line(done)
    clerk.answer = before


def test_without_a_controller_every_command_says_what_helps() -> None:
    with held_port() as port:
        for words in (("pause", "x"), ("resume", "x"), ("restore", "x")):
            done = joulecut(*words, "--controller", f"http://127.0.0.1:{port}")
            assert done.returncode == 1
            line = one_line(done)
            assert "is joulecut-controller running?" in line
            assert ("--agents" in line) == (words[0] == "restore")


def test_recommend_is_explain(served: Serving) -> None:
    done = joulecut("recommend", "gpt3-175b", "--controller", served.url)
    assert done.returncode == 0
    assert done.stderr == "joulecut: recommend is a part of joulecut explain; it goes with 0.3\n"
    assert "on the critical path" in done.stdout


def test_a_hold_is_on_the_first_screen() -> None:
    hold = Hold("gpt3-175b", "breaker", "slow", "the breaker", boards.NOON_UNIX_S)
    board = boards.board("enforce")
    held = replace(board.jobs[0], holds=(hold,), trips=3, sentence=hold.sentence)
    with Serving(replace(board, jobs=(held,), holds=(hold,))) as served:
        done = joulecut("status", "--controller", served.url)
        assert done.stdout.splitlines()[0].count(": enforce, no plan in force; pass") == 1
        assert "gpt3-175b  tripped" in done.stdout
        assert "`joulecut resume gpt3-175b` arms it again" in done.stdout


def test_watch_goes_on_until_it_is_interrupted(served: Serving) -> None:
    words = ["status", "--watch", "0.2", "--json", "--controller", served.url]
    command = [sys.executable, "-m", "joulecut_cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        seen = [json.loads(watching.stdout.readline()) for _ in range(3)]
        watching.send_signal(2)
        _, said = watching.communicate(timeout=WAIT_S)  # it ends once its last line is read
        assert (watching.returncode, said) == (0, b"")
    assert [board["pass_number"] for board in seen] == [128] * 3


def test_a_password_comes_from_a_file_and_never_from_the_command_line(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("correct horse\n")
    web = tmp_path / "web.yaml"
    hashed = bcrypt.hashpw(b"correct horse", bcrypt.gensalt(4, b"2a")).decode()
    web.write_text(json.dumps({"basic_auth_users": {"alice": hashed}}))
    clerk = Clerk()
    with Serving(boards.board(), obey=clerk.obey, web=WebConfig(web, pytest.fail)) as served:
        words = ("pause", "gpt3-175b", "--controller", served.url)
        assert "user and password" in one_line(joulecut(*words))
        for user, path, status in (
            ("alice", secret, 0), ("eve", secret, 1), ("alice", tmp_path / "none", 2),
            ("alice", "/dev/zero", 2),
        ):  # fmt: skip
            given = {"JOULECUT_USER": user, "JOULECUT_PASSWORD_FILE": str(path)}
            done = joulecut(*words, environment=given)
            assert done.returncode == status, done.stderr
    assert len(clerk.orders) == 1


def test_a_node_is_not_resumed_as_a_job(served: Serving, clerk: Clerk) -> None:
    """After `restore NODE` somebody types `resume NODE`: what to type instead is said."""
    before = clerk.answer
    clerk.answer = Done("no job 'node1' in the policy; there are: gpt3-175b", "unknown")
    try:
        done = joulecut("resume", "node1", "--controller", served.url)
        assert done.returncode == 2
        line = one_line(done)
        assert "node1 is a node, and jobs are resumed" in line
        assert "JOB or --all" in line
        done = joulecut("resume", "nope", "--controller", served.url)
        assert "no job" in one_line(done)
    finally:
        clerk.answer = before
