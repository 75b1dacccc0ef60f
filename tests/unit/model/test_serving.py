"""Prefill and decode: public throughputs are met, and what physics demands holds."""

from dataclasses import replace

import pytest
from serving_published import SOURCES, TENSORRT, throughputs

from joulecut_lab.model.catalogue import ARCHITECTURES, SYSTEMS
from joulecut_lab.model.serving import (
    Serving,
    best_clock,
    cache_bytes_per_token,
    largest_batch,
    over_clocks,
    serve,
    weights_bytes,
)

H100 = SYSTEMS["dgx-h100"]
LLAMA = ARCHITECTURES["llama-3-70b"]


def test_published_throughputs_are_met_within_a_fifth() -> None:
    """Tables of H100, H200 and B200, FP8, FP4 and 16 bits, dense and experts; a scheduler of 2024
    is not modelled, so SGLang's own comparison is only an upper end.
    """
    by: dict[str, list[float]] = {}
    for one in throughputs():
        by.setdefault(one.engine, []).append(one.error)
        if one.engine == TENSORRT:
            by.setdefault(one.system, []).append(one.error)
    old = {"SGLang 0.3", "vLLM 0.6"}
    assert {"dgx-b200", "dgx-h100", "dgx-h200", "vLLM", "NIM 1.8", *old} < {*by}
    for name, errors in by.items():
        assert sum(map(abs, errors)) / len(errors) <= (0.5 if name in old else 0.20), name
        if name in old:
            assert min(errors) > 0.0
    every = [abs(error) for name in SOURCES for error in by[name]]
    assert len(every) == 118
    assert sum(every) / len(every) <= 0.15


def test_bytes_are_those_of_the_published_shapes() -> None:
    """Llama 3 70B: 8 heads of keys and values, 128 numbers each, 80 layers, 16 bits."""
    one = Serving()
    assert cache_bytes_per_token(LLAMA, one) == 80 * 2 * 8 * 128 * 2
    assert cache_bytes_per_token(LLAMA, replace(one, tensor=4)) == 80 * 2 * 2 * 128 * 2
    assert weights_bytes(LLAMA, one) == pytest.approx(2.0 * LLAMA.parameters, rel=1e-4)
    latent = ARCHITECTURES["deepseek-v3"]
    assert cache_bytes_per_token(latent, one) == 61 * (512 + 64) * 2  # its report, section 2.1.1


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    one = Serving(tensor=4, prompt=4096, output=512)
    most = largest_batch(LLAMA, H100, one)
    assert serve(LLAMA, H100, replace(one, batch=most)).fits
    assert not serve(LLAMA, H100, replace(one, batch=most + 1)).fits
    assert largest_batch(LLAMA, H100, Serving()) == 0  # 141 GB of weights


def test_the_best_clock_keeps_its_limit_and_none_beats_it() -> None:
    clocks = [600.0 + 60.0 * k for k in range(24)]
    swept = over_clocks(LLAMA, H100, Serving(tensor=4, batch=64), clocks)
    limit_s = 1.05 * swept[-1].token_s
    found = best_clock(swept, "decode", limit_s)
    assert found.time_s <= limit_s
    within = [one for one in swept if one.token_s <= limit_s]
    assert found.j_per_token == min(one.decode_j_per_token for one in within)
    assert best_clock(swept, "decode", 0.5 * swept[-1].token_s) is None


def test_stages_hold_less_and_add_to_the_time_of_a_token() -> None:
    one = serve(LLAMA, H100, Serving(tensor=2, batch=32))
    four = serve(LLAMA, H100, Serving(tensor=2, pipeline=4, batch=32))
    assert four.weights_bytes < 0.3 * one.weights_bytes
    assert four.token_s > 0.9 * one.token_s
    assert four.output_tokens_per_s > 2.0 * one.output_tokens_per_s
