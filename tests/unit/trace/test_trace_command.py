"""`joulecut model trace`: from recorded files to answers and to files of other tools."""

import gzip
import json
from pathlib import Path
from typing import Any

import commands
import pytest

from joulecut_lab.trace import chakra

OPERATIONS = 40
GEMM_US, ADD_US, RING_US = 2000.0, 300.0, 500.0


def _events(rank: int, compute: float = 1.0) -> dict[str, Any]:
    """One step of gemms of 4096 x 4096 x 16384, an add, and an all-reduce beside the next gemm."""
    events: list[dict[str, Any]] = []
    at = 0.0
    for i in range(OPERATIONS):
        shapes = [[4096, 4096], [4096, 16384]]
        events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": at, "dur": 5.0,
                       "pid": 1, "tid": 1, "args": {"External id": i, "Input Dims": shapes,
                                                    "Input type": ["c10::BFloat16"]}})  # fmt: skip
        gemm, add = GEMM_US * compute, ADD_US
        events.append(_kernel("sm80_xmma_gemm_bf16", 7, at, gemm, **{"External id": i}))
        events.append(_kernel("vectorized_elementwise_kernel<4>", 7, at + gemm, add))
        events.append(_kernel(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 20, at + gemm + add, RING_US,
            **{"Collective name": "allreduce", "In msg nelems": 16 << 20, "dtype": "BFloat16",
               "Out msg nelems": 16 << 20, "Group size": 2, "Process Group Ranks": "[0, 1]"},
        ))  # fmt: skip
        at += gemm + add
    return {"traceEvents": events, "distributedInfo": {"rank": rank}}


def _kernel(name: str, stream: int, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "pid": 0,
            "tid": stream, "args": {"device": 0, "stream": stream, **args}}  # fmt: skip


@pytest.fixture
def traces(tmp_path: Path) -> list[str]:
    names = []
    for rank in (0, 1):
        path = tmp_path / f"rank{rank}.json.gz"
        path.write_bytes(gzip.compress(json.dumps(_events(rank)).encode()))
        names.append(str(path))
    return names


def _run(*words: str) -> Any:
    said = commands.run("model", "trace", *words, "--json")
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def test_classes_times_and_energy(traces: list[str]) -> None:
    found = _run(*traces, "--system", "a100-sxm-80gb", "--clock", "1140", "--replay", "900")
    recorded, slow = found["clocks"]
    assert found["ranks"] == 2
    assert recorded["class_s"]["matmul"] == pytest.approx(OPERATIONS * GEMM_US * 1e-6)
    assert recorded["class_s"]["all-reduce"] == pytest.approx(OPERATIONS * RING_US * 1e-6)
    assert recorded["exposed_communication_s"] == pytest.approx(RING_US * 1e-6, rel=0.01)
    matmul_s = slow["class_s"]["matmul"]
    assert matmul_s == pytest.approx(recorded["class_s"]["matmul"] * (0.1 + 0.9 * 1140 / 900))
    assert slow["class_s"]["all-reduce"] == pytest.approx(recorded["class_s"]["all-reduce"])
    assert slow["iteration_time_s"] > recorded["iteration_time_s"]
    for kind, seconds in slow["class_s"].items():
        watts = recorded["class_j"][kind] / recorded["class_s"][kind]
        assert slow["class_j"][kind] / seconds <= watts * (1.0 + 1e-9)


def test_a_replay_starts_from_the_clock_that_the_limit_left(traces: list[str]) -> None:
    """Recorded at 1,980 MHz an H100 was at its 700 W, so locks above what it held change nothing,
    and no lock below draws more energy for the same products."""
    found = _run(*traces, "--system", "h100-sxm", "--clock", "1980", "--replay", "1900,1530,1200")
    recorded, above, near, low = found["clocks"]
    assert above["class_s"]["matmul"] == pytest.approx(recorded["class_s"]["matmul"], rel=1e-3)
    assert above["energy_j"] == pytest.approx(recorded["energy_j"], rel=1e-3)
    assert near["class_s"]["matmul"] < 1.2 * recorded["class_s"]["matmul"]
    assert low["class_s"]["matmul"] > near["class_s"]["matmul"]
    assert low["energy_j"] < near["energy_j"] <= recorded["energy_j"]


def test_a_second_clock_measures_what_each_class_takes_from_it(
    traces: list[str], tmp_path: Path
) -> None:
    """Gemms that follow the clock wholly, adds that do not follow it at all."""
    slow = tmp_path / "slow.json"
    slow.write_text(json.dumps(_events(0, compute=1410 / 1005)))
    found = _run(traces[0], "--clock", "1410", "--also", f"1005={slow}", "--replay", "1200")
    shares = found["clock_independent_share"]
    assert shares["matmul"] == {"share": pytest.approx(0.0, abs=1e-6), "basis": "measured"}
    assert shares["pointwise"] == {"share": pytest.approx(1.0), "basis": "measured"}
    assert shares["all-reduce"]["basis"] == "assumed"
    matmul_s = [one["class_s"]["matmul"] for one in found["clocks"]]
    assert matmul_s[1] == pytest.approx(matmul_s[0] * 1410 / 1200)


def test_the_files_of_other_tools(traces: list[str], tmp_path: Path) -> None:
    out = tmp_path / "chakra"
    found = _run(
        *traces, "--system", "a100-sxm-80gb", "--clock", "1410", "--chakra", str(out),
        "--calibrated", str(tmp_path / "mine.yaml"),
    )  # fmt: skip
    assert {p.name for p in out.iterdir()} == {"trace.0.et", "trace.1.et"}
    again = chakra.read(out / "trace.1.et", 1)
    assert len(again.kernels) == 3 * OPERATIONS
    # what one trace measured predicts another model on other numbers of GPUs
    flops = 2 * 4096 * 4096 * 16384
    efficiency = flops / (GEMM_US * 1e-6) / 312e12
    assert found["system_measured"]["matrix_efficiency"] == pytest.approx(efficiency)
    run = tmp_path / "run.yaml"
    run.write_text("model: gpt3-13b\nsystem: {file: mine.yaml}\n"
                   "run: {gpus: 16, tensor: 8, global_batch: 32}\n")  # fmt: skip
    said = commands.run("model", str(run), "--json")
    assert said.returncode == 0, said.stderr


@pytest.mark.parametrize(("cut", "said"), [(1.0, "apart"), (1.7e15, "0.1")])
def test_times_of_two_clocks_are_refused(tmp_path: Path, cut: float, said: str) -> None:
    """A kernel stamped 1 beside others of 2023; and the same events, all of 2023."""
    events = [_kernel("gemm", 7, cut, 100.0), _kernel("gemm", 20, 1.7e15 + 60, 40.0)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    done = commands.run("model", "trace", str(path))
    assert done.returncode == (2 if said == "apart" else 0)
    assert said in (done.stderr or done.stdout)
    assert done.stderr.count("\n") == done.returncode // 2


def test_a_replay_that_takes_twice_the_recording_is_refused(tmp_path: Path) -> None:
    """Kernels that overlap on one stream follow each other in a replay."""
    events = [_kernel("gemm", 7, 1.7e15 + start, 100.0) for start in (0.0, 1.0, 2.0, 3.0)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    done = commands.run("model", "trace", str(path))
    assert done.returncode == 2
    assert "when its waits are replayed" in done.stderr


def test_replaying_what_was_written_gives_the_same_times(traces: list[str], tmp_path: Path) -> None:
    out = tmp_path / "et"
    first = _run(*traces, "--clock", "1410", "--chakra", str(out))
    again = _run(str(out / "trace.0.et"), str(out / "trace.1.et"))
    assert again["clocks"][0]["iteration_time_s"] == pytest.approx(
        first["clocks"][0]["iteration_time_s"], rel=1e-3
    )
    for kind, seconds in first["clocks"][0]["class_s"].items():
        assert again["clocks"][0]["class_s"][kind] == pytest.approx(seconds, rel=1e-3)


@pytest.mark.parametrize(
    "words",
    [
        ("--replay", "1410"),
        ("--replay", "fast", "--clock", "1410"),
        ("--clock", "0"),
        ("--replay", "²", "--clock", "1410"),
        ("--also", "²=slow.json", "--clock", "1410"),
        ("--also", "slow.json", "--clock", "1410"),
        ("--calibrated", "mine.yaml"),
        ("--system", "a100"),
        ("--perfetto", "trace.json"),
        ("--astra-sim", "out"),
    ],
)
def test_bad_flags_are_one_line(traces: list[str], words: tuple[str, ...]) -> None:
    said = commands.run("model", "trace", traces[0], *words)
    assert said.returncode == 2
    assert words[0] in said.stderr
    assert said.stderr.count("\n") == 1


@pytest.mark.parametrize("lost_us", [0.0, 5.0])
def test_zero_time_stamps_are_left_out_and_counted(tmp_path: Path, lost_us: float) -> None:
    events = [_kernel("gemm", 7, 5e9 + 100.0 * i, 90.0) for i in range(100)]
    events += [_kernel("gemm", 7, 0.0, lost_us) for _ in range(100)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = json.loads(commands.run("model", "trace", str(path), "--json").stdout)
    assert (found["without_time_stamp"], found["kernels"]) == (100, 100)
    assert found["clocks"][0]["iteration_time_s"] == pytest.approx(9.99e-3)
    assert (
        "100 kernels with a time stamp of zero" in commands.run("model", "trace", str(path)).stdout
    )
    events = [_kernel("gemm", 7, 100.0 * i, 90.0) for i in range(100)]
    path.write_text(json.dumps({"traceEvents": events}))
    found = json.loads(commands.run("model", "trace", str(path), "--json").stdout)
    assert found["without_time_stamp"] == 0, "a trace may begin at zero"


def _followed(gap_us: float, count: int = 60) -> list[dict[str, Any]]:
    """Kernels launched early that follow each other after a gap."""
    events, at_us = [], 1000.0
    for i in range(count):
        kernel = _kernel("gemm", 7, round(at_us, 3), 50.0)
        kernel["args"]["correlation"] = i
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1.0 + i,
                  "dur": 0.5, "args": {"correlation": i}}  # fmt: skip
        events += [kernel, launch]
        at_us += 50.0 + gap_us
    return events


@pytest.mark.parametrize(("gap_us", "measured"), [(0.001, False), (0.05, False), (1.5, True)])
def test_no_constant_is_made_of_rounding(tmp_path: Path, gap_us: float, measured: bool) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": _followed(gap_us)}))
    words = ("model", "trace", str(path), "--system", "h100-sxm", "--json")
    found = json.loads(commands.run(*words).stdout)["system_measured"]
    assert ("kernel_s" in found) is measured
    if measured:
        assert found["kernel_s"] == pytest.approx(1.5e-6)


def test_unknown_kernels_are_named_and_no_advice_rests_on_them(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    events = [_kernel("gemm", 7, 100.0, 80.0), _kernel("mystery_v7", 7, 200.0, 20.0)]
    words = ("model", "trace", str(path), "--system", "h100-sxm", "--replay", "1200")
    path.write_text(json.dumps({"traceEvents": events}))
    text = commands.run(*words).stdout
    assert "20.0 % mystery_v7" in text
    found = json.loads(commands.run(*words, "--json").stdout)
    assert [one["clock_mhz"] for one in found["clocks"]] == [1980]
    assert found["clocks"][0]["energy_j"] is None
    assert found["unknown"] == [{"name": "mystery_v7", "share": pytest.approx(0.2)}]
    events[1]["dur"] = 5.0
    path.write_text(json.dumps({"traceEvents": events}))
    found = json.loads(commands.run(*words, "--json").stdout)
    assert len(found["clocks"]) == 2
    assert not found["unknown"]
