"""An estimate in words: what a person asks first, then where time, energy and memory go."""

from typing import Any

from joulecut_cli import figures
from joulecut_engine.money import JOULES_PER_KWH
from joulecut_lab.model.estimate import MEMORIES, Estimate
from joulecut_lab.model.formula import FREE
from joulecut_lab.model.run import Run
from joulecut_lab.run_file import Cost, RunFile

GB = 1e9
DAY_S = 86_400.0
SHARE_MIN = 5e-4  # of the total; rounds to 0.1 %
SMALLER = (
    "Recomputation, zero, sequence_parallel, a smaller microbatch and more GPUs need less; "
    "joulecut model sweep lists the layouts that fit."
)


def as_text(file: RunFile, found: Estimate) -> list[str]:
    run, system = file.run, file.system
    memory = max(found.memory, key=lambda stage: stage.total_bytes)
    lines = [
        title(file),
        f"predicted at level {found.level}; efficiencies of {system.name}, nothing measured here",
        *_stack(file),
        "",
    ]
    if not found.fits:
        over = memory.total_bytes - FREE * system.hbm_bytes
        lines += [
            (
                f"Does not fit: stage {memory.stage} needs {gigabytes(memory.total_bytes)}, "
                f"{gigabytes(over)} more than a GPU has for it: of its "
                f"{gigabytes(system.hbm_bytes)}, {1.0 - FREE:.0%} go to context and fragments."
            ),
            SMALLER,
            "",
        ]
    clock = f"{found.clock_mhz:.0f} MHz" if found.clock_mhz else "highest clock"
    asked = run.clock_mhz or system.clock_max_mhz
    if found.clock_mhz and found.clock_mhz < asked - 0.5:
        clock += f" (the power limit of {system.power_cap_w:.0f} W leaves no more)"
    facts = [
        ("parameters", f"{large(found.parameters)}, "
         f"{large(file.architecture.active_parameters)} of them per token"
         if file.architecture.experts else large(found.parameters)),
        ("FLOPs", f"{large(found.model_flops)} of the model, {large(found.hardware_flops)} done"),
        ("iteration", f"{figures.seconds(found.iteration_time_s)} at {clock}"),
        ("speed", (f"{large(found.tokens_per_s)} tokens/s, MFU {figures.percent(found.mfu)}, "
         f"HFU {figures.percent(found.hfu)}")),
        ("energy", (f"{figures.joules(found.energy_j)} in GPUs, {figures.joules(found.host_j)} "
         f"in hosts, {found.joules_per_token:.4g} J/token")),
        ("power", (f"{figures.watts(found.power_w_per_gpu)} a GPU, "
         f"{figures.watts(found.node_power_w)} a node")),
        ("memory", (f"{gigabytes(memory.total_bytes)} of {gigabytes(system.hbm_bytes)} "
         f"in stage {memory.stage}")),
    ]  # fmt: skip
    lines += [figures.labelled(name, text) for name, text in facts]
    stages = found.mean_breakdown_s if run.pipeline > 1 else {}
    lines += ["", *_shares("time", found.breakdown_s, figures.seconds, found.hidden_s, stages)]
    lines += ["", *_shares("energy", found.energy_breakdown_j, figures.joules)]
    return [*lines, "", *_memory(found), "", *_whole_run(file, found)]


def _stack(file: RunFile) -> list[str]:
    """What a stack sets, with its sources; or what stays off without one."""
    if not file.stack:
        return ["no stack: what a run does not give is off; stack: megatron and others set it"]
    return [
        f"stack {file.stack}: {one.key} {str(one.value).lower()} ({one.source})"
        for one in file.defaults
    ]


def title(file: RunFile) -> str:
    """The run on one line."""
    run = file.run
    keys = ("tensor", "pipeline", "data", "context", "expert")
    split = " x ".join(f"{k} {getattr(run, k)}" for k in keys if getattr(run, k) > 1) or "alone"
    name = file.architecture.name or "model"
    schedule = f"{run.schedule}, " if run.pipeline > 1 else ""
    chunks = f"{run.chunks} chunks, " if run.chunks > 1 else ""
    return (
        f"{name} on {run.gpus} x {file.system.name}: {split}, {schedule}{chunks}"
        f"{run.microbatches} microbatches of {run.microbatch}, "
        f"batch {run.global_batch} x {run.sequence} tokens, {run.dtype}, recompute {run.recompute}"
    )


def totals(cost: Cost, run: Run, found: Estimate) -> dict[str, float]:
    """Of the whole run: iterations, seconds, kWh at the meter and money; of one iteration where
    the file gives no length.
    """
    tokens = run.global_batch * run.sequence
    iterations = cost.iterations or cost.tokens / tokens or 1.0
    seconds = iterations * found.iteration_time_s
    joules = iterations * (found.energy_j + found.host_j)
    kwh = joules * cost.pue / JOULES_PER_KWH
    money = cost.prices.cost(seconds, joules, run.gpus)
    return {"iterations": iterations, "time_s": seconds, "kwh": kwh, "money": money}


def _whole_run(file: RunFile, found: Estimate) -> list[str]:
    cost, sums = file.cost, totals(file.cost, file.run, found)
    one = not (cost.tokens or cost.iterations)
    what = "one iteration" if one else f"{sums['iterations']:,.0f} iterations"
    days = "" if one else f"{sums['time_s'] / DAY_S:,.1f} days, "
    prices = f"{cost.kwh_price:g} a kWh"
    if cost.gpu_hour_price:
        prices += f", {cost.gpu_hour_price:g} a GPU hour"
    if cost.pue != 1.0:
        prices += f", PUE {cost.pue:g}"
    return [f"{what}: {days}{sums['kwh']:,.4g} kWh, cost {sums['money']:,.4g} ({prices})"]


def _shares(
    name: str,
    parts: dict[str, float],
    show: Any,
    hidden: dict[str, float] | None = None,
    mean: dict[str, float] | None = None,
) -> list[str]:
    """Parts of the whole run; of the slowest stage where `mean` has those of all stages."""
    total = sum(parts.values())
    hidden, mean = hidden or {}, mean or {}
    whose = [f"{name} of the slowest stage", "share", "of the mean GPU", "share "]
    head = [f"{name} by part", *(whose if mean else [name, "share"]),
            *(["hidden"] if hidden else [])]  # fmt: skip
    rows = []
    for key, part in parts.items():
        both = [part, *([mean[key]] if mean else [])]
        if max(both) > SHARE_MIN * total or hidden.get(key):
            shares = [figures.percent(one / total if total else None) for one in both]
            cells = [cell for pair in zip(map(show, both), shares, strict=True) for cell in pair]
            more = [show(hidden[key]) if hidden.get(key) else ""] if hidden else []
            rows.append([key.replace("_", " "), *cells, *more])
    return figures.table(head, rows, frozenset(head[1:]))


def _memory(found: Estimate) -> list[str]:
    head = ["stage", *(kind.removesuffix("_bytes") for kind in MEMORIES), "total"]
    rows = [
        [str(stage.stage), *(gigabytes(getattr(stage, kind)) for kind in MEMORIES),
         gigabytes(stage.total_bytes)]
        for stage in _some(found.memory)
    ]  # fmt: skip
    return figures.table(head, rows, frozenset(head))


def _some(stages: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of many stages the first, the second and the last: those between are like the second."""
    return stages if len(stages) <= 8 else (stages[0], stages[1], stages[-1])


def gigabytes(value: float) -> str:
    return f"{value / GB:.2f} GB"


def large(value: float) -> str:
    """A count with the prefixes of science."""
    for size, prefix in ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"),
                         (1e9, "G"), (1e6, "M"), (1e3, "k")):  # fmt: skip
        if abs(value) >= size:
            return f"{value / size:.4g} {prefix}"
    return f"{value:.4g}"
