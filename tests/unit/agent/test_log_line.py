"""Times in lines of logs, in the forms that public logs and the frameworks' sources have.

What was printed is the truth. A wrong rate is worse than none.
"""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.jobs.log_line import (
    AGREE_LINES,
    PACE_ARRIVALS_MIN,
    PACE_S_MIN,
    PRESETS,
    LineReader,
    LogSource,
    Reading,
)
from joulecut_agent.jobs.log_number import TIMES
from joulecut_wire.errors import BadInput

MEGATRON = (
    "iteration {:8}/{} | consumed samples: 800 | elapsed time per iteration (ms): {} | "
    "learning rate: 1.342E-04 | lm loss: 7.3"
)
BAR = "|███▎      | {}/{} [{}"
ESC, UP = "\x1b", "\x1b[A"


STEP = r"step (?P<iteration>\d+) (?P<s>[\d.]+)"


def _reader(
    pattern: str,
    *,
    samples: float = 0.0,
    tokens: float = 0.0,
    accumulation: int = 1,
    lines: int = 1,
) -> LineReader:
    expression = re.compile(PRESETS.get(pattern, pattern))
    return LineReader(LogSource("demo", "/x", expression, samples, tokens, accumulation, lines))


def _read(reader: LineReader, lines: Sequence[str]) -> list[tuple[int, float]]:
    found = [reader.read(line, 0.0) for line in lines]
    return [(one.number, round(one.duration_s, 4)) for one in found if one]


def _watched(
    reader: LineReader, lines: Sequence[tuple[float, str]]
) -> tuple[list[Reading], list[str]]:
    """Readings and faults of lines that arrive at their times."""
    readings, faults = [], []
    for arrived_s, line in lines:
        try:
            if one := reader.read(line, arrived_s):
                readings.append(one)
        except BadInput as error:
            faults.append(str(error))
    return readings, faults


PUBLIC: dict[str, tuple[str, list[str], list[tuple[int, float]]]] = {
    "megatron": ("megatron", [MEGATRON.format(200, 1000, "430.0")], [(200, 0.43)]),
    "megatron, dated": (
        "megatron",
        [" [2026-08-08 03:12:44.118201] " + MEGATRON.format(1370, 100000, "4812.3")],
        [(1370, 4.8123)],
    ),
    "megatron, coloured": (
        "megatron",
        [f"{ESC}[32m {MEGATRON.format(7, 9, f'{ESC}[1m4812.3{ESC}[0m')}{ESC}[0m"],
        [(7, 4.8123)],
    ),
    "megatron, without an end": (
        "megatron", [MEGATRON.format(12, "infinity", "500.5")], [(12, 0.5005)],
    ),
    "megatron, seconds of BLOOM": (
        "megatron",
        [
            ("[default7]: iteration    12695/  115311 | consumed tokens:  20155564032 | "
            "elapsed time per iteration (s): 105.22 | samples per second: 19.463 |")
        ],
        [(12695, 105.22)],
    ),
    "gpt-neox": (
        "megatron",
        [
            ("samples/sec: 31.229 | iteration      210/  320000 | elapsed time per iteration "
            "(ms): 4099.2 | learning rate: 1.0E-05")
        ],
        [(210, 4.0992)],
    ),
    "megatron, the same line of each node": (
        "megatron", [f"{node}: " + MEGATRON.format(1, 9, "440352.6") for node in (0, 1)],
        [(1, 440.3526)],
    ),
    "nemo 1": (
        "nemo",
        [
            ("Epoch 0: : 100%|██████████| 100/100 [10:48<00:00, reduced_train_loss=0.0172, "
            "global_step=99.00, consumed_samples=25600.0, train_step_timing in s=3.130]")
        ] * 2,
        [(99, 3.13)],
    ),
    "nemo 2": (
        "nemo",
        [
            ("Training epoch 0, iteration 1/249 | lr: 3.922e-06 | global_batch_size: 8 | "
            "global_step: 1 | reduced_train_loss: 1.653 | train_step_timing in s: 2.505 | "
            "consumed_samples: 16")
        ],
        [(1, 2.505)],
    ),
    "nanogpt, with an evaluation in it": (
        "nanogpt",
        [
            "iter 999: loss 3.1042, time 1090.11ms, mfu 34.10%",
            "step 1000: train loss 3.1001, val loss 3.1012",
            "iter 1000: loss 3.1012, time 35390.02ms, mfu 30.79%",
            "iter 1001: loss 3.1007, time 1091.52ms, mfu 31.02%",
        ],
        [(999, 1.0901), (1001, 1.0915)],
    ),
    "nanochat": (
        "nanogpt",
        [
            ("step 00499/182414 (0.27%) | loss: 6.397844 | lrm: 1.00 | dt: 3830.24ms | "
            "tok/sec: 8,555 | bf16_mfu: 4.03 | epoch: 1 | total time: 63.01m | eta: 23441.6m")
        ],
        [(499, 3.8302)],
    ),
    "llm.c": (
        "nanogpt",
        [
            ("step    2/19560 | loss 11.0 (+nanz)| norm 15.4 (+nanz)| lr 8.57e-07 | 3056.36 ms | "
            "42.6% bf16 MFU | 171545 tok/s")
        ],
        [(2, 3.0564)],
    ),
    "litgpt, each part of a step": (
        "litgpt",
        [
            f"Epoch 1 | iter {micro} step {micro // 4} | loss train: 1.234, val: n/a | iter time: "
            f"{(360 if micro % 4 == 0 else 340):.2f} ms{' (step)' * (micro % 4 == 0)}"
            " remaining time: 1 day, 2:03:04"
            for micro in range(1, 10)
        ],
        [(1, 1.38), (2, 1.38)],
    ),
    "litgpt, one part of each step": (
        "litgpt",
        [
            f"Epoch 1 | iter {4 * step} step {step} | loss train: 1.234, val: n/a | "
            f"iter time: 340.00 ms (step) remaining time: 2:03:04"
            for step in (1, 2)
        ],
        [(1, 1.36), (2, 1.36)],
    ),
    "hf trainer": (
        "hf",
        [
            "  0%|          | 0/200 [00:00<?, ?it/s]",
            "  5%" + BAR.format(10, 200, "01:19<05:58,  1.89s/it]{'loss': 4.8074, 'epoch': 0.0}"),
            "  5%" + BAR.format(10, 200, "01:19<05:58,  1.89s/it]"),
            " 25%" + BAR.format(5, 20, "00:01<00:03, 30.90it/s]") + UP,
            "[stderr]  10%" + BAR.format(20, 200, "01:30<03:28,  1.86s/it]"),
            "Map: 100%" + BAR.format(177, 177, "00:00<00:00, 1165.37 examples/s]"),
            "Loading checkpoint shards: 50%" + BAR.format(1, 2, "00:01<00:01,  1.20s/it]"),
        ],
        [(10, 1.89), (20, 1.86)],
    ),
    "tqdm, it/s": (
        "tqdm", [" 15%" + BAR.format(150, 1000, "00:11<01:03, 13.47it/s, loss=2.1]")],
        [(150, 0.0742)],
    ),
    "lightning": (
        "lightning",
        [
            "Epoch 0:   4%" + BAR.format(350, 8000, "00:09<03:23, 37.56it/s, v_num=0]"),
            "Validation DataLoader 0: 100%" + BAR.format(133, 133, "00:07<00:00, 17.44it/s]"),
            "Epoch 1: 100%" + BAR.format(8000, 8000, "02:17<00:00, 38.13it/s, v_num=0]"),
        ],
        [(350, 0.0266), (16000, 0.0262)],
    ),
    "nanotron": (
        "nanotron",
        [
            ("12/21 01:39:51 [INFO|DP=0|TP=0|n7]: iteration: 211364 / 1500000 | consumed_tokens: "
            "480B | time_per_iteration_ms: 8.79K | tokens_per_sec: 182K"),
            ("08/31/2024 14:37:31 [INFO|DP=0|PP=0|TP=0]: iteration: 211365 / 1500000 | "
            "consumed_tokens: 1.02K | elapsed_time_per_iteration_ms: 8811.8 | tokens_per_sec: 1"),
        ],
        [(211364, 8.79), (211365, 8.8118)],
    ),
    "maxtext": (
        "maxtext",
        [
            ("completed step: 49, seconds: 5.018, TFLOP/s/device: 107.127, Tokens/s/device: "
            "6529.527, total_weights: 65536, loss: 10.172")
        ],
        [(49, 5.018)],
    ),
    "mmengine, and mmcv": (
        "mmengine",
        [
            ("2024/05/13 22:58:17 - mmengine - INFO - Iter(train) [   50/40000]  lr: 9.9891e-03  "
            "eta: 16:31:08  time: 0.8793  data_time: 0.0053  memory: 10445  loss: 2.1633"),
            "22:59:17 - mmengine - INFO - Iter(val) [11/11]  data_time: 0.004  time: 0.8",
        ],
        [(50, 0.8793)],
    ),
    "mmcv": (
        "mmengine",
        [
            ("2022-06-07 16:41:17,697 - mmdet - INFO - Epoch [1][20/25]\tlr: 2.500e-03, eta: "
            "0:04:25, time: 0.914, data_time: 0.236, memory: 2790"),
            ("2022-06-07 16:42:17,697 - mmdet - INFO - Epoch [2][10/24]\tlr: 2.500e-03, eta: "
            "0:04:25, time: 0.924, data_time: 0.236, memory: 2790"),
        ],
        [(45, 0.914), (60, 0.924)],
    ),
    "fairseq": (
        "fairseq",
        [
            ('2021-03-08 12:31:36 | INFO | train_inner | {"epoch": 1, "wps": "0", "ups": "0", '
            '"wpb": "16384", "num_updates": "1", "wall": "105"}'),
            ("2023-06-13 17:31:08 | INFO | train_inner | epoch 143:     85 / 282 loss=3.147, "
            "wps=72384.3, ups=1.21, wpb=59997.9, bsz=2186.3, num_updates=40100, lr=0.000157917"),
            ('[2021-03-08 12:31:36][train_inner][INFO] - {"epoch": 1, "wps": "13490.5", "ups": '
            '"0.82", "wpb": "16384", "num_updates": "40200", "lr": "2e-05"}'),
        ],
        [(40100, 0.8289), (40200, 1.2145)],
    ),
    "paddle, PaddleNLP": (
        "paddle",
        [
            ("[2022-08-31 16:19:16,008] [    INFO] - loss: 3.258, learning_rate: 2.99e-05, "
            "global_step: 10, interval_runtime: 2.2591, interval_samples_per_second: 3.541, "
            "interval_steps_per_second: 4.427, epoch: 0.0265")
        ],
        [(10, 0.2259)],
    ),
    "paddle, PaddleFleetX": (
        "paddle",
        [
            ("[2022-09-21 05:43:59,508] [    INFO] - [train] epoch: 0, batch: 1, loss: 11.0, "
            "avg_batch_cost: 0.71029 sec, speed: 1.41 step/s, ips_total: 92269 tokens/s"),
            ("[2022-07-27 12:42:47,600] [ INFO] - global step 3, epoch: 0, batch: 2, loss: 11.0, "
            "avg_reader_cost: 0.00015 sec, avg_batch_cost: 0.70125 sec, speed: 2.00 step/s"),
        ],
        [(1, 0.7103), (3, 0.7013)],
    ),
    "tqdm, described": (
        "tqdm",
        [
            "Loading checkpoint shards:  50%" + BAR.format(1, 2, "00:01<00:01,  1.20s/it]"),
            "Epoch 1/3:  99%" + BAR.format(990, 1000, "16:30<00:10,  1.00s/it, loss=2.1]"),
            "Validation epoch 1:  50%" + BAR.format(50, 100, "00:10<00:10,  1.10s/it]"),
            "Epoch 2/3:   1%" + BAR.format(10, 900, "00:10<14:50,  1.01s/it, loss=2.1]"),
        ],
        [(1990, 1.0), (2010, 1.01)],
    ),
    "tqdm, Steps": (
        "tqdm", ["Steps:   1%" + BAR.format(100, 9000, "03:32<99:99,  2.12s/it, lr=1e-4]")],
        [(100, 2.12)],
    ),
    "bars of epochs, the second one shorter": (
        "tqdm",
        [
            "100%" + BAR.format(1000, 1000, "16:40<00:00,  1.00s/it]"),
            " 50%" + BAR.format(10, 20, "00:10<00:10,  1.00s/it]"),
            "  1%" + BAR.format(10, 900, "00:10<14:50,  1.01s/it]"),
            "  2%" + BAR.format(20, 900, "00:20<14:40,  1.02s/it]"),
        ],
        [(1000, 1.0), (1010, 1.01), (1020, 1.02)],
    ),
    "deepspeed, pipeline": (
        "deepspeed",
        [
            "[2024-03-07 15:27:02,646] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0",
            "steps: 10 loss: 7.8123 iter time (s): 0.936 samples/sec: 136.706",
        ],
        [(10, 0.936)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", PUBLIC)
def test_lines_of_public_logs(kind: str) -> None:
    pattern, lines, printed = PUBLIC[kind]
    assert _read(_reader(pattern), lines) == printed


def test_samples_and_tokens_need_the_size_of_an_iteration() -> None:
    titan = (
        f"[rank0]:[titan] - root - INFO - {ESC}[31mstep: 10  {ESC}[32mloss:  7.1  "
        f"{ESC}[33mmemory: 47.34GiB(59.81%)  {ESC}[34mtps: 10,050  {ESC}[36mtflops: 58{ESC}[0m"
    )
    deepspeed = (
        "[INFO] [timer.py:260:stop] epoch=0/micro_step=796/global_step=199, "
        "RunningAvgSamplesPerSec=58.73, CurrSamplesPerSec=61.35304005128382, MemAllocated=6.01GB"
    )
    assert _read(_reader("torchtitan", tokens=16384), [titan]) == [(10, 1.6302)]
    assert _read(_reader("deepspeed", samples=768), [deepspeed]) == [(199, 12.5177)]
    for pattern, line, key in (
        ("torchtitan", titan, "tokens: N"), ("deepspeed", deepspeed, "samples: N"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=key):
            _reader(pattern).read(line, 0.0)


@pytest.mark.parametrize(
    ("pattern", "line", "reason"),
    [
        (r"(?P<s>[\d.]+)", "13.47 it/s", "13.47 is in it/s; allowed: s"),
        (r"(?P<s>[\d.]+)", "13.47it/s", "13.47 is in it/s"),
        (r"(?P<s>[\d.]+)", "took 13.47 ms", "13.47 is in ms"),
        (r"(?P<s>[\d.]+)$", "elapsed time (ms): 13.47", "13.47 is in ms"),
        (r"(?P<s>[\d.]+)$", "samples/sec: 13.47", "13.47 is in samples/s"),
        (r"(?P<s>[\d.]+)$", "tps: 1347", "1347 is in tokens/s"),
        (r"(?P<ms>[\d.]+)", "13.47 s", "13.47 is in s; allowed: ms"),
        (r"(?P<it_per_s>[\d.]+)", "13.47s/it", "13.47 is in s; allowed: it/s"),
        (r"took (?P<s>[\d.]+)", "took 1,347 s", "part of a number"),
        (r".*(?P<s>\d+)s", "took 13.47s", "part of a number"),
        (r"took (?P<s>\S+)", "took nan s", "no number"),
        (r"(?P<s>[\d.]+)$", "stepTimeMs=13.47", "13.47 is in ms"),
        (r"(?P<s>[\d.]+)$", "tokensPerSec=13.47", "13.47 is in tokens/s"),
        (r"(?P<s>[\d.]+)$", "steps per second: 13.47", "13.47 is in it/s"),
        (r"(?P<s>\d[\d.]*)$", "batches_per_minute=13.47", "13.47 is in it/minutes"),
        (r"(?P<s>[\d.]+)", "13.47 s/sample", "13.47 is in s/samples"),
        (r"(?P<ms>\d[\d.]+)", "time_ms: 2.5%", "2.5 is followed by '%'"),
        (r"(?P<ms>\d[\d.]+)", "time_ms: 2.5/3.5", "2.5 is followed by '/3.5'"),
        (r"time: (?P<s>\d+)", "time: 12:30", "12 is followed by ':30'"),
        (r"time: .*:(?P<s>\d+)", "time: 12:30", "30 is a part of a number"),
        (r"(?P<ms>\d[\d.]+)", "time_ms: -2.5", "a part of a number"),
        (r"(?P<it_per_s>[\d.]+)", "0.01it/s", "rounded to 50%"),
        ("hf", "  5%" + BAR.format(1, 2, "01:19<05:58,  0.01it/s]"), "rounded to 50%"),
        (
            "deepspeed",
            "[Rank 0] rank=0 time (ms) | forward: 1425.20 | backward: 211.12 | step: 649.10",
            "parts of a step",
        ),
        (r"took (?P<s>[\d.]+) s", "took 0.0 s", "above 0"),
    ],
)
def test_a_time_that_is_none_is_refused_with_its_reason(
    pattern: str, line: str, reason: str
) -> None:
    with pytest.raises(BadInput, match=reason):
        _reader(pattern).read(line, 0.0)


@given(st.integers(1000, 10**7), st.sampled_from(["s", "ms"]), st.sampled_from(["s", "ms"]))
def test_a_time_is_read_in_its_own_unit_or_not_at_all(
    thousandths: int, group: str, unit: str
) -> None:
    line = f"step 5 took {thousandths / 1000:.3f} {unit}"
    reader = _reader(rf"took (?P<{group}>[\d.]+)")
    if group != unit:
        with pytest.raises(BadInput):
            reader.read(line, 0.0)
    else:
        found = reader.read(line, 0.0)
        assert found
        assert found.duration_s == pytest.approx(thousandths / 1000 * TIMES[unit][1])


def test_times_far_from_those_before_count_when_they_agree() -> None:
    """An evaluation in a line is left out; a job that has changed is followed."""
    reader = _reader("megatron")
    times_ms = [60_000.0, 1000.0, 1001.0, 1002.0, 35_000.0, 1003.0, 3000.0, 3001.0, 3002.0, 3003.0]
    lines = [MEGATRON.format(i + 1, 99, time) for i, time in enumerate(times_ms)]
    numbers = [number for number, _ in _read(reader, lines)]
    assert numbers == [1, 1 + AGREE_LINES, 6, 6 + AGREE_LINES, 10]


@pytest.mark.parametrize("burst", [1, 20])
def test_lines_that_come_at_another_pace_than_they_say_are_refused(burst: int) -> None:
    """Also where a buffer holds lines back, and beside a pause."""

    def pace(printed_s: float, taken_s: float, pause_s: float = 0.0) -> str:
        reader, arrived_s, text = _reader(r"step (?P<iteration>\d+) (?P<s>[\d.]+)"), 100.0, ""
        arrivals = round(PACE_S_MIN / (burst * taken_s)) + 2 * PACE_ARRIVALS_MIN
        for i in range(arrivals * burst):
            if i % burst == 0:
                arrived_s += burst * taken_s + pause_s * (i == burst * (arrivals // 2))
            try:
                assert isinstance(reader.read(f"step {i + 1} {printed_s:.3f}", arrived_s), Reading)
            except BadInput as error:
                text = str(error)
        return text

    assert not pace(2.0, 2.0, pause_s=900.0)
    assert not pace(2.0, 2.6)
    assert "lines say 2 s an iteration and come every 0.5" in pace(2.0, 0.5)
    assert "lines say 0.2 s an iteration and come every 2" in pace(0.2, 2.0)


def test_accumulation_is_the_operators_word() -> None:
    reader = _reader(r"micro took (?P<ms>[\d.]+) ms", accumulation=8)
    assert _read(reader, ["micro took 340.00 ms"]) == [(1, 2.72)]


def test_means_since_an_epoch_began_become_times_of_their_own() -> None:
    reader = _reader("lightning")
    taken_s, bars, total_s = [0.5] * 400 + [0.6] * 400, [], 0.0
    for i, each_s in enumerate(taken_s):
        total_s += each_s
        bars.append(
            "Epoch 0:  1%" + BAR.format(i + 1, 8000, f"00:09<03:23, {(i + 1) / total_s:.2f}it/s]")
        )
    found = dict(_read(reader, bars))
    assert found
    last = max(found)
    assert found[last] == pytest.approx(0.6, rel=0.02), "the mean since the start is 0.55"
    assert all(found[number] == pytest.approx(0.5, rel=0.02) for number in found if number < 400)


@pytest.mark.parametrize(
    "line",
    [
        "batches_per_second=0.125", "batches_per_sec: 0.125", "steps per second: 0.125",
        "stepsPerSec=0.125", "it/s 0.125", "0.125 iterations per second", "0.125steps/s",
    ],
)  # fmt: skip
def test_words_of_a_rate(line: str) -> None:
    assert _read(_reader(r"(?P<it_per_s>\d[\d.]+)"), [line]) == [(1, 8.0)]


@pytest.mark.parametrize("line", ["time_ms: 2.5K", "time_ms: 2.5e3", "2.5k ms", "2.50E+03ms"])
def test_what_follows_a_number_counts(line: str) -> None:
    assert _read(_reader(r"(?P<ms>\d[\d.]*)"), [line]) == [(1, 2.5)]


@pytest.mark.parametrize(("each_s", "digits"), [(3.1, 2), (20.0, 2), (0.9, 1)])
def test_the_clock_of_a_bar_is_finer_than_its_rounded_mean(each_s: float, digits: int) -> None:
    def clock(i: int) -> str:
        return f"{int(i * each_s) // 60:02d}:{int(i * each_s) % 60:02d}"

    lines = [
        "Epoch 0:  1%" + BAR.format(i, 3000, f"{clock(i)}<9:00, {1 / each_s:.{digits}f}it/s, v=0]")
        for i in range(1, 3000)
    ]
    found = _read(_reader("lightning"), lines)
    assert len(found) > 3000 * each_s / 120
    assert all(seconds == pytest.approx(each_s, rel=0.05) for _, seconds in found)


def test_means_that_stay_too_coarse_are_said_once() -> None:
    reader = _reader(r"step (?P<iteration>\d+) mean (?P<mean_it_per_s>[\d.]+)")
    readings, faults = _watched(reader, [(0.0, f"step {i} mean 0.32") for i in range(1, 3000)])
    assert len(readings) == 1
    assert ["too coarse" in one for one in faults] == [True]


def test_times_that_differ_in_turn_all_count() -> None:
    lines = [(0.0, f"step {i} {(1.0, 9.0)[i % 2]}") for i in range(1, 41)]
    readings, faults = _watched(_reader(STEP), lines)
    assert not faults
    assert sum(one.duration_s for one in readings) / len(readings) == pytest.approx(5.0, rel=0.05)


def test_much_time_left_out_is_said_once() -> None:
    lines = [(0.0, f"step {i} {9.0 if i % 6 == 0 else 1.0}") for i in range(1, 91)]
    readings, faults = _watched(_reader(STEP), lines)
    assert {one.duration_s for one in readings} == {1.0}
    assert ["left out" in one for one in faults] == [True]


def test_a_time_of_all_iterations_since_the_line_before() -> None:
    lines = [(240.0 * i, f"step {100 * i} time 240.0") for i in range(1, 21)]
    pattern = r"step (?P<iteration>\d+) time (?P<{}>[\d.]+)"
    readings, faults = _watched(_reader(pattern.replace("{}", "s")), lines)
    assert (len(readings), len(faults)) == (1, 19), "the second line shows it"
    assert "come every 240 s, 100 iterations each" in faults[0]
    readings, faults = _watched(_reader(pattern.replace("{}", "interval_s")), lines)
    assert {one.duration_s for one in readings} == {2.4}
    assert not faults


def test_time_that_is_not_in_the_lines_is_said_once() -> None:
    lines = [(100.0 + 0.49 * i, "it_per_s 8.0") for i in range(200)]
    readings, faults = _watched(_reader(r"it_per_s (?P<it_per_s>[\d.]+)"), lines)
    assert len(readings) == 199
    assert ["the rest is not timed" in one for one in faults] == [True]


def test_fields_on_rows_of_their_own() -> None:
    pattern = r"step: (?P<iteration>\d+).*?time: (?P<s>[\d.]+)"
    rows = [f"step: {i}\nloss: 3.1\ntime: 0.{40 + i} s\n" for i in range(1, 4)]
    found = _read(_reader(pattern, lines=4), "".join(rows).splitlines())
    assert found == [(1, 0.41), (2, 0.42), (3, 0.43)]
