"""Bad inputs: each is one line that says what, where and what is allowed, has status 2,
and leaves no file behind.
"""

import copy
import json
import shlex
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import commands
import pytest
import yaml

from joulecut_agent.main import main as agent
from joulecut_cli.main import main as joulecut
from joulecut_controller.main import main as controller

NAN, LONG = float("nan"), "x" * 300
PROFILE = "stage,instruction,frequency,time,energy\n" + "".join(
    f"{stage},{kind},{clock_mhz},{time_s},{energy_j}\n"
    for stage in range(2)
    for kind in ("forward", "backward")
    for clock_mhz, time_s, energy_j in ((1410, 1.0, 100.0), (1200, 1.1, 80.0))
)
PIPELINE = {"schedule": "1f1b", "stages": 2, "microbatches": 4}
COSTS = {"profile": "p.csv", "blocking_power_w": 83.64}
POLICY: dict[str, Any] = {
    "apiVersion": "joulecut/v1",
    "kind": "Policy",
    "cluster": {"cost": {"kwh": 0.08}},
    "jobs": [
        {
            "name": "a",
            "match": {"gpus": ["node1/0-1"]},
            "slo": {"max_slowdown": "1%"},
            "clocks": {},
            "pipeline": {**PIPELINE, **COSTS},
            "ranks": {"source": "list"},
        }
    ],
}
CONTROLLER: dict[str, Any] = {
    "agents": ["127.0.0.1:1"],
    "policy": "policy.yaml",
    "store": "sqlite:///c.db",
    "listen": {},
}
AGENT: dict[str, Any] = {
    "device": "simulated",
    "node": "n1",
    "listen": {"metrics": "127.0.0.1:0", "grpc": "127.0.0.1:0", "socket": "jobs.sock"},
    "state_dir": "state",
}
JOB: dict[str, Any] = {"pipeline": PIPELINE, **COSTS}
RUN = {"gpus": 8, "data": 8, "microbatch": 1, "global_batch": 64, "sequence": 1024}
MODEL: dict[str, Any] = {"model": "gpt2", "system": "dgx-a100", "run": RUN}

# Of a policy: the key that is named, and what it is set to; with a third value, what else is set.
# More of them, with their whole lines, in tests/golden/policy_faults.txt.
POLICIES: tuple[tuple[Any, ...], ...] = (
    ("cluster.power_budget_w", True),
    ("cluster.node_power_w", -1),
    ("cluster.cost.kwh", -0.1),
    ("cluster.cost.host_power_w", 1e9),
    ("cluster.cost.gpu_hour", "2.5 EUR"),
    ("found_jobs.mode", "enforce"),
    ("found_jobs.max_slowdown", "-1%"),
    ("predict.forest", "maybe"),
    ("idle.mode", "park"),
    ("idle.lock_mhz", 0),
    ("idle.after", "5s"),
    ("idle.after", "2d"),
    ("idle.before", "5min"),
    ("opt_in", {"max_slowdown": "900%"}),
    ("jobs[0].name", "a\nb"),
    ("jobs[0].name", LONG),
    ("jobs[0].tenant", "a\nb"),
    ("jobs[0].mode", "Enforce"),
    ("jobs[0].except[0].gpus", ["node1/0"], {"jobs[0].except": [{}]}),
    ("jobs[0].match.gpus", ["node1/0-2"]),
    ("jobs[0].slo.max_iteration_time", "1s"),
    ("jobs[0].slo.min_rate.unit", "iterations/day", {"jobs[0].slo": {"min_rate": {"value": 3}}}),
    ("jobs[0].slo.tolerance", "6%"),
    ("jobs[0].slo.rate", {"promql": "sum(rate(x[5m])"}),
    ("jobs[0].slo.rate", {"promql": "rate(x['5m])"}),
    ("jobs[0].slo.rate", "promql"),
    ("jobs[0].clocks.min_dwell", "5"),
    ("jobs[0].pipeline.expert_parallel", 3),
    ("jobs[0].pipeline.sync", "always"),
    ("jobs[0].pipeline.profile", "none.csv"),
    ("jobs[0].pipeline.profile", "."),
    ("jobs[0].pipeline.model", "run.yaml"),  # a key that went
    ("jobs[0].pipeline.blocking_power_w", NAN),
)
CONTROLLERS: tuple[tuple[Any, ...], ...] = (
    ("intervl_s", 5),
    ("interval_s", 0),
    ("interval_s", float("inf")),
    ("agents", []),
    ("agents[0]", "h:99999"),
    ("agents[1]", "127.0.0.1:1"),
    ("agents[0]", "8.8.8.8:1"),
    ("policy", "no-policy.yaml"),
    ("policy", 5),
    ("store", "foo://x"),
    ("listen.http", "127.0.0.1"),
    ("listen.http", "0.0.0.0:9440"),
    ("agents[0]", "127.0.0.1:0"),
    ("listen.http", "[::1:9"),
    ("listen.http", "::1:9"),
    ("lease.ttl_s", 0.1),
    ("lease.ttl_s", 3600),
)
AGENTS: tuple[tuple[Any, ...], ...] = (
    ("device", "amd"),
    ("node", "a/b"),
    ("node", "a\nb"),
    ("listen.metrics", "127.0.0.1:70000"),
    ("listen.grpc", "0.0.0.0:9431"),
    ("listen.socket", LONG),
    ("state_dir", 5),
    ("lease.ttl_s_max", 600),
    ("sample_interval_s", 0),
    ("bounds.writes_per_minute", 0),
    ("site_default.clock_max_mhz", -1),
    ("logs[0].pattern", "(", {"logs": [{"job": "a", "path": "/x"}]}),
    ("simulated.cards", 0),
    ("simulated.set_latency_s", -1),
)
JOBS: tuple[tuple[Any, ...], ...] = (
    ("shape", {"schedule": "foo"}),
    ("pipeline.tensor_parallel", 2),
    ("pipeline.schedule", "dualpipev"),
)
MODELS: tuple[tuple[Any, ...], ...] = (
    ("run.mtp_layers", 5),
    ("run.global_batch", 63),
    ("run.gpus", 7),
    ("model", "gpt9"),
    ("system", "dgx-z"),
)
WORDS: tuple[tuple[str, str], ...] = (
    ("stats", "did you mean status?"),
    ("help frobnicate", "no such command"),
    ("plan job.yaml --max-slowdown 0.02", "0.02% or 2%"),
    ("plan job.yaml --granularity changes:0", "--granularity"),
    ("plan job.yaml --timeline nowhere/x.json", "--timeline"),
    ("plan job.yaml --timeline /proc/x.json", "--timeline"),
    (f"plan job.yaml --timeline {'x' * 300}.json", "--timeline"),
    ("plan job.yaml --jsn", "did you mean --json?"),
    ("plan .", "directory"),
    ("fit p.csv --probes 1410,5", "--probes"),
    ("fit p.csv --probes 1410 --also none.csv", "none.csv"),
    ("status --controller ftp://x", "--controller"),
    ("status --controller http://127.0.0.1:99999", "--controller"),
    ("pause", "JOB or --all"),
    ("selftest --minutes 0", "--minutes"),
    ("selftest --kill", "--kill"),
    ("selftest --save /nowhere/facts.json", "--save"),
    ("run", "joulecut run -- COMMAND"),
    ("run --jobs x", "--jobs"),
    ("run --job no/job -- true", "--job"),
    ("restore", "JOB, NODE or --all"),
    ("report --since x", "--since"),
    ("report --store sqlite:///none.db", "--store"),
    ("report --co2 -1", "--co2"),
    ("policy chek policy.yaml", "no action"),
    ("demo --duration 5", "seconds from 30 to 86400"),
    ("demo --duration nan", "seconds from 30 to 86400"),
    ("demo --duration soon", "--duration"),
    ("demo --port 70000", "a whole number from 0 to 65535"),
    ("demo --port -1", "a whole number from 0 to 65535"),
    ("demo --seed -1", "--seed"),
    ("demo --card h100", "a100-sxm, a40"),
    ("demo --summary /no/such/folder/summary.json", "--summary"),
    ("demo --summary /dev", "/dev is a folder"),
    ("demo --frobnicate", "--frobnicate"),
    ("demo surplus", "surplus"),
)
VARIABLES: tuple[tuple[str, str, str], ...] = (
    ("status", "JOULECUT_USER", "a:b"),
    ("status", "JOULECUT_PASSWORD_FILE", "secret"),
)
# Words of versions before, and what is said today: the same answer, with one line on top.
SWEEP = {**MODEL, "sweep": {"pipeline": [1, 2]}}
RETIRED = (
    ("plan job.yaml --granularity edge", "plan job.yaml --granularity changes:2", "changes:2"),
    ("plan job.yaml --effort quick", "plan job.yaml", "--prove"),
    ("frontier job.yaml --points 2 --prove 9", "frontier job.yaml --points 2", "plan --prove"),
    ("plan late.yaml --granularity gpu", "plan job.yaml --granularity gpu", "switching.late"),
    ("model sweep sweep.yaml --jobs 1 --dask x", "model sweep sweep.yaml --jobs 1", "--dask"),
    ("model sweep sweep.yaml --jobs 1 --fresh", "model sweep sweep.yaml --jobs 1", "--fresh"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Files that are right; a controller whose configuration passes would find its port taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = {"http": f"127.0.0.1:{taken.getsockname()[1]}"}
        (tmp_path / "p.csv").write_text(PROFILE)
        for name, data in (
            ("policy", POLICY),
            ("controller", {**CONTROLLER, "listen": listen}),
            ("agent", AGENT),
            ("job", JOB),
            ("model", MODEL),
            ("late", {**JOB, "switching": {"late": "within"}}),
            ("sweep", SWEEP),
        ):
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(data))
        yield tmp_path


def keys(path: str) -> list[str | int]:
    parts = path.replace("[", ".[").split(".")
    return [int(part[1:-1]) if part.startswith("[") else part for part in parts]


def put(data: Any, path: str, value: object) -> None:
    *parents, last = keys(path)
    for key in parents:
        data = data.setdefault(key, {}) if isinstance(data, dict) else data[int(key)]
    if isinstance(data, list) and last == len(data):
        data.append(value)
    else:
        data[last] = value


def refused(
    folder: Path,
    said: str,
    *argv: str,
    main: Callable[[], int] = joulecut,
    env: dict[str, str] | None = None,
) -> None:
    before = sorted(folder.iterdir())
    ended = commands.run(*argv, cwd=folder, main=main, env=env)
    assert ended.returncode == 2, (ended.stdout, ended.stderr)
    line = ended.stderr.removesuffix("\n")
    assert "\n" not in line
    assert said in line
    assert "; allowed: " in line
    assert ended.stdout == ""
    assert sorted(folder.iterdir()) == before


COMMANDS: dict[str, tuple[tuple[tuple[Any, ...], ...], str, Callable[[], int]]] = {
    "policy": (POLICIES, "policy check policy.yaml", joulecut),
    "controller": (CONTROLLERS, "--config controller.yaml", controller),
    "agent": (AGENTS, "run --config agent.yaml", agent),
    "job": (JOBS, "plan job.yaml", joulecut),
    "model": (MODELS, "model model.yaml", joulecut),
}


@pytest.mark.parametrize(
    ("name", "row"),
    [(name, row) for name, (rows, *_) in COMMANDS.items() for row in rows],
    ids=lambda value: value if isinstance(value, str) else str(value[0]),
)
def test_a_value_that_cannot_be_is_named_with_its_key(
    folder: Path, name: str, row: tuple[Any, ...]
) -> None:
    _, words, main = COMMANDS[name]
    file = folder / f"{name}.yaml"
    data = yaml.safe_load(file.read_text())
    path, value, *more = row
    for key, given in [*(more[0] if more else {}).items(), (path, value)]:
        put(data, key, copy.deepcopy(given))
    file.write_text(yaml.safe_dump(data))
    refused(folder, path, *words.split(), main=main)


@pytest.mark.parametrize(("words", "said"), WORDS, ids=[words for words, _ in WORDS])
def test_words_that_mean_nothing_are_named(folder: Path, words: str, said: str) -> None:
    refused(folder, said, *shlex.split(words))


@pytest.mark.parametrize(("words", "name", "value"), VARIABLES)
def test_a_variable_that_cannot_be_is_named(
    folder: Path, words: str, name: str, value: str
) -> None:
    refused(folder, name, *words.split(), env={name: value})


def test_a_port_of_the_demo_that_is_in_use_is_named(folder: Path) -> None:
    listen = yaml.safe_load((folder / "controller.yaml").read_text())["listen"]
    port = listen["http"].rpartition(":")[2]
    refused(folder, "a free port, or 0 for any", "demo", "--no-browser", "--port", port)


@pytest.mark.parametrize(("before", "today", "said"), RETIRED, ids=[row[0] for row in RETIRED])
def test_a_word_that_went_is_read_with_one_line(
    folder: Path, before: str, today: str, said: str
) -> None:
    answers = []
    for words in (before, today):
        ended = commands.run(*words.split(), "--json", cwd=folder)
        assert ended.returncode == 0, ended.stderr
        notes = [line for line in ended.stderr.splitlines() if line.endswith("it goes with 0.3")]
        assert len(notes) == (words == before)
        assert all(said in note for note in notes)
        answer = json.loads(ended.stdout)
        answers.append({key: v for key, v in answer.items() if not key.endswith("seconds")})
    assert answers[0] == answers[1]


@pytest.mark.parametrize("key", ["tls", "web_config", "profiles"])
def test_files_that_are_missing_leave_no_store(folder: Path, key: str) -> None:
    files = {"ca": "none.pem", "cert": "none.pem", "key": "none.pem"}
    data = yaml.safe_load((folder / "controller.yaml").read_text())
    value = files if key == "tls" else "none.yml"
    (folder / "controller.yaml").write_text(yaml.safe_dump({**data, key: value}))
    refused(folder, "none.", "--config", "controller.yaml", main=controller)
