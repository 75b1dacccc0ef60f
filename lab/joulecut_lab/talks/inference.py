"""Prefill and decode beside published throughputs of an engine.

Output tokens per second of TensorRT-LLM under full load, by NVIDIA: docs/source/performance/
perf-overview.md of NVIDIA/TensorRT-LLM, release 1.0. Requests of one length wait in a queue; as
many run at once as the cache holds. Which batch that is the table does not say: the model finds it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from joulecut_engine.panel import LINES, Line, Panel
from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.serving import (
    Served,
    Serving,
    best_clock,
    largest_batch,
    over_clocks,
    serve,
)
from joulecut_lab.model_chart import serving_panels
from joulecut_lab.talks.exhibit import PREDICTED, Exhibit

SOURCE = (
    "NVIDIA, TensorRT-LLM 1.0, docs/source/performance/perf-overview.md, commit 00f37686: maximum "
    "throughput, weights and caches as published there"
)
# Tokens in, tokens out, requests of the measurement.
LENGTHS = (
    (128, 128, 30000), (128, 2048, 3000), (128, 4096, 1500), (500, 2000, 3000), (1000, 1000, 3000),
    (1000, 2000, 1500), (2048, 128, 3000), (2048, 2048, 1500), (5000, 500, 1500),
    (20000, 2000, 1000),
)  # fmt: skip
BATCH_MAX = 2048  # the engine's default
# By model, system, tensor parallelism and number type: tokens/s at `LENGTHS`, 0 where not printed.
PUBLISHED = {
    ("llama-3-8b", "dgx-h100", 1, "fp8"):
        (28312, 22714, 14325, 17660, 15220, 13899, 3450, 9305, 3459, 1351),
    ("llama-3-8b", "dgx-h200", 1, "fp8"):
        (27911, 26221, 18027, 20770, 17744, 16828, 3538, 12194, 3902, 1804),
    ("llama-3-70b", "dgx-h100", 2, "fp8"):
        (6378, 6651, 4199, 5222, 4205, 4146, 762, 3082, 898, 437),
    ("llama-3-70b", "dgx-h200", 1, "fp8"):
        (3803, 4336, 2872, 3666, 2909, 2994, 442, 2003, 566, 283),
    ("llama-3-70b", "dgx-b200", 1, "fp4"):
        (11147, 9922, 6831, 7762, 7007, 6271, 1339, 4783, 1459, 665),
    ("llama-3-405b", "dgx-h100", 8, "fp8"):
        (3627, 4340, 3116, 3994, 2919, 2895, 453, 2296, 610, 345),
    ("llama-3-405b", "dgx-h200", 8, "fp8"):
        (3814, 5348, 4741, 4724, 3330, 3722, 456, 2948, 650, 505),
    ("llama-3-405b", "dgx-b200", 4, "fp4"):
        (6281, 8020, 6345, 6244, 5209, 4933, 749, 4212, 1048, 672),
    ("qwen3-235b-a22b", "dgx-h100", 8, "fp8"):
        (0, 19658, 12447, 18351, 14898, 15136, 0, 9924, 3225, 0),
    ("qwen3-235b-a22b", "dgx-h200", 8, "fp8"):
        (30429, 42821, 26852, 28026, 23789, 22061, 3331, 16672, 3623, 1876),
    ("qwen3-235b-a22b", "dgx-b200", 8, "fp4"):
        (63362, 66057, 39496, 57117, 42391, 34105, 7329, 26854, 8190, 4453),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Throughput:
    """One published number beside ours."""

    model: str
    system: str
    served: Served
    published: float

    @property
    def error(self) -> float:
        return self.served.output_tokens_per_s / self.published - 1.0


def throughputs() -> Iterator[Throughput]:
    for (model, system, tensor, dtype), told in PUBLISHED.items():
        for (prompt, output, requests), rate in zip(LENGTHS, told, strict=True):
            if not rate:
                continue
            one = Serving(tensor=tensor, prompt=prompt, output=output, dtype=dtype, cache_bytes=1.0)
            shape, card = ARCHITECTURES[model], SYSTEMS[system]
            batch = min(max(1, largest_batch(shape, card, one)), BATCH_MAX, requests)
            yield Throughput(model, system, serve(shape, card, replace(one, batch=batch)), rate)


def _least(swept: dict[str, tuple[Served, ...]], phase: str) -> float:
    many = swept["batch 256"]
    return min(many, key=lambda one: getattr(one, f"{phase}_j_per_token")).serving.clock_mhz


def exhibits() -> list[Exhibit]:
    found = list(throughputs())
    groups: dict[tuple[str, str], list[Throughput]] = {}
    for one in found:
        groups.setdefault((one.model, one.system), []).append(one)
    head = ("model", "system", "type", "tensor", "rows", "mean error", "bias")
    rows = [head]
    for (model, system), some in groups.items():
        asked, errors = some[0].served.serving, [one.error for one in some]
        rows.append((model, system, asked.dtype, str(asked.tensor), str(len(some)),
                     f"{100 * sum(map(abs, errors)) / len(errors):.1f} %",
                     f"{100 * sum(errors) / len(errors):+.1f} %"))  # fmt: skip
    mean = 100.0 * sum(abs(one.error) for one in found) / len(found)
    ends = min(one.published for one in found), max(one.published for one in found)
    dots = [Line("equal", "base", tuple((end, end) for end in ends), "dashed")]
    for system, colour in zip(dict.fromkeys(one.system for one in found), LINES, strict=False):
        points = tuple((one.published, one.served.output_tokens_per_s)
                       for one in found if one.system == system)  # fmt: skip
        dots.append(Line(system, colour, points, "marks"))
    against = Panel("throughput", "published, tokens/s", "predicted", tuple(dots), log="xy")
    clocks = [15.0 * k for k in range(40, 133)]
    swept = {
        f"batch {batch}": over_clocks(
            ARCHITECTURES["llama-3-70b"], SYSTEMS["dgx-h100"],
            Serving(tensor=4, batch=batch, dtype="fp8", cache_bytes=1.0), clocks,
        )
        for batch in (1, 16, 256)
    }  # fmt: skip
    return [
        Exhibit(
            "Inference: prefill and decode",
            PREDICTED,
            (
                f"{len(found)} published throughputs of three cards and four models are met with a "
                f"mean error of {mean:.1f} %; nothing is fitted to them. Llama 3 70B on four H100 "
                f"with 256 sequences: least joules of a token at {_least(swept, 'decode'):.0f} "
                f"MHz in decoding, at {_least(swept, 'prefill'):.0f} MHz in prefill."
            ),
            SOURCE,
            [against, *serving_panels(swept)],
            rows=rows,
        ),
        by_context(),
    ]


CONTEXTS = (1024, 8192, 32768)  # tokens of a prompt
PHASES: tuple[Literal["decode", "prefill"], ...] = ("decode", "prefill")
SLOWER = 1.1  # limit on the time of a token, over the fastest


def by_context() -> Exhibit:
    """Time, cache and joules of both phases, and their cheapest clocks within a limit."""
    head = ("requests", "prefill", "a token", "KV cache of a GPU", "J/token in", "J/token out",
            "decode within 10 % at", "prefill within 10 % at")  # fmt: skip
    rows: list[tuple[str, ...]] = [head]
    shape, card = ARCHITECTURES["llama-3-70b"], SYSTEMS["dgx-h100"]
    clocks = [15.0 * k for k in range(40, 133)]
    for batch, prompt in product((1, 16, 64), CONTEXTS):
        asked = Serving(tensor=4, batch=batch, prompt=prompt, dtype="fp8", cache_bytes=1.0)
        one = serve(shape, card, asked)
        swept = over_clocks(shape, card, asked, clocks)
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
