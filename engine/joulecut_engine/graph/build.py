"""Graph of a schedule: the order of each stage's operations, data dependencies, transfers.

Transfers that take time are operations of their own.
"""

from itertools import pairwise

from joulecut_engine.graph.graph import Circular, Graph, graph_of
from joulecut_engine.graph.pipeline import Kind, Operation, Pipeline
from joulecut_engine.graph.schedules import Program, programs
from joulecut_engine.graph.shape import misfit, part_of

Edges = list[tuple[Operation, Operation]]  # may repeat; `graph_of` keeps one of each


def build(pipeline: Pipeline) -> Graph:
    """Graph of one iteration.

    Raises ValueError if the shape does not fit the schedule, and Circular (a ValueError) if
    synchronous transfers would wait for each other forever.
    """
    complaint = misfit(pipeline)
    if complaint:
        raise ValueError(f"{complaint.key}: {complaint.what}; allowed: {complaint.allowed}")
    written = programs(pipeline)
    edges = _data(pipeline, written)
    if pipeline.tensor_collective:
        edges = _with_tensor_collectives(written, edges)
    _end(pipeline, written)
    for program in written:
        edges.extend(pairwise(program))
    sends: list[Operation] = []
    if pipeline.transfers != "free":
        sends = _send(pipeline, written, edges)
    operations = [*(operation for program in written for operation in program), *sends]
    index = {operation: i for i, operation in enumerate(operations)}
    return graph_of(operations, ((index[a], index[b]) for a, b in edges), pipeline.stages)


def _data(pipeline: Pipeline, written: list[Program]) -> Edges:
    """Data dependencies between operations.

    Weight gradients follow their stage's input gradient by the stage's own order.
    """
    last = pipeline.stages * pipeline.chunks - 1
    done: dict[tuple[int, int, bool], Operation] = {}
    parts = [(o, part_of(pipeline, o.stage, o.chunk)) for program in written for o in program]
    for operation, part in parts:
        if operation.kind != "weight":
            done[part, operation.microbatch, operation.kind == "forward"] = operation
    edges: Edges = []
    for operation, part in parts:
        microbatch = operation.microbatch
        if operation.kind == "forward":
            if part > 0:
                edges.append((done[part - 1, microbatch, True], operation))
        elif operation.kind == "weight":
            edges.append((done[part, microbatch, False], operation))
        else:
            source = (last, microbatch, True) if part == last else (part + 1, microbatch, False)
            edges.append((done[source], operation))
    return edges


def _with_tensor_collectives(written: list[Program], edges: Edges) -> Edges:
    """Add a collective after every forward and every input gradient; returns the edges."""
    gathered: dict[Operation, Operation] = {}
    for program in written:
        longer: Program = []
        for operation in program:
            longer.append(operation)
            if operation.kind == "weight":
                continue
            kind: Kind = "tensor-forward" if operation.kind == "forward" else "tensor-backward"
            collective = Operation(operation.stage, operation.microbatch, kind, operation.chunk)
            gathered[operation] = collective
            longer.append(collective)
        program[:] = longer
    return [(a if b.kind == "weight" else gathered[a], b) for a, b in edges]


def _end(pipeline: Pipeline, written: list[Program]) -> None:
    """Append data-parallel collective and optimizer step, once per GPU after its last gradient.

    Neither waits for other stages.
    """
    for stage, program in enumerate(written):
        if pipeline.data_collective:
            program.append(Operation(stage, 0, "collective"))
        if pipeline.optimizer:
            program.append(Operation(stage, 0, "optimizer"))


def _send(pipeline: Pipeline, written: list[Program], edges: Edges) -> list[Operation]:
    """Put a send of the sending stage on every edge between GPUs; changes `edges`.

    Overlapped: it starts when the data is ready. Synchronous: it also waits for the receiver to
    reach the operation that needs it, and the sender waits for it. All transfers between two
    operations of a GPU run at once, as in a batch of sends and receives; otherwise 1F1B would
    deadlock.
    """
    meets = pipeline.transfers == "synchronous"
    before: dict[Operation, Operation] = {}
    after: dict[Operation, Operation] = {}
    for program in written:
        for first, second in pairwise(program):
            after[first], before[second] = second, first
    sends = []
    between = sorted({edge for edge in edges if edge[0].stage != edge[1].stage})
    edges[:] = [edge for edge in edges if edge[0].stage == edge[1].stage]
    for first, second in between:
        kind: Kind = "send-forward" if second.kind == "forward" else "send-backward"
        send = Operation(first.stage, first.microbatch, kind, first.chunk)
        sends.append(send)
        edges += ((first, send), (send, second))
        if meets and second in before:
            edges.append((before[second], send))
        if meets and first in after:
            edges.append((send, after[first]))
    return sends


def deadlock(error: Circular) -> str:
    """Message for a circle among synchronous transfers."""
    return f"synchronous transfers wait for each other forever: {error}"
