"""`joulecut report` typed by a person: from a configuration, from a store, and typed wrongly."""

import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import savings_store
from windows import measured

from joulecut_cli.report import command
from joulecut_controller.ports import Record
from joulecut_controller.store.database import open_store
from joulecut_controller.trust.window import TOPIC, to_json
from joulecut_wire.command import BAD_INPUT, FAILED, FINE, guarded

POLICY = """
apiVersion: joulecut/v1
kind: Policy
cluster: {cost: {gpu_hour: 2.5, kwh: 0.12, host_power_w: 150, pue: 1.2}}
jobs:
  - name: gpt3-175b
    match: {kubernetes: {namespace: train}}
    slo: {max_slowdown: 1%}
  - name: never-measured
    slo: {max_slowdown: 1%}
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store whose controller is gone."""
    url = f"sqlite:///{tmp_path_factory.mktemp('savings')}/controller.db"
    store = open_store(url)
    savings_store.fill(store, time.time())
    store.close()
    return url


def ask(*argv: str) -> int:
    return guarded("joulecut", lambda: command.run(list(argv)))


def asked_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    assert ask(*argv, "--json") == FINE
    return json.loads(capsys.readouterr().out)


def test_energy_by_owner_adds_up_to_the_boards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, now_s = f"sqlite:///{tmp_path}/controller.db", time.time()
    store = open_store(url)
    assert (ask("--store", url, "--by", "user"), capsys.readouterr().out[:19]) == (
        FINE, "No energy was booke",
    )  # fmt: skip
    rows: list[list[object]] = [
        ["job", "alice", "physics", "gpu", "", 10.8e6], ["job", "alice", "bio", "gpu", "", 3.6e6],
        ["job", "bob", "bio", "gpu", "", 3.6e6], ["idle", "", "", "", "", 1.8e6],
        ["unknown", "", "", "", "", 1.8e6],
    ]  # fmt: skip
    store.keep_learnt("energy", json.dumps([1, now_s - 7200.0, now_s - 60.0, rows, {}]))
    store.close()
    made = asked_json(capsys, "--store", url, "--by", "account", "--since", "1h")
    assert [(row["name"], row["energy_j"]) for row in made["rows"]] == [
        ("physics", 10.8e6), ("bio", 7.2e6),
    ]  # fmt: skip
    assert (made["idle_j"], made["unknown_j"], made["total_j"]) == (1.8e6, 1.8e6, 2.16e7)
    assert ask("--store", url, "--by", "user") == FINE
    shown = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert shown == [
        ["USER", "KWH", "SHARE"], ["alice", "4.000", "66.7%"], ["bob", "1.000", "16.7%"],
        ["(idle)", "0.5000", "8.3%"], ["(unknown)", "0.5000", "8.3%"], ["all", "GPUs", "6.000"],
    ]  # fmt: skip
    held = [[*row, 0.0] for row in rows] + [["unused", "alice", "bio", "gpu", "", 3.6e6, 36e3]]
    with closing(open_store(url)) as opened:
        opened.keep_learnt("energy", json.dumps([2, now_s - 7200.0, now_s - 60.0, held, {}]))
    policy = tmp_path / "prices.yaml"
    cost = "{gpu_hour: 2, kwh: 0.1, currency: EUR}"
    policy.write_text(f"apiVersion: joulecut/v1\nkind: Policy\ncluster: {{cost: {cost}}}\n")
    assert ask("--store", url, "--policy", str(policy), "--by", "user") == FINE
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].split() == ["alice", "1.000", "10.0", "20.10"]
    assert "cost of both, EUR" in printed
    assert ["alice", "5.000", "71.4%"] in [line.split() for line in printed.splitlines()]


def test_a_configuration_names_store_and_policy(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, config = tmp_path / "policy.yaml", tmp_path / "controller.yaml"
    policy.write_text(POLICY)
    config.write_text(f"agents: [localhost:1]\npolicy: policy.yaml\nstore: {url}\n")
    told = asked_json(capsys, "--config", str(config), "--co2", "380")
    other = asked_json(capsys, "--store", url, "--policy", str(policy), "--co2", "380")
    assert told["jobs"][:2] == other["jobs"][:2]
    assert told["jobs"][2]["job"] == "never-measured"
    [job, *_] = told["jobs"]
    assert job["tenant"] == "train"
    saved = job["measured"]["saved_ratio"]
    world, days = savings_store.JOBS["gpt3-175b"]
    _, truth = measured(savings_store.SEED, days, world, "gpt3-175b")
    assert saved["low"] <= truth.saved <= saved["high"]


def test_a_job_of_a_class_has_the_tenant_of_its_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, name = f"sqlite:///{tmp_path}/controller.db", "small:train.gpt"
    with closing(open_store(url)) as store:
        for one in savings_store.week(time.time())[:20]:
            made = replace(one, job=name)
            store.keep_record(Record(made.ended_unix_s, TOPIC, name, to_json(made)))
        store.keep_record(Record(time.time(), TOPIC, "damaged", '{"job": "damaged"}'))
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "apiVersion: joulecut/v1\nkind: Policy\njobs:\n  - {name: small, each: true, "
        "tenant: physics, match: {kubernetes: {namespace: train}}, slo: {max_slowdown: 1%}}\n"
    )
    told = asked_json(capsys, "--store", url, "--policy", str(policy))
    assert [(job["job"], job["tenant"]) for job in told["jobs"]] == [(name, "physics")]
    assert told["changes"] == []


def test_co2_is_the_policy_s_unless_a_flag_says_otherwise(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        POLICY.replace("pue: 1.2", "pue: 1.2, co2_g_per_kwh: 400").replace(
            "match: {kubernetes: {namespace: train}}", "tenant: physics"
        )
    )
    known = ("--store", url, "--policy", str(policy))
    told = asked_json(capsys, *known)
    other = asked_json(capsys, *known, "--co2", "100")
    assert told["factors"]["co2_g_per_kwh"] == 400.0
    assert other["factors"]["co2_g_per_kwh"] == 100.0
    [first, *_], [second, *_] = told["jobs"], other["jobs"]
    assert first["tenant"] == second["tenant"] == "physics"
    assert first["wall"]["co2_kg"]["mid"] == pytest.approx(4 * second["wall"]["co2_kg"]["mid"])


def test_tables_and_the_changes_of_a_job_are_printed(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("--store", url) == FINE
    table = capsys.readouterr().out
    for word in ("gpt3-175b", "llama-70b", "unknown", "TENANT", "cluster.cost.kwh"):
        assert word in table
    assert ask("--store", url, "--job", "gpt3-175b") == FINE
    one = capsys.readouterr().out
    assert "4 at 1200 MHz" in one
    assert "because: saves 15.5 %" in one
    assert "hold-out window" in one
    assert "saves 6 %" not in one  # another job's


def test_an_empty_store_says_what_to_switch_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/empty.db"
    open_store(url).close()
    assert ask("--store", url) == FINE
    assert "holdout: 5%" in capsys.readouterr().out
    (tmp_path / "policy.yaml").write_text(POLICY)
    assert ask("--store", url, "--policy", str(tmp_path / "policy.yaml")) == FINE
    assert "never-measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--since", "99999d"], "3660d"),
        (["--csv"], "--csv: is gone; allowed: --json"),
        (["--html", "report.html"], "--html: is gone; allowed: --json"),
        (["--receipt", "a"], "--receipt: is gone; allowed: --job NAME"),
        (["--policy", "p.yaml"], "--policy without --store"),
        (["--store", "sqlite:///a", "--controller", "http://h"], "on the controller's machine"),
        (["--store", "sqlite:///a", "--config", "c.yaml"], "not allowed with"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        ([], "allowed: another controller's, or --store URL"),
        (["--job", ""], "empty name"),
        (["--store", "sqlite:////nowhere/c.db"], "no file"),
    ],
)
def test_bad_input_is_one_line(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(*argv) == BAD_INPUT
    told = capsys.readouterr()
    assert said in told.err
    assert told.err.count("\n") == 1
    assert not told.out


def test_a_job_without_windows_changes_and_entry_is_bad_input(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("--store", url, "--job", "unknown") == BAD_INPUT
    assert "no job 'unknown'" in capsys.readouterr().err


def test_a_file_that_is_no_store_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, and somebody wants to keep it" * 100)
    assert ask("--store", f"sqlite:///{file}") == FAILED
    assert capsys.readouterr().err.count("\n") == 1
    assert file.read_text().startswith("not a database")
    file.write_text("")
    assert ask("--store", f"sqlite:///{file}") == BAD_INPUT
    assert "notes.txt, or an empty one" in capsys.readouterr().err
    assert not file.stat().st_size
