"""Values of a run's keys: those that a card can do, and every sensible one, for sweeps."""

from typing import Any, get_type_hints

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.run import NUMBERS, WORDS, Run
from joulecut_lab.model.system import System

USUAL = ("tensor", "pipeline", "schedule", "chunks", "microbatch", "recompute",
         "sequence_parallel", "zero", "overlap_gradients", "clock_mhz")  # fmt: skip
MICROBATCH_MAX, CHUNKS_MAX, CONTEXT_MAX, STAGES_MAX = 16, 8, 16, 256
# Shares of the highest clock; below about 0.6 energy rises again, because waiting costs more.
CLOCKS = (1.0, 0.925, 0.85, 0.775, 0.7, 0.625)


OF_CARD = ("dtype", "attention", "sparsity", "clock_mhz")  # keys whose values depend on the card


def impossible(key: str, value: object, system: System) -> tuple[str, str] | None:
    """Why this card cannot do it, and what it can; None where it can.

    Tensor cores before Ampere, which brought TF32, have neither BF16 nor 2:4 sparsity, and
    FlashAttention-2 needs them. FlashAttention-3 is written for Hopper alone.
    """
    low, high, ampere = system.clock_min_mhz, system.clock_max_mhz, system.tf32_tflops > 0.0
    can: dict[str, dict[Any, bool]] = {
        "dtype": dict.fromkeys(WORDS["dtype"], True) | {
            "bf16": ampere, "fp8": system.fp8_tflops > 0.0, "fp4": system.fp4_tflops > 0.0,
        },
        "attention": dict.fromkeys(WORDS["attention"], True) | {
            "flash2": ampere, "flash3": system.attention_kernel == "flash2",
        },
        "sparsity": {1.0: True, 0.5: ampere},
    }  # fmt: skip
    if key == "clock_mhz" and isinstance(value, float | int):
        named = f"0, or {low:g} to {high:g} (system.clock_max_mhz)"
        fits = not value or low <= value <= high
        return None if fits else (f"{value:g} MHz is no clock of {system.name}", named)
    known = can.get(key, {})
    if known.get(value, True):
        return None
    what = "2:4 sparsity" if key == "sparsity" else value
    return f"{system.name} has no {what}", ", ".join(str(one) for one in known if known[one])


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
        "chunks": tuple(n for n in _divisors(layers) if n <= CHUNKS_MAX),
        "microbatch": tuple(n for n in _divisors(batch) if n <= MICROBATCH_MAX),
        "recompute": tuple(w for w in WORDS["recompute"] if architecture.experts or w != "experts"),
        "zero": NUMBERS["zero"],
        "clock_mhz": tuple(round(share * system.clock_max_mhz) for share in CLOCKS),
    }
    if get_type_hints(Run)[key] is bool:
        return (False, True)
    words = values.get(key, WORDS.get(key, ()))
    return tuple(one for one in words if impossible(key, one, system) is None)


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0) if number < 10**6 else (1,)
