"""`joulecut model serving`: prefill and decode of a model, and their best clocks."""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from joulecut_cli import figures, plot
from joulecut_engine.panel import LINES
from joulecut_lab.model.serving import (
    BYTES,
    Choice,
    Served,
    Serving,
    best_clock,
    largest_batch,
    over_clocks,
    serve,
)
from joulecut_lab.model_command.shown import gigabytes
from joulecut_lab.run_file import RunFile, of_mapping
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput

Row = tuple[float, int, dict[str, Choice | None]]  # limit, batch, best clocks by phase
LEAST_SLOWER = 1.0 + 1e-9
SLOWER = (1.0, 1.05, 1.1, 1.25)  # limits over the fastest time where none are given
LOWEST_SHARE, STEP_MHZ = 0.3, 15.0  # of the highest clock: below, both phases only get dearer
BASIS = (
    "predicted at level formula, not measured; 107 published throughputs of H100, H200 and B200 "
    "are met with a mean error of 12 %"
)


def run(options: Namespace) -> int:
    """Raises BadInput, Unavailable."""
    picture = plot.target(options.plot)
    file = _named(options)
    first = Serving(
        tensor=options.tensor, pipeline=options.pipeline, batch=1, prompt=options.prompt,
        output=options.output, dtype=options.dtype,
        cache_bytes=options.cache_bytes or min(2.0, max(1.0, BYTES[options.dtype])),
    )  # fmt: skip
    try:
        served = [
            serve(file.architecture, file.system, replace(first, batch=batch))
            for batch in _batches(options.batch, file, first)
        ]
    except ValueError as error:
        key, _, rest = str(error).partition(": ")
        raise BadInput(f"--{key}", *rest.split("; allowed: ")) from None
    fitting = [one for one in served if one.fits] or served
    clocks = _clocks(file.system.clock_max_mhz)
    best: list[Row] = []
    for limit_s in [one / 1e3 for one in options.max_token_ms] or [
        factor * fitting[-1].token_s for factor in SLOWER
    ]:
        quick = [one for one in fitting if one.token_s <= limit_s * LEAST_SLOWER]
        batch = max((one.serving.batch for one in quick), default=fitting[0].serving.batch)
        asked = replace(first, batch=batch)
        swept = over_clocks(file.architecture, file.system, asked, clocks)
        best.append((limit_s, batch, _both(swept, limit_s)))
    if picture is not None:
        swept_by = {
            f"batch {one.serving.batch}":
            over_clocks(file.architecture, file.system, one.serving, clocks)
            for one in fitting[-len(LINES):]
        }  # fmt: skip
        _draw(picture, file, first, swept_by)
    if options.json:
        rows = [{**asdict(one), **_sums(one)} for one in served]
        chosen = [
            {"limit_s": limit_s, "batch": batch,
             **{phase: choice and _choice(choice) for phase, choice in pair.items()}}
            for limit_s, batch, pair in best
        ]  # fmt: skip
        print(json.dumps({"served": rows, "best_clocks": chosen}, allow_nan=False, indent=1))
        return FINE
    print("\n".join([_title(file, first), BASIS, "", *_served(served), "", *_chosen(best)]))
    return FINE


def _named(options: Namespace) -> RunFile:
    keys = {"model": options.model, "system": options.system, "run": {"gpus": 1}}
    if str(options.model).endswith(".json"):
        keys["model"] = {"huggingface": options.model}
    return of_mapping(keys, "joulecut model serving")


def _batches(asked: Sequence[int], file: RunFile, first: Serving) -> list[int]:
    """Those asked for; else powers of four up to the largest batch that fits, and that."""
    if asked:
        return list(asked)
    most = max(1, largest_batch(file.architecture, file.system, first))
    return [*(4**k for k in range(8) if 4**k < most), most]


def _clocks(highest_mhz: float) -> list[float]:
    count = int((1.0 - LOWEST_SHARE) * highest_mhz / STEP_MHZ)
    return [highest_mhz - STEP_MHZ * k for k in range(count, -1, -1)]


def _both(swept: Sequence[Served], limit_s: float) -> dict[str, Choice | None]:
    """Decoding within a time between tokens, prefill within as much of its own fastest time."""
    fastest = swept[-1]
    longer = limit_s / fastest.token_s
    return {
        "decode": best_clock(swept, "decode", limit_s),
        "prefill": best_clock(swept, "prefill", longer * fastest.prefill.time_s),
    }


def _title(file: RunFile, one: Serving) -> str:
    return (
        f"{file.architecture.name or 'model'} on {one.gpus} x {file.system.name}: tensor "
        f"{one.tensor} x pipeline {one.pipeline}, {one.dtype}, {one.prompt} tokens in, "
        f"{one.output} out"
    )


def _served(found: Sequence[Served]) -> list[str]:
    head = ["batch", "prefill", "J/token in", "token", "tokens/s out", "J/token out", "clock",
            "cache", "memory"]  # fmt: skip
    rows = [
        [str(one.serving.batch), figures.seconds(one.prefill.time_s),
         f"{one.prefill_j_per_token:.3g}", figures.seconds(one.token_s),
         f"{one.output_tokens_per_s:,.0f}", f"{one.decode_j_per_token:.3g}",
         f"{one.decode.clock_mhz:.0f} MHz", gigabytes(one.cache_bytes),
         gigabytes(one.weights_bytes + one.cache_bytes) + ("" if one.fits else " (too much)")]
        for one in found
    ]  # fmt: skip
    note = "tokens/s with prefill; energy with hosts; memory of the fullest GPU"
    return [*figures.table(head, rows, frozenset(head)), note]


def _chosen(best: Sequence[Row]) -> list[str]:
    head = ["limit a token", "batch", "decode at", "token", "J/token out", "saved", "prefill at",
            "prefill", "J/token in", "saved "]  # fmt: skip
    rows = []
    for limit_s, batch, pair in best:
        cells = [figures.seconds(limit_s), str(batch)]
        for phase in ("decode", "prefill"):
            one = pair[phase]
            cells += [figures.NONE] * 4 if one is None else [
                f"{one.best.serving.clock_mhz:.0f} MHz", figures.seconds(one.time_s),
                f"{one.j_per_token:.3g}", figures.percent(one.saved_ratio),
            ]  # fmt: skip
        rows.append(cells)
    title = "cheapest clocks within a limit on the time of a token, of the largest batch that can"
    note = "- out of reach; prefill may slow as decode does"
    return [title, *figures.table(head, rows, frozenset(head)), note]


def _sums(one: Served) -> dict[str, float]:
    names = ("token_s", "output_tokens_per_s", "prefill_j_per_token", "decode_j_per_token")
    return {name: getattr(one, name) for name in names}


def _choice(one: Choice) -> dict[str, Any]:
    return {
        "limit_s": one.limit_s, "clock_mhz": one.best.serving.clock_mhz, "time_s": one.time_s,
        "j_per_token": one.j_per_token, "saved_ratio": one.saved_ratio,
    }  # fmt: skip


def _draw(
    picture: Any, file: RunFile, first: Serving, swept: Mapping[str, Sequence[Served]]
) -> None:
    from joulecut_engine.panel import figure
    from joulecut_lab.model_chart import serving_panels

    drawn = figure(serving_panels(swept), columns=3)
    plot.write(picture, _title(file, first), [drawn], ((), ()), [BASIS])
