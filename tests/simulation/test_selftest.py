"""`joulecut selftest --write` over cards of the fake driver, and over lies planted in it.

A lie contradicts a reading or a write, and is found; what a card is known to do is no alarm.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from driven_agent import agent_on, fake_driver
from running_agent import PATIENCE_S, RunningAgent, eventually

from fixture import FakeNvml
from joulecut_wire import codec
from joulecut_wire.messages import Command, Setting

CARDS = ("a40", "a100", "h100", "h200", "b200", "b300", "gh200")
LOCK, RESET = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"
COMMAND = str(Path(sys.executable).with_name("joulecut"))
BUSY = Path(__file__).parents[1] / "fake_nvml" / "busy.py"
AT_ONCE = 4  # most of a run is waiting
Plant = Callable[[FakeNvml], Any]

# The lie, its card, how it is planted, and the question that finds it.
LIES: dict[str, tuple[str, Plant, str]] = {
    "late sets": ("h100", lambda node: node.set_latency(0, 0.5), "set latency"),
    "ignored sets": ("h100", lambda node: node.set_error(LOCK, 0, gpu=0, lies=True), "locks"),
    "wrong counter scope": ("a100", lambda node: node.set_counter(0, beside_w=60), "counter scope"),
    "counter steps 1 s": ("a40", lambda node: node.set_counter(0, step_s=1.0), "counter step"),
    "holes in the list": (
        "a100", lambda node: node.set_unreached_clocks(0, (615, 630, 900)), "every clock",
    ),
    "reset does nothing": (
        "h200", lambda node: node.set_error(RESET, 0, gpu=0, lies=True), "reset",
    ),
    "only writes are forbidden": ("h100", lambda node: node.set_permission(False), "permission"),
    "throttle without a reason": (
        "a100", lambda node: node.set_clock_ceiling(0, 900), "clock under load",
    ),
    "another writer": (
        "a40", lambda node: node.set_foreign_writer(0, clock_mhz=1005, every_s=2.0),
        "other writers",
    ),
    "UUIDs renumber": ("h100", lambda node: node.set_uuids_renumber(True), "identity"),
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    status: int
    findings: dict[str, dict[str, str]]
    facts: dict[str, Any]
    locks: tuple[Any, ...]
    errors: str

    @property
    def wrong(self) -> set[str]:
        return {name for name, one in self.findings.items() if one["verdict"] == "wrong"}


def _command(driver: FakeNvml, agent: RunningAgent, *flags: str) -> list[str]:
    busy = f"{sys.executable} {BUSY} {driver.path} 0"
    return [
        COMMAND, "selftest", "--write", "--minutes", "0.05", "--load", busy,
        "--agent", agent.address, "--json", *flags,
    ]  # fmt: skip


def _run(model: str, plant: Plant) -> Run:
    with fake_driver(2, model) as driver, agent_on(driver) as agent:
        agent.start()
        plant(driver)
        done = subprocess.run(
            _command(driver, agent), env=driver.environment(), capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.stdout, done.stderr
        (card,) = json.loads(done.stdout)["cards"]
        findings = {one["name"]: one for one in card["findings"]}
        return Run(done.returncode, findings, card["facts"], driver.locks(), done.stderr)


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    """Every card and every lie, some at once."""
    with fake_driver(1):  # built once, or skipped
        pass
    wanted = {card: (card, lambda _: None) for card in CARDS}
    wanted |= {name: (card, plant) for name, (card, plant, _) in LIES.items()}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(wanted, pool.map(lambda one: _run(*one), wanted.values()), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("card", CARDS)
def test_an_honest_card_gives_no_alarm(runs: dict[str, Run], card: str) -> None:
    done = runs[card]
    assert (done.status, done.wrong, done.locks) == (0, set(), (None, None)), done.findings
    for name in ("locks", "reset", "other writers", "at the end"):
        assert done.findings[name]["verdict"] == "ok", done.findings[name]
    scope = "module" if card == "gh200" else "gpu"
    assert done.facts["counter_scope"] == scope
    assert done.facts["set_latency_p5_s"] >= 0.02  # the fake's own
    assert bool(done.facts["capped_mhz"]) is (card != "a100")  # at full load all others are capped


@pytest.mark.long
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found(runs: dict[str, Run], lie: str) -> None:
    done = runs[lie]
    assert done.status == 1, done.errors
    assert LIES[lie][2] in done.wrong, done.findings
    if lie != "another writer" and lie != "reset does nothing":
        assert done.locks == (None, None), "nothing of ours is left"


def test_nothing_is_set_on_a_gpu_in_use() -> None:
    with fake_driver(2) as driver, agent_on(driver) as agent:
        agent.start()
        setting = Setting(driver.uuids[0], 1005)
        command = codec.encode_command(Command(4, "training", 9, 60.0, (setting,), "test"))
        (held,) = codec.decode_results(agent.stub.Apply(command, timeout=PATIENCE_S))
        assert held.accepted
        eventually("the lease", lambda: agent.watch().gpus[0].lease)
        seen = len(driver.writes())
        words = [word for word in _command(driver, agent) if word != "--json"]
        done = subprocess.run(
            words, env=driver.environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "nothing is set: job training holds this GPU's clock" in done.stdout
        assert len(driver.writes()) == seen
        assert agent.describe().epoch_seen == 4  # no new term: no controller is put off


@pytest.mark.parametrize("writes", [1, 2, pytest.param(5, marks=pytest.mark.long)])
def test_ctrl_c_gives_the_clock_back(writes: int) -> None:
    """In a lock, in its reset, and in the middle of the changes."""
    with fake_driver(1) as driver, agent_on(driver) as agent:
        agent.start()
        child = subprocess.Popen(
            _command(driver, agent), env=driver.environment(), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        eventually("a write", lambda: driver.writes_seen() >= writes)
        child.send_signal(signal.SIGINT)
        out, error = child.communicate(timeout=PATIENCE_S)
        assert (child.returncode, "Traceback" in error) == (130, False), (out, error)
        assert driver.locks() == (None,)
        assert agent.watch().gpus[0].lease is None


def test_bad_flags_are_one_line() -> None:
    with fake_driver(1) as driver:
        for flags, said in {
            ("--gpu", "7"): "--gpu",
            ("--write", "--agent", "127.0.0.1:9431"): "--agent",
            ("--load", "'"): "--load",
            ("--write", "--kill"): "--kill: is gone",
        }.items():
            done = subprocess.run(
                [COMMAND, "selftest", *flags], env=driver.environment(), capture_output=True,
                text=True, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
            assert said in done.stderr
        assert driver.writes() == ()
