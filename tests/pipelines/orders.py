"""Schedules as text, and a slow sure way to run them, for tests of the graph."""

from collections.abc import Mapping, Sequence

from joulecut_engine.graph import Graph
from joulecut_engine.graph.pipeline import Kind, Operation, Pipeline
from joulecut_engine.graph.shape import part_of

# Letters of torch.distributed.pipelining: forward, whole backward, input and weight gradient.
LETTERS: dict[Kind, str] = {"forward": "F", "backward": "B", "input": "I", "weight": "W"}


def written(pipeline: Pipeline, graph: Graph) -> list[str]:
    """One line per GPU: part of the model, letter, microbatch, as torch writes them."""
    return [
        " ".join(
            f"{part_of(pipeline, o.stage, o.chunk)}{LETTERS[o.kind]}{o.microbatch}"
            for o in (graph.operations[i] for i in program)
        )
        for program in graph.order
    ]


def spans(
    pipeline: Pipeline,
    programs: Sequence[Sequence[Sequence[Operation]]],
    seconds: Mapping[Kind, float],
) -> list[tuple[float, float, float]]:
    """Runs every GPU's program, blocks of operations one by one: (start, end, busy) of each.

    Written without the product's edges: an operation starts when its GPU is free and what it
    computes on is there; a block starts when all of it could, and hands over at its end. Raises
    RuntimeError where everybody waits.
    """
    last = pipeline.stages * pipeline.chunks - 1
    arrived: dict[tuple[str, int, int], float] = {}
    for microbatch in range(pipeline.microbatches):
        arrived["activation", 0, microbatch] = 0.0
    at = [0] * len(programs)
    free_s, start_s, busy_s = [0.0] * len(programs), [-1.0] * len(programs), [0.0] * len(programs)
    while any(at[gpu] < len(program) for gpu, program in enumerate(programs)):
        moved = False
        for gpu, program in enumerate(programs):
            if at[gpu] == len(program):
                continue
            block = program[at[gpu]]
            needed = [_input_of(pipeline, operation) for operation in block]
            if any(need not in arrived for need in needed):
                continue
            begin_s = max(free_s[gpu], *(arrived[need] for need in needed))
            lasts_s = sum(seconds[operation.kind] for operation in block)
            for operation in block:
                for output in _outputs_of(pipeline, operation, last):
                    arrived[output] = begin_s + lasts_s
            free_s[gpu], busy_s[gpu] = begin_s + lasts_s, busy_s[gpu] + lasts_s
            start_s[gpu] = begin_s if start_s[gpu] < 0 else start_s[gpu]
            at[gpu] += 1
            moved = True
        if not moved:
            raise RuntimeError("deadlock")
    return list(zip(start_s, free_s, busy_s, strict=True))


def _input_of(pipeline: Pipeline, operation: Operation) -> tuple[str, int, int]:
    part = part_of(pipeline, operation.stage, operation.chunk)
    if operation.kind == "weight":
        return ("own gradient", part, operation.microbatch)
    return ("activation" if operation.kind == "forward" else "gradient", part, operation.microbatch)


def _outputs_of(pipeline: Pipeline, operation: Operation, last: int) -> list[tuple[str, int, int]]:
    part = part_of(pipeline, operation.stage, operation.chunk)
    microbatch = operation.microbatch
    if operation.kind == "forward":
        return [("gradient" if part == last else "activation", min(part + 1, last), microbatch)]
    if operation.kind == "weight":
        return []
    return [("own gradient", part, microbatch), ("gradient", part - 1, microbatch)]
