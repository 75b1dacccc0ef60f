"""The demo's parts that need no process: files, counting, verdict."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from joulecut_sim.demo import layout, watch
from joulecut_sim.demo.course import holds
from joulecut_sim.demo.layout import Folder
from joulecut_sim.demo.settings import ITERATION_S, STAGES, Settings
from joulecut_sim.demo.summary import Tally, summary
from joulecut_sim.demo.watch import Commands
from joulecut_sim.jobfile import read as read_job
from joulecut_sim.results import Record
from joulecut_sim.skus import A40, CARDS, Sku


def _record(number: int, joules: float = 100.0) -> Record:
    counters = tuple(number * joules / STAGES for _ in range(STAGES))
    return Record(number, 0.3 * number, 0.3, 0.3, joules, (1410,) * STAGES, counters)


@contextmanager
def _served(body: dict[str, bytes]) -> Iterator[str]:
    """A web server whose pages can be changed while it runs; its address."""

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in body else 404)
            self.end_headers()
            self.wfile.write(body.get(self.path, b"{}"))

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        with pytest.MonkeyPatch.context() as patient:
            patient.setattr(watch, "HTTP_S_MAX", 90.0)  # whoever is there answers
            yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def _metrics(accepted: float, refused: float = 0.0) -> bytes:
    return (
        "# TYPE joulecut_control_commands_total counter\n"
        f'joulecut_control_commands_total{{op="apply",result="accepted"}} {accepted}\n'
        f'joulecut_control_commands_total{{op="apply",result="refused"}} {refused}\n'
        'joulecut_control_commands_total{op="renew",result="accepted"} 1234.0\n'
    ).encode()


def test_commands_are_settings_applied_and_survive_a_restarted_agent() -> None:
    body = {"/metrics": _metrics(8.0, 2.0)}
    commands = Commands()
    with _served(body) as address:
        assert commands.look("a", address)
        assert commands.total == 10
        body["/metrics"] = _metrics(3.0)  # counts from 0 again
        assert commands.look("a", address)
        assert commands.total == 13
        body["/metrics"] = _metrics(1e06)
        commands.look("a", address)
        assert commands.total == 1_000_010
    assert not commands.look("a", address)  # nobody there: what was counted stands
    assert commands.total == 1_000_010


@pytest.mark.parametrize("sku", CARDS.values(), ids=lambda sku: sku.name)
def test_the_demo_runs_at_its_own_pace_on_every_card(sku: Sku, tmp_path: Path) -> None:
    settings = Settings(sku=sku)
    folder = Folder(tmp_path)
    layout.write_job(folder, settings)
    job = read_job(folder.job)
    assert len(job.gpus) == STAGES
    done = settings.plant().iterate([sku.clock_max_mhz] * STAGES)
    assert done.duration_s == pytest.approx(ITERATION_S, rel=0.02)
    assert folder.profile.read_text().startswith("stage,instruction,frequency,time,energy\n")
    assert "simulated" in folder.profile.name


def test_the_policy_changes_its_mode_and_nothing_else(tmp_path: Path) -> None:
    folder, settings = Folder(tmp_path), Settings(sku=A40)
    layout.write_policy(folder, settings, "recommend", 0.02)
    before = yaml.safe_load(folder.policy.read_text())
    layout.write_policy(folder, settings, "enforce", 0.02)
    after = yaml.safe_load(folder.policy.read_text())
    assert (before.pop("mode"), after.pop("mode")) == ("recommend", "enforce")
    assert before == after
    assert after["jobs"][0]["pipeline"]["blocking_power_w"] == 70.38


def test_a_phase_begins_with_a_plan_for_its_own_target() -> None:
    asked = {"max_slowdown_ratio": 0.02, "deadline_s": 0.306}
    held = {"mode": "enforce", "slo": asked, "applied": {"deadline_s": 0.3061}}
    assert holds(held, 0.02)
    assert not holds({}, 0.02), "the controller does not answer"
    assert not holds(held | {"applied": None}, 0.02), "default clocks"
    assert not holds(held | {"applied": {"deadline_s": 0.301}}, 0.02), "the plan before"
    assert not holds(held | {"applied": {"deadline_s": 0.345}}, 0.02), "a straggler is waited for"
    assert not holds(held | {"mode": "recommend"}, 0.02)
    before = {"max_slowdown_ratio": 0.0, "deadline_s": 0.306}
    assert not holds(held | {"slo": before}, 0.02), "the policy is not read yet"


def test_the_verdict_is_measured_and_unknown_is_null() -> None:
    tally = Tally(gpus_total=STAGES)
    empty = summary(tally, None)["jobs"][0]
    assert empty["baseline"] == {"iteration_time_s": None, "energy_j": None}
    assert empty["saved_ratio"] is empty["slowdown_ratio"] is empty["possible_saved_ratio"] is None
    for number in range(5):
        tally.baseline.add(_record(number, 100.0))
        tally.controlled.add(_record(number, 90.0))
    told = summary(tally, 0.12)["jobs"][0]
    assert told["saved_ratio"] == pytest.approx(0.1)
    assert told["slowdown_ratio"] == pytest.approx(0.0)
    assert told["possible_saved_ratio"] == 0.12
    json.dumps(summary(tally, 0.12), allow_nan=False)
