"""Profiles beside the policy, in a folder, and uploaded: found, followed, bounded."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import bcrypt
import boards
import pytest
import yaml
from serving import Serving

from joulecut_cli.policy import run
from joulecut_controller.board import Board
from joulecut_controller.sources import uploaded_profiles
from joulecut_controller.sources.policy_file import PolicyFile
from joulecut_controller.sources.profile import parse
from joulecut_controller.sources.uploaded_profiles import UPLOAD_BYTES_MAX, UploadedProfiles
from joulecut_controller.store.database import DatabaseStore, open_store
from joulecut_controller.web.senders import Roles
from joulecut_wire.errors import BadInput
from joulecut_wire.web_config import WebConfig

POLICY = """\
apiVersion: joulecut/v1
kind: Policy
jobs:
  - name: a
    slo: {max_slowdown: 2%}
    pipeline: {schedule: 1f1b, stages: 1, microbatches: 4, profile: a.csv, blocking_power_w: 80}
"""


def profile(time_s: float) -> str:
    rows = f"0,forward,1410,{time_s},24\n0,backward,1410,0.09,44\n"
    return f"stage,instruction,frequency,time,energy\n{rows}"


def with_a_profile_in_use() -> Board:
    """Its one job uses the uploaded a.csv."""
    board = boards.board()
    job = board.jobs[0]
    used = replace(job.view.policy, profile=parse(profile(0.1).encode(), "uploaded a.csv"))
    return replace(board, jobs=(replace(job, view=replace(job.view, policy=used)),))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DatabaseStore]:
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    yield store
    store.close()


@pytest.fixture
def policy(tmp_path: Path, store: DatabaseStore) -> PolicyFile:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "policy.yaml").write_text(POLICY)
    folder = tmp_path / "profiles"
    return PolicyFile(tmp_path / "policy.yaml", profiles=folder, uploaded=UploadedProfiles(store))


def forward_s(policy: PolicyFile) -> float:
    loaded = policy.load().jobs[0].profile
    return loaded.options[0, "forward"][0].time_s


def test_each_place_is_found_and_an_earlier_one_wins(
    tmp_path: Path, policy: PolicyFile, store: DatabaseStore
) -> None:
    with pytest.raises(BadInput, match="No such file"):
        policy.load()
    assert not policy.changed()
    digests = set()
    uploads = UploadedProfiles(store)  # the page has its own
    for n, put in enumerate(
        (
            lambda text: uploads.keep("a.csv", text.encode(), "alice", 1.0),
            (tmp_path / "profiles/a.csv").write_text,
            (tmp_path / "a.csv").write_text,
        ),
        1,
    ):
        for time_s in (0.01 * n, 0.011 * n):
            put(profile(time_s))
            assert policy.changed(), time_s
            assert forward_s(policy) == time_s
            digests.add(policy.load().digest)
            assert not policy.changed()
    assert len(digests) == 6
    (tmp_path / "a.csv").unlink()
    assert policy.changed()
    assert forward_s(policy) == 0.022
    (tmp_path / "profiles/a.csv").unlink()
    uploads.remove("a.csv", "alice", 2.0)
    assert policy.changed()
    with pytest.raises(BadInput, match="No such file"):
        policy.load()
    assert [event.text.split(":")[0] for event in store.events()] == [
        "profile a.csv removed by alice",
        *["profile a.csv uploaded by alice"] * 2,
    ]


def test_a_path_in_another_folder_is_that_file_alone(
    tmp_path: Path, policy: PolicyFile, store: DatabaseStore
) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY.replace("a.csv", "../a.csv"))
    (tmp_path / "profiles/a.csv").write_text(profile(0.01))
    UploadedProfiles(store).keep("a.csv", profile(0.02).encode(), "alice", 1.0)
    with pytest.raises(BadInput, match="No such file"):
        policy.load()


def test_what_was_uploaded_stays_while_the_store_fails(
    policy: PolicyFile, store: DatabaseStore, tmp_path: Path
) -> None:
    UploadedProfiles(store).keep("a.csv", profile(0.02).encode(), "alice", 1.0)
    policy.load()
    store.close()
    (tmp_path / "store.db").write_bytes(b"damaged")
    assert not policy.changed()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "stage,instruction\n", "column frequency is missing"),
        ("a.csv", profile(0.0), "a.csv:2: time: 0 is out of range"),
        ("a.txt", profile(0.1), "before .csv"),
        ("../a.csv", profile(0.1), "before .csv"),
        ("a" * 129 + ".csv", profile(0.1), "before .csv"),
        ("a.csv", profile(0.1) + " " * UPLOAD_BYTES_MAX, f"at most {UPLOAD_BYTES_MAX}"),
        ("b.csv", profile(0.1), "2 profiles are kept; allowed: at most 2"),
    ],
)
def test_what_is_no_profile_or_too_much_is_refused(
    store: DatabaseStore, monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str
) -> None:
    monkeypatch.setattr(uploaded_profiles, "UPLOADS_MAX", 2)
    uploads = UploadedProfiles(store)
    for other in ("x.csv", "y.csv"):
        uploads.keep(other, profile(0.1).encode(), "alice", 1.0)
    if "are kept" not in said:
        uploads.remove("x.csv", "alice", 1.0)
    before = store.profiles()
    with pytest.raises(BadInput) as told:
        uploads.keep(name, text.encode(), "alice", 2.0)
    assert said in str(told.value)
    assert store.profiles() == before


def test_all_profiles_together_are_bounded(
    store: DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = profile(0.1).encode()
    monkeypatch.setattr(uploaded_profiles, "UPLOADS_BYTES_MAX", 2 * len(raw))
    uploads = UploadedProfiles(store)
    for name in ("a.csv", "b.csv", "a.csv"):
        uploads.keep(name, raw, "alice", 1.0)
    with pytest.raises(BadInput, match="bytes of all profiles together"):
        uploads.keep("c.csv", raw, "alice", 1.0)


def test_the_commands_of_the_documentation(
    tmp_path: Path, store: DatabaseStore, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text(profile(0.01))
    (tmp_path / "nowhere").mkdir()
    (tmp_path / "nowhere/policy.yaml").write_text(POLICY)
    (tmp_path / "wrong.csv").write_text("no profile")
    with Serving(boards.board(), profiles=UploadedProfiles(store)) as served:
        url = ("--controller", served.url)
        assert run(["upload", str(tmp_path / "a.csv"), *url]) == 0
        assert "profile a.csv uploaded by" in capsys.readouterr().out
        assert run(["profiles", *url]) == 0
        assert capsys.readouterr().out.startswith("a.csv  ")
        assert run(["check", str(tmp_path / "nowhere/policy.yaml"), *url]) == 0
        assert "uploaded a.csv" in capsys.readouterr().out
        with pytest.raises(BadInput, match=r"wrong\.csv:1"):
            run(["upload", str(tmp_path / "wrong.csv"), *url])
        assert run(["remove", "a.csv", *url]) == 0
        with pytest.raises(BadInput, match="no profile"):
            run(["remove", "a.csv", *url])
        assert served.post("/api/v1/profiles/a.csv", b"{}", origin="http://x").status == 403
    assert store.profiles() == ()


OTHER_UID = 65534
AS_OTHER = """
import sys, urllib.request
mark = {"content-type": "application/json", "x-joulecut-command": "1"}
mark |= {"authorization": sys.argv[3]} if sys.argv[3:] else {}
try:
    urllib.request.urlopen(urllib.request.Request(sys.argv[1], sys.argv[2].encode(), mark))
except urllib.error.HTTPError as refused:
    print(refused.code, refused.read().decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user")
def test_another_user_of_the_machine_commands_nothing(store: DatabaseStore) -> None:
    UploadedProfiles(store).keep("a.csv", profile(0.1).encode(), "alice", 1.0)
    with Serving(boards.board(), profiles=UploadedProfiles(store)) as served:
        for path, body in (
            ("profiles/a.csv", '{"content": "x"}'),
            ("profiles/a.csv/remove", "{}"),
            ("jobs/gpt3-175b/pause", "{}"),
            ("restore", '{"all": true}'),
        ):
            url = f"{served.url}/api/v1/{path}"
            asked = ["/usr/bin/python3", "-c", AS_OTHER, url, body]
            said = subprocess.check_output(
                asked, text=True, cwd="/", user=OTHER_UID, group=OTHER_UID
            )
            assert said.startswith("403"), said
    assert [one.digest for one in store.profiles()]


def test_a_profile_in_use_is_replaced_only_where_that_is_asked(
    tmp_path: Path, store: DatabaseStore
) -> None:
    board = with_a_profile_in_use()
    (tmp_path / "a.csv").write_text(profile(0.2))
    with Serving(board, profiles=UploadedProfiles(store)) as served:
        asked = ["upload", str(tmp_path / "a.csv"), "--controller", served.url]
        name = board.jobs[0].view.policy.name
        with pytest.raises(BadInput, match=f"in use by {name}.*--replace"):
            run(asked)
        assert store.profiles() == ()
        assert run([*asked, "--replace"]) == 0
    assert len(store.profiles()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user")
def test_a_profile_in_use_is_replaced_by_those_with_that_role_alone(
    tmp_path: Path, store: DatabaseStore
) -> None:
    board = with_a_profile_in_use()
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    users = dict.fromkeys(("operator", "planner", "prometheus"), hashed)
    (tmp_path / "web.yaml").write_text(yaml.safe_dump({"basic_auth_users": users}))
    roles = Roles(command=("operator",), replace=("planner",))
    library, web = UploadedProfiles(store), WebConfig(tmp_path / "web.yaml", pytest.fail)
    expected = {
        ("operator", "a.csv"): "403", ("prometheus", "a.csv"): "403", ("planner", "a.csv"): "",
        ("operator", "b.csv"): "", ("prometheus", "b.csv"): "403",
    }  # fmt: skip
    with Serving(board, profiles=library, web=web, roles=roles) as served:
        for (user, name), status in expected.items():
            url = f"{served.url}/api/v1/profiles/{name}"
            body = json.dumps({"content": profile(0.2), "replace": True})
            token = base64.b64encode(f"{user}:secret".encode()).decode()
            asked = ["/usr/bin/python3", "-c", AS_OTHER, url, body, f"Basic {token}"]
            said = subprocess.check_output(
                asked, text=True, cwd="/", user=OTHER_UID, group=OTHER_UID
            )
            assert said[:3] == status, (user, name, said)
    assert sorted(one.name for one in store.profiles()) == ["a.csv", "b.csv"]
