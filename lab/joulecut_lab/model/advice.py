"""Knobs of a run that lower its peak memory, and by how much each alone does."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from joulecut_lab.model import formula
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.run import NUMBERS, WORDS, Run, misfit
from joulecut_lab.model.runs import Runs
from joulecut_lab.model.system import System

FACTOR = 2  # of a group of GPUs: the next larger one


@dataclass(frozen=True, slots=True)
class Advice:
    """One key of the run at another value, and the bytes that this saves at the peak."""

    key: str
    value: str
    saved_bytes: float
    fits: bool


def advice(architecture: Architecture, system: System, run: Run) -> tuple[Advice, ...]:
    """Knobs that help, largest saving first. A wider group takes its GPUs from `data`."""
    changes = [
        (keys, replace(run, **keys))
        for keys in _changes(run)
        if misfit(replace(run, **keys), architecture) is None
    ]
    if not changes:
        return ()
    runs = Runs.of([run, *(changed for _, changed in changes)])
    found = formula.evaluate(architecture, system, runs)
    before, after = found.memory_bytes[0], found.memory_bytes[1:]
    made = [
        Advice(next(iter(keys)), str(next(iter(keys.values()))).lower(), float(before - bytes_),
               bool(fits))
        for (keys, _), bytes_, fits in zip(changes, after, found.fits[1:], strict=True)
        if bytes_ < before
    ]  # fmt: skip
    return tuple(sorted(made, key=lambda one: -one.saved_bytes))


def _changes(run: Run) -> Iterator[dict[str, Any]]:
    """The knob first, then what changes with it."""
    later = WORDS["recompute"].index(run.recompute) + 1
    yield from ({"recompute": word} for word in WORDS["recompute"][later:])
    flags = ("flash_attention", "fused_loss", *(["sequence_parallel"] if run.tensor > 1 else []))
    yield from ({flag: True} for flag in flags if not getattr(run, flag))
    yield from ({"zero": zero} for zero in NUMBERS["zero"] if zero > run.zero)
    if run.microbatch > 1:
        yield {"microbatch": run.microbatch // 2}
    if run.gradient_bytes > 2:
        yield {"gradient_bytes": 2}
    if run.offload == "none":
        yield from ({"offload": what} for what in WORDS["offload"][1:])
    if run.data % FACTOR == 0:
        for key in ("tensor", "pipeline", "context"):
            yield {key: getattr(run, key) * FACTOR, "data": run.data // FACTOR}
    if run.data * run.context % (run.expert * FACTOR) == 0:
        yield {"expert": run.expert * FACTOR}
