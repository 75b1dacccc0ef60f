"""Prefill and decode: joules of a token against batch, context and clock."""

from collections.abc import Iterator
from itertools import product

from joulecut_lab.exhibit import PREDICTED, Exhibit
from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.serving import (
    PHASES,
    Phase,
    Served,
    Serving,
    best_clock,
    over_clocks,
    serve,
)
from joulecut_lab.model_chart import serving_panels

SHAPE, CARD = ARCHITECTURES["llama-3-70b"], SYSTEMS["dgx-h100"]
CLOCKS = [15.0 * k for k in range(40, 133)]


def _least(swept: dict[str, tuple[Served, ...]], phase: Phase) -> float:
    many = swept["batch 256"]
    return min(many, key=lambda one: getattr(one, f"{phase}_j_per_token")).serving.clock_mhz


def inference() -> Iterator[Exhibit]:
    swept = {
        f"batch {batch}": over_clocks(
            SHAPE, CARD, Serving(tensor=4, batch=batch, dtype="fp8", cache_bytes=1.0), CLOCKS
        )
        for batch in (1, 16, 256)
    }
    yield Exhibit(
        "Inference: prefill and decode",
        PREDICTED,
        (
            "Llama 3 70B on four H100 with 256 sequences: least joules of a token at "
            f"{_least(swept, 'decode'):.0f} MHz in decoding, at {_least(swept, 'prefill'):.0f} "
            "MHz in prefill. Published throughputs of engines stand beside the model's in "
            "docs/model.md."
        ),
        panels=serving_panels(swept),
        columns=3,
    )
    yield by_context()


CONTEXTS = (1024, 8192, 32768)  # tokens of a prompt
SLOWER = 1.1  # limit on the time of a token, over the fastest


def by_context() -> Exhibit:
    """Time, cache and joules of both phases, and their cheapest clocks within a limit."""
    head = ("requests", "prefill", "a token", "KV cache of a GPU", "J/token in", "J/token out",
            "decode within 10 % at", "prefill within 10 % at")  # fmt: skip
    rows: list[tuple[str, ...]] = [head]
    for batch, prompt in product((1, 16, 64), CONTEXTS):
        asked = Serving(tensor=4, batch=batch, prompt=prompt, dtype="fp8", cache_bytes=1.0)
        one = serve(SHAPE, CARD, asked)
        swept = over_clocks(SHAPE, CARD, asked, CLOCKS)
        cells = []
        for phase in PHASES:
            limit_s = SLOWER * min(getattr(some, phase).time_s for some in swept)
            best = best_clock(swept, phase, limit_s)
            assert best is not None  # the fastest is within
            clock_mhz = best.best.serving.clock_mhz
            cells.append(f"{clock_mhz:.0f} MHz, saves {100 * best.saved_ratio:.0f} %")
        rows.append((f"batch {batch}, {prompt:,} tokens in" + ("" if one.fits else " (too large)"),
                     f"{one.prefill.time_s:.3g} s", f"{1e3 * one.token_s:.1f} ms",
                     f"{one.cache_bytes / 1e9:.2f} GB", f"{one.prefill_j_per_token:.3g}",
                     f"{one.decode_j_per_token:.3g}", *cells))  # fmt: skip
    return Exhibit(
        "Inference: batch, context and clock",
        PREDICTED,
        "Llama 3 70B in FP8 on four H100, hosts included. Decode reads weights and cache, prefill "
        "computes: the cheapest clock within 10 % more time is lower in decoding. "
        "`joulecut model serving` prints it for any model, system and limit.",
        rows=rows,
    )
