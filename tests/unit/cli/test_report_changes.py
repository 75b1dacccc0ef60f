"""A report of one job has every change of its clocks, each with its reason, and no other job's."""

import json

from joulecut_cli.report.record import changes_json
from joulecut_controller.ports import Event


def event(at: float, kind: str, text: str, *, generation: int = 3, job: str = "j") -> Event:
    settings = {"settings": {"a": 1200, "b": 1200, "c": None}}
    detail = json.dumps(settings) if kind == "apply" else ""
    return Event(at, kind, job, generation, text, detail)


TRAIL = (  # newest first, as a store has it
    event(60.0, "clear", "default clocks: the job ended"),
    event(50.0, "renew", "not renewed: agent lost"),
    event(40.0, "verify", "late: 5.2 s measured", generation=4),
    event(31.0, "apply", "applied: 3 lower", generation=4),
    event(30.0, "plan", "saves 12 %", generation=4),
    event(25.0, "apply", "applied: 1 lower", job="k"),
    event(21.0, "apply", "applied: 2 lower", generation=3),
    event(20.0, "plan", "saves 10 %", generation=3),
)


def test_every_change_comes_with_the_reason_of_its_plan() -> None:
    found = changes_json(TRAIL, "j", 0.0)
    assert [change["kind"] for change in found] == ["apply", "apply", "verify", "clear"]
    assert [change["at_unix_s"] for change in found] == [21.0, 31.0, 40.0, 60.0]
    assert [change["reason"] for change in found] == ["saves 10 %", "saves 12 %", None, None]
    assert found[0]["clocks"] == [
        {"clock_mhz": None, "gpus": 1}, {"clock_mhz": 1200, "gpus": 2},
    ]  # fmt: skip


def test_a_plan_made_before_the_period_still_explains_a_change_in_it() -> None:
    [first, *_] = changes_json(TRAIL, "j", 30.5)
    assert first["generation"] == 4
    assert first["reason"] == "saves 12 %"


def test_a_damaged_line_is_shown_without_its_clocks() -> None:
    for detail in ("", "{", "[]", '{"settings": 3}', '{"settings": {"a": "x"}}', '{"cut": 1}'):
        broken = Event(1.0, "apply", "j", 2, "applied", detail)
        [change] = changes_json([broken], "j", 0.0)
        assert change["clocks"] == []
        assert change["text"] == "applied"
