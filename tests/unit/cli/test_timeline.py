"""A trace that a viewer can open: one track per stage, nothing overlaps, every clock told."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from jobs import write_job

from joulecut_cli.main import dispatch


def test_a_trace_has_one_track_per_stage_and_the_plan_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "trace.json"
    flags = ["--max-slowdown", "5", "--timeline", str(target), "--json"]
    assert dispatch(["plan", write_job(tmp_path), *flags]) == 0
    plan = json.loads(capsys.readouterr().out)
    trace = json.loads(target.read_text())
    events = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {0: "stage 0", 1: "stage 1", 2: "stage 2"}
    done = [e for e in events if e["ph"] == "X"]
    assert len(done) == len(plan["operations"])
    in_time = sorted(plan["operations"], key=lambda operation: operation["start_s"])
    for event, operation in zip(done, in_time, strict=True):
        assert event["tid"] == operation["stage"]
        assert event["name"] == f"{operation['kind']} {operation['microbatch']}"
        assert event["ts"] == pytest.approx(operation["start_s"] * 1e6)
        assert event["dur"] == pytest.approx(operation["duration_s"] * 1e6)
        assert event["args"]["clock_mhz"] == operation["clock_mhz"]
        power_w = operation["energy_j"] / operation["duration_s"]
        assert event["args"]["power_w"] == pytest.approx(power_w)
    for stage in range(3):
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in done if e["tid"] == stage)
        assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(spans))
    assert trace["otherData"]["iteration_time_s"] == plan["iteration_time_s"]
    times = [e["ts"] for e in events if e["ph"] != "M"]
    assert times == sorted(times)
    assert all(e["ph"] == "M" for e in events[: len(events) - len(times)])
    clocks = [e for e in events if e["ph"] == "C"]
    assert len(clocks) == len(done)
