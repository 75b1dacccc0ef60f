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
    TIMES,
    LineReader,
    LogSource,
    Reading,
)
from joulecut_wire.errors import BadInput

MEGATRON = (
    "iteration {:8}/{} | consumed samples: 800 | elapsed time per iteration (ms): {} | "
    "learning rate: 1.342E-04 | lm loss: 7.3"
)
BAR = "|███▎      | {}/{} [{}"
ESC, UP = "\x1b", "\x1b[A"


def _reader(
    pattern: str, *, samples: float = 0.0, tokens: float = 0.0, accumulation: int = 1
) -> LineReader:
    expression = re.compile(PRESETS.get(pattern, pattern))
    return LineReader(LogSource("demo", "/x", expression, samples, tokens, accumulation))


def _read(reader: LineReader, lines: Sequence[str]) -> list[tuple[int, float]]:
    found = [reader.read(line, 0.0) for line in lines]
    return [(one.number, round(one.duration_s, 4)) for one in found if one]


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
