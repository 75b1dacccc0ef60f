"""Every sensible value of a run's key, for sweeps."""

from typing import Any, get_args, get_origin, get_type_hints

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.run import RECOMPUTES, SCHEDULES, ZERO_MAX, Run
from joulecut_lab.model.system import System

USUAL = ("tensor", "pipeline", "schedule", "chunks", "microbatch", "recompute",
         "sequence_parallel", "zero", "overlap_gradients", "clock_mhz")  # fmt: skip
MICROBATCH_MAX, CHUNKS_MAX, CONTEXT_MAX, STAGES_MAX = 16, 8, 16, 256
# Shares of the highest clock; below about 0.6 energy rises again, because waiting costs more.
CLOCKS = (1.0, 0.925, 0.85, 0.775, 0.7, 0.625)


def every(key: str, run: Run, architecture: Architecture, system: System) -> tuple[Any, ...]:
    """Divisors for sizes, all words for words; empty for a key that has no such list."""
    gpus, batch, layers = run.gpus, run.global_batch, architecture.layers
    experts = architecture.experts or 1
    values: dict[str, tuple[Any, ...]] = {
        "tensor": tuple(n for n in _divisors(gpus) if architecture.heads % n == 0),
        "pipeline": tuple(n for n in _divisors(gpus) if n <= min(layers, STAGES_MAX)),
        "data": _divisors(gpus),
        "context": tuple(n for n in _divisors(gpus) if n <= CONTEXT_MAX),
        "expert": tuple(n for n in _divisors(gpus) if experts % n == 0),
        # All, because ZB-V and DualPipe-V hold two chunks and ZB-H2 twice the activations.
        "schedule": SCHEDULES,
        "chunks": tuple(n for n in _divisors(layers) if n <= CHUNKS_MAX),
        "microbatch": tuple(n for n in _divisors(batch) if n <= MICROBATCH_MAX),
        "recompute": tuple(w for w in RECOMPUTES if architecture.experts or w != "experts"),
        "zero": tuple(range(ZERO_MAX + 1)),
        "clock_mhz": tuple(round(share * system.clock_max_mhz) for share in CLOCKS),
    }
    kind = get_type_hints(Run)[key]
    if kind is bool:
        return (False, True)
    return values.get(key, get_args(kind) if get_origin(kind) is not None else ())


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0) if number < 10**6 else (1,)
