"""Published throughputs of inference engines, output tokens per second, beside the model's.

    python benchmarks/serving_published.py

Under full load requests wait in a queue, and as many run at once as the cache holds. Which batch
that is the tables do not say: the model finds it. Nothing is fitted to them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.serving import BYTES, Served, Serving, largest_batch, serve

SOURCES = {
    "TensorRT-LLM 1.0": "docs/source/performance/perf-overview.md, commit 00f37686: full load",
    "NIM 1.8": "NVIDIA NIM LLM benchmarking 1.0.0, performance: by concurrency",
    "vLLM": "vLLM's performance benchmark, build 9515: latency tests, batch 8",
    "SGLang 0.3": "sgl-project/sglang, benchmark/benchmark_vllm_060/README.md: offline, ShareGPT",
    "vLLM 0.6": "the same page",
}
TENSORRT = "TensorRT-LLM 1.0"
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
SHAREGPT = 227, 194  # mean tokens in and out of its requests (sglang issue 1639; this page)
# Other engines: model, system, tensor parallelism, type, batch (0: full load), lengths, tokens/s.
MORE = (
    *(("NIM 1.8", "llama-3-70b", "dgx-h100", 2, "fp8", batch, (5000, 500), rate)
      for batch, rate in ((1, 51.67), (5, 218.48), (25, 623.4), (50, 814.37))),
    *(("vLLM", model, "dgx-h200", tensor, "bf16", 8, (32, 128), 8 * 128 / latency_s)
      for model, tensor, latency_s in (("llama-3-8b", 1, 0.833421), ("llama-3-70b", 4, 2.07753),
                                       ("mixtral-8x7b", 2, 1.91744))),
    ("SGLang 0.3", "llama-3-70b", "dgx-h100", 4, "bf16", 0, SHAREGPT, 3856.01),
    ("SGLang 0.3", "llama-3-8b", "dgx-a100", 1, "bf16", 0, SHAREGPT, 4281.51),
    ("vLLM 0.6", "llama-3-70b", "dgx-h100", 4, "bf16", 0, SHAREGPT, 3700.64),
    ("vLLM 0.6", "llama-3-8b", "dgx-a100", 1, "bf16", 0, SHAREGPT, 4132.37),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Throughput:
    """One published number beside ours."""

    engine: str
    model: str
    system: str
    served: Served
    published: float

    @property
    def error(self) -> float:
        return self.served.output_tokens_per_s / self.published - 1.0


def throughputs() -> Iterator[Throughput]:
    asked: list[tuple[Any, ...]] = [
        (TENSORRT, model, system, tensor, dtype, 0, (prompt, output), rate, requests)
        for (model, system, tensor, dtype), rates in PUBLISHED.items()
        for (prompt, output, requests), rate in zip(LENGTHS, rates, strict=True)
        if rate
    ] + [(*one, BATCH_MAX) for one in MORE]
    for engine, model, system, tensor, dtype, batch, (prompt, output), rate, requests in asked:
        one = Serving(tensor=tensor, prompt=prompt, output=output, dtype=dtype,
                      cache_bytes=max(1.0, BYTES[dtype]))  # fmt: skip
        shape, card = ARCHITECTURES[model], SYSTEMS[system]
        most = min(max(1, largest_batch(shape, card, one)), BATCH_MAX, requests)
        served = serve(shape, card, replace(one, batch=batch or most))
        yield Throughput(engine, model, system, served, rate)


def errors(some: Sequence[Throughput]) -> tuple[str, str, str]:
    """Their number, mean error and bias."""
    each = [100.0 * one.error for one in some]
    mean = sum(map(abs, each)) / len(each)
    return str(len(each)), f"{mean:.1f} %", f"{sum(each) / len(each):+.1f} %"


def main() -> None:
    groups: dict[tuple[str, ...], list[Throughput]] = {}
    every = list(throughputs())
    for one in every:
        asked = one.served.serving
        key = one.engine, one.model, one.system, asked.dtype, str(asked.tensor)
        groups.setdefault(key, []).append(one)
    print("| engine | model | system | type | tensor | rows | mean error | bias |")
    print("|---|---|---|---|---|---|---|---|")
    for key, some in groups.items():
        print("|", " | ".join((*key, *errors(some))), "|")
    print("| all |  |  |  |  |", " | ".join(errors(every)), "|\n")
    print("; ".join(f"{name}: {source}" for name, source in SOURCES.items()))


if __name__ == "__main__":
    main()
