"""The judge of walks is judged: it passes a good log, and finds each planted violation."""

import contextlib
import copy
import io
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CHECKER = Path(__file__).with_name("checker.py")
KEEPER, FOREIGN, AGENT = 100, 1, 200
JUDGE = runpy.run_path(str(CHECKER))
TRACEBACK = JUDGE["TRACEBACK"]
LOCK, RESET = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"
LIMIT = "nvmlDeviceSetPowerManagementLimit"
TTL_S = 1.0
CONTRACT = {
    "gpus": 3, "ttl_s": TTL_S, "clock_mhz": [510, 1395], "clock_lowest_mhz": 210,
    "power_mw": [150_000, 390_000], "default_mw": 400_000, "others": [FOREIGN], "bystanders": [2],
    "step_mhz": [600], "capped_mhz": {"180": 855},
}  # fmt: skip
Log = list[dict[str, Any]]


def write(
    at_s: float, function: str, first: int = 0, second: int = 0, *, gpu: int = 0,
    pid: int = KEEPER, command: str = "joulecut-agent keeper", done: bool = True, code: int = 0,
) -> dict[str, Any]:  # fmt: skip
    return {
        "at_s": at_s,
        "write": {
            "pid": pid, "gpu": gpu, "function": function, "arguments": [first, second],
            "code": code, "done": done, "begun_s": at_s,
            "command": "" if pid == FOREIGN else command,
        },
    }  # fmt: skip


def lease(asked_s: float, at_s: float, epoch: int = 1, gpu: int = 0) -> dict[str, Any]:
    lasting = {"asked_s": asked_s, "until_s": at_s + TTL_S, "epoch": epoch, "accepted": True}
    return {"at_s": at_s, "lease": {"gpu": gpu, **lasting}}


def end(at_s: float, lock: list[int] | None = None, limit_mw: int = 400_000) -> dict[str, Any]:
    """Of the driver: what GPU 0 has."""
    return {
        "at_s": at_s,
        "found": {"locks": [lock, None, None], "limits_mw": [limit_mw, 400_000, 400_000]},
    }


def good() -> Log:
    """A lease that was renewed once, and ran out; a limit that was put back."""
    return [
        {"at_s": 0.0, "keeper": "down"},
        {"at_s": 1.0, "keeper": "up"},
        write(10.0, LOCK, 210, 1005),
        write(10.0, LIMIT, 250_000),
        lease(9.99, 10.01),
        lease(10.9, 10.91),
        write(11.95, RESET),
        write(11.95, LIMIT, 400_000),
        end(40.0),
    ]


def judged(folder: Path, log: Log, **contract: Any) -> list[str]:
    (folder / "log").write_text("".join(json.dumps(event) + "\n" for event in log))
    (folder / "contract").write_text(json.dumps({**CONTRACT, **contract}))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = JUDGE["main"]([str(folder / "log"), str(folder / "contract")])
    found = [json.loads(line)["what"] for line in said.getvalue().splitlines()]
    assert code == bool(found)
    return found


def without(function: str) -> Callable[[Log], Log]:
    def change(log: Log) -> Log:
        return [e for e in log if e.get("write", {}).get("function") != function]

    return change


def with_more(*events: dict[str, Any]) -> Callable[[Log], Log]:
    return lambda log: [*log, *events]


def changed(place: int, **values: Any) -> Callable[[Log], Log]:
    def change(log: Log) -> Log:
        log[place]["write"].update(values)
        return log

    return change


def late(seconds: float) -> Callable[[Log], Log]:
    def change(log: Log) -> Log:
        log[6]["at_s"] += seconds
        return log

    return change


def _stepped(log: Log, raised_s: float) -> Log:
    """A step down at 10.2 s under a lease that is renewed until 15 s."""
    leases = [lease(10.9 + 0.9 * n, 10.91 + 0.9 * n) for n in range(5)]
    return [
        *log[:4], write(10.2, LOCK, 210, 600), *leases, write(raised_s, LOCK, 210, 1005),
        write(15.4, RESET), write(15.4, LIMIT, 400_000), end(40.0),
    ]  # fmt: skip


def _hangs(for_s: float) -> Log:
    """Three, each begun 2 s after the one before."""
    return [
        event
        for n in range(3)
        for event in (
            {"at_s": 11.0 + 2 * n, "trouble": n, "kind": "hang", "gpu": 0},
            {"at_s": 11.0 + 2 * n + for_s, "over": n},
        )
    ]


BAD: dict[str, tuple[str, Callable[[Log], Log]]] = {
    "a lock that is never reset": ("not restored in time", without(RESET)),
    "a limit that is never put back": ("not restored", lambda log: [*log[:7], *log[8:]]),
    "a reset too late": ("not restored in time", late(2.1)),
    "a reset that the driver refuses": (
        "not restored in time", changed(6, code=999, done=False)),
    "a reset that does nothing, and no other": (
        "not restored in time", changed(6, done=False)),
    "another process writes": (
        "writes", with_more(write(20.0, RESET, pid=AGENT, command="joulecut-agent run"))),
    "a clock below the bounds": ("out of bounds", changed(2, arguments=[210, 450])),
    "a clock above the bounds": ("out of bounds", changed(2, arguments=[600, 1410])),
    "a limit below the bounds": ("out of bounds", changed(3, arguments=[140_000, 0])),
    "a memory lock": (
        "none of the keeper's", with_more(write(20.0, "nvmlDeviceSetMemoryLockedClocks", 1, 1))),
    "a limit above the one found": ("raised", changed(7, arguments=[410_000, 0])),
    "a limit above another writer's": (
        "raised", lambda log: [*log[:5], write(10.5, LIMIT, 200_000, pid=FOREIGN), *log[6:]]),
    "a GPU that no command has named": (
        "no command has named", with_more(write(20.0, LOCK, 210, 1005, gpu=2))),
    "a reset of a GPU that no command has named": (
        "no command has named", with_more(write(20.0, RESET, gpu=2))),
    "a lock in MIG mode": (
        "MIG", with_more({"at_s": 9.0, "mig": True, "gpu": 0})),
    "an older epoch": (
        "epoch 1 was accepted after 2", with_more(lease(12, 12.1, 2), lease(13, 13.1))),
    "a keeper that does not come back": (
        "did not come back", with_more({"at_s": 14.0, "keeper": "down"}, end(90.0))),
    "trouble of another GPU": (
        "not restored in time",
        lambda log: [*late(3.0)(log), {"at_s": 11.0, "trouble": 1, "gpu": 1}]),
    "trouble that begins after the bound": (
        "not restored in time",
        lambda log: [*late(6.0)(log), {"at_s": 14.5, "trouble": 1, "gpu": 0},
                     {"at_s": 17.0, "over": 1}]),
    "calls that hang one after the other, with breaks": (
        "not restored in time", lambda log: [*late(13.5)(log), *_hangs(1.9)]),
    "a lock that the driver did late, and nobody noticed": (
        "not restored in time",
        with_more(write(20.0, LOCK, 210, 900, done=False),
                  write(22.0, LOCK, 210, 900, command=""))),
    "a limit that the driver set late, and nobody noticed": (
        "not restored in time",
        with_more(write(20.0, LIMIT, 250_000, done=False),
                  write(22.0, LIMIT, 250_000, command=""))),
    "a timed step that leases keep low": (
        "step was not raised in time", lambda log: _stepped(log, raised_s=15.3)),
    "a write that the log lacks": ("disagree", with_more(end(41.0, [210, 600]))),
    "no end": ("no end", lambda log: log[:-1]),
}  # fmt: skip


def test_a_good_log_passes(tmp_path: Path) -> None:
    """Also in a process of its own on the standard library alone, as walks run it."""
    assert judged(tmp_path, good()) == []
    words = [sys.executable, "-I", str(CHECKER), str(tmp_path / "log"), str(tmp_path / "contract")]
    assert subprocess.check_output(words, stderr=subprocess.STDOUT) == b""


@pytest.mark.parametrize("name", BAD)
def test_each_planted_violation_is_found(tmp_path: Path, name: str) -> None:
    what, plant = BAD[name]
    found = judged(tmp_path, plant(copy.deepcopy(good())))
    assert any(what in one for one in found), found


EXCUSED: dict[str, Callable[[Log], Log]] = {
    "a timed step that is raised": lambda log: _stepped(log, raised_s=11.6),
    "trouble of its own GPU": lambda log: [
        *late(5.0)(log), {"at_s": 11.0, "trouble": 1, "gpu": 0}, {"at_s": 12.0, "over": 1}],
    "trouble of the whole driver": lambda log: [
        *late(5.0)(log), {"at_s": 11.0, "trouble": 1, "gpu": -1}, {"at_s": 12.0, "over": 1}],
    "calls that hang without a break": lambda log: [*late(13.5)(log), *_hangs(2.1)],
    "the keeper was gone": lambda log: [
        *late(9.0)(log), {"at_s": 11.0, "keeper": "down"}, {"at_s": 19.5, "keeper": "up"}],
    "the machine stood still": lambda log: [
        *late(3.0)(log), {"at_s": 14.0, "stall_s": 1.5}],
    "the driver forgot the lock": lambda log: [
        *without(RESET)(log), {"at_s": 11.5, "forgot": -1}],
    "another writer lowered the limit, and it stays": lambda log: [
        *log[:7], write(10.5, LIMIT, 200_000, pid=FOREIGN), end(40.0, limit_mw=200_000)],
    "after damage to the journal a limit of ours may stay": lambda log: [
        *log[:7], {"at_s": 11.2, "journal": "damaged"}, end(40.0, limit_mw=250_000)],
    "after damage to the journal every GPU is reset": with_more(
        {"at_s": 19.0, "journal": "damaged"}, write(20.0, RESET, gpu=2)),
    "a renewal whose answer was late": lambda log: [
        *late(3.0)(log), {"at_s": 14.0, "lease": {
            "gpu": 0, "asked_s": 11.5, "until_s": 15.0, "epoch": 1, "accepted": False}}],
}  # fmt: skip


@pytest.mark.parametrize("name", EXCUSED)
def test_what_has_a_published_term_is_no_violation(tmp_path: Path, name: str) -> None:
    log = EXCUSED[name](copy.deepcopy(good()))
    for event in log:  # the limit goes back with the lock
        write_ = event.get("write", {})
        if write_.get("function") == LIMIT and write_["arguments"][0] == 400_000:
            event["at_s"] = max(e["at_s"] for e in log if e.get("write", {}).get("gpu") == 0)
    assert judged(tmp_path, log) == []


def test_a_call_that_hung_while_mig_was_switched_on_was_made_before(tmp_path: Path) -> None:
    log: Log = [{"at_s": 9.0, "mig": True, "gpu": 0}, *good()]
    assert "written in MIG mode" in judged(tmp_path, log)
    for event in log:
        if "write" in event:
            event["write"]["begun_s"] = 8.9
    assert "written in MIG mode" not in judged(tmp_path, log)


@pytest.mark.parametrize("gone", [["down", "up"], ["released"]])
def test_a_limit_that_comes_after_its_keeper_is_gone_may_stay(
    tmp_path: Path, gone: list[str]
) -> None:
    asked = write(20.0, LIMIT, 250_000, done=False)
    done = [write(22.0, LIMIT, 250_000, command=""), end(60.0, limit_mw=250_000)]
    events: Log = [{"at_s": 20.5 + n, "keeper": what} for n, what in enumerate(gone)]
    assert judged(tmp_path, [*good()[:-1], asked, *events, *done]) == []
    assert judged(tmp_path, [*good()[:-1], *events, {**asked, "at_s": 21.8}, *done])


def test_a_late_lock_counts_from_when_no_power_limit_hides_it(tmp_path: Path) -> None:
    low = write(20.0, LIMIT, 180_000, pid=FOREIGN)
    lock = write(22.0, LOCK, 210, 1305, command="")
    assert judged(tmp_path, [*good()[:-1], low, lock, end(60.0, [210, 1305], 180_000)]) == []
    high = write(30.0, LIMIT, 400_000, pid=FOREIGN)
    assert judged(tmp_path, [*good()[:-1], low, lock, high, end(60.0, [210, 1305])])
    reset = write(44.0, RESET)
    assert judged(tmp_path, [*good()[:-1], low, lock, high, reset, end(60.0)]) == []


def test_a_traceback_counts_unless_the_interpreter_itself_could_not_start() -> None:
    begin = "agent: ready\nTraceback (most recent call last):\n"
    ours = begin + '  File "/opt/joulecut_agent/keeper/keeper.py", line 1, in <module>\nOSError\n'
    pythons = begin + '  File "<frozen getpath>", line 356, in <module>\nOSError\n'
    assert TRACEBACK.search(ours)
    assert TRACEBACK.search(pythons + ours)
    assert not TRACEBACK.search(pythons)


def test_a_site_s_default_is_a_restore(tmp_path: Path) -> None:
    site = [210, 1380]
    log = changed(6, function=LOCK, arguments=site)(good())
    log[-1] = end(40.0, site)
    assert judged(tmp_path, log, site_default=site) == []
    assert judged(tmp_path, log), "without that default it is a lock"


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    renewals_s=st.lists(st.floats(0.05, 0.95), max_size=8),
    late_s=st.floats(-0.9, 6.0),
)
def test_the_bound_is_ttl_and_grace_after_the_last_renewal(
    tmp_path: Path, renewals_s: list[float], late_s: float
) -> None:
    """Whatever came before: late by more than the grace is a violation, and nothing else is."""
    at_s = 10.0
    log = [write(at_s, LOCK, 210, 1005), lease(at_s, at_s)]
    for wait_s in renewals_s:
        at_s += wait_s
        log.append(lease(at_s, at_s))
    log += [write(at_s + TTL_S + late_s, RESET), end(60.0)]
    assert bool(judged(tmp_path, log)) is (late_s > 2.0)
