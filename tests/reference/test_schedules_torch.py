"""Our orders against those that torch.distributed.pipelining makes for its schedules.

`torch_schedules.txt` holds what torch 2.13.0 made; where torch is installed it is asked
again. It is no dependency of the tests: without it that comparison is skipped.
"""

from collections import Counter
from pathlib import Path

import orders
import pytest

from joulecut_engine.graph import build
from joulecut_engine.graph.pipeline import Pipeline, Schedule
from joulecut_engine.graph.shape import chunks_of

KEPT = Path(__file__).with_name("torch_schedules.txt")
CLASSES: dict[Schedule, str] = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "zb-h1": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}
SHAPES: list[tuple[Schedule, int, int, int]] = [
    ("gpipe", 4, 6, 1),
    ("1f1b", 4, 8, 1),
    ("1f1b", 3, 4, 1),
    ("interleaved-1f1b", 4, 8, 2),
    ("interleaved-1f1b", 2, 6, 3),
    ("zb-h1", 4, 8, 1),
    ("zb-h1", 4, 6, 1),
    ("zb-h1", 2, 6, 2),
    ("zb-v", 4, 8, 2),
    ("zb-v", 3, 2, 2),
    ("dualpipe-v", 4, 8, 2),
    ("dualpipe-v", 3, 9, 2),
]


def named(schedule: Schedule, stages: int, microbatches: int, chunks: int) -> str:
    return f"{schedule} {stages} x {microbatches} x {chunks}"


def kept() -> dict[str, list[str]]:
    """The texts, by their headings."""
    found: dict[str, list[str]] = {}
    for line in KEPT.read_text().splitlines():
        if line.startswith("#"):
            continue
        if line.startswith("["):
            lines = found.setdefault(line.strip("[]"), [])
        elif line:
            lines.append(line)
    return found


def ours(schedule: Schedule, stages: int, microbatches: int, chunks: int) -> list[str]:
    pipeline = Pipeline(schedule, stages, microbatches, chunks=chunks)
    assert chunks_of(schedule, chunks) == chunks
    return orders.written(pipeline, build(pipeline))


def torchs(schedule: Schedule, stages: int, microbatches: int, chunks: int) -> list[str]:
    """Asks torch for every rank's order; no process group is needed to write it down.

    Overlapped pairs are written one after the other, in torch's order. Forwards are counted
    anew: the table that `Schedule1F1B` prints begins at 1 on the last rank, its run at 0.
    """
    schedules = pytest.importorskip(
        "torch.distributed.pipelining.schedules",
        reason="torch is not installed",
        exc_type=ImportError,
    )
    maker = getattr(schedules, CLASSES[schedule])
    made = object.__new__(maker)
    made._n_microbatches = microbatches
    made.pp_group_size, made.n_local_stages = stages, chunks
    made._num_stages = made.num_stages = stages * chunks
    made.number_of_rounds = max(1, microbatches // stages)
    made.microbatches_per_round = microbatches // made.number_of_rounds
    if schedule in ("gpipe", "1f1b"):
        table = made._get_pipeline_order()
    else:
        table = {rank: made._calculate_single_rank_operations(rank) for rank in range(stages)}
    return [_line(table[rank]) for rank in range(stages)]


def _line(actions: list[object]) -> str:
    forwards: Counter[int] = Counter()
    words = []
    for action in actions:
        if action is None:
            continue
        for one in getattr(action, "sub_actions", None) or (action,):
            letter, part = one.computation_type.value, one.stage_index
            if letter not in "FBIW":
                continue
            microbatch = forwards[part] if letter == "F" else one.microbatch_index
            forwards[part] += letter == "F"
            words.append(f"{part}{letter}{microbatch}")
    return " ".join(words)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: named(*shape))
def test_our_order_is_the_one_torch_made(shape: tuple[Schedule, int, int, int]) -> None:
    assert ours(*shape) == kept()[named(*shape)]


def test_every_kept_order_is_compared() -> None:
    headings = {named(*shape) for shape in SHAPES}
    assert set(kept()) == headings


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: named(*shape))
def test_torch_still_makes_it(shape: tuple[Schedule, int, int, int]) -> None:
    assert torchs(*shape) == kept()[named(*shape)]
