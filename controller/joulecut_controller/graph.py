"""The pipeline graph: operations of one iteration and what each must wait for.

Pure. Edges are data dependencies and the order in which a stage works through its
operations; neither carries communication time here.
"""

from dataclasses import dataclass
from itertools import pairwise

from joulecut_controller.workload import Kind, Operation, Pipeline


@dataclass(frozen=True, slots=True)
class Graph:
    """A directed acyclic graph in topological order.

    `operations[i]` may depend only on operations before it; `edges` holds index pairs
    (before, after), sorted and unique. `order[s]` lists the indices of stage s in the
    order in which it runs them.
    """

    operations: tuple[Operation, ...]
    edges: tuple[tuple[int, int], ...]
    order: tuple[tuple[int, ...], ...]


def build(pipeline: Pipeline) -> Graph:
    """The graph of one iteration, in waves: operations in a wave depend on earlier waves only.

    Raises ValueError where the schedule is not one of `workload.SCHEDULES` or a size is
    below 1.
    """
    stages, microbatches = pipeline.stages, pipeline.microbatches
    if stages < 1 or microbatches < 1:
        raise ValueError(f"{stages} stages x {microbatches} microbatches: each is at least 1")
    programs = [_program(pipeline, stage) for stage in range(stages)]
    operations = _in_waves(programs)
    index = {operation: i for i, operation in enumerate(operations)}
    edges: set[tuple[int, int]] = set()
    for program in programs:
        edges.update((index[a], index[b]) for a, b in pairwise(program))
        for operation in program:
            edges.update((index[need], index[operation]) for need in _needs(operation, stages))
    return Graph(
        operations=operations,
        edges=tuple(sorted(edges)),
        order=tuple(tuple(index[operation] for operation in program) for program in programs),
    )


def _program(pipeline: Pipeline, stage: int) -> list[Operation]:
    """The order in which a stage works; microbatch 0 comes first among its kind.

    1F1B (PipeDream-Flush, as in Megatron-LM and torch.distributed.pipelining): the later
    the stage, the fewer forwards before its first backward.
    """
    count = pipeline.microbatches

    def of(kind: Kind) -> list[Operation]:
        return [Operation(stage, microbatch, kind) for microbatch in range(count)]

    if pipeline.schedule == "gpipe":
        return of("forward") + of("backward")
    if pipeline.schedule != "1f1b":
        raise ValueError(f"schedule {pipeline.schedule!r} is not gpipe or 1f1b")
    forwards, backwards = of("forward"), of("backward")
    warmup = min(pipeline.stages - stage - 1, count)
    steady = [
        operation for pair in zip(forwards[warmup:], backwards, strict=False) for operation in pair
    ]
    return forwards[:warmup] + steady + backwards[count - warmup :]


def _needs(operation: Operation, stages: int) -> list[Operation]:
    """What an operation's input comes from; nothing for the first forward."""
    stage, microbatch, kind = operation.stage, operation.microbatch, operation.kind
    if kind == "forward":
        return [Operation(stage - 1, microbatch, "forward")] if stage > 0 else []
    if stage == stages - 1:
        return [Operation(stage, microbatch, "forward")]
    return [Operation(stage + 1, microbatch, "backward")]


def _in_waves(programs: list[list[Operation]]) -> tuple[Operation, ...]:
    """Every stage runs its next operation as soon as its input is there, a wave at a time."""
    stages = len(programs)
    done: set[Operation] = set()
    position = [0] * stages
    result: list[Operation] = []
    while len(result) < sum(map(len, programs)):
        wave = [
            program[position[stage]]
            for stage, program in enumerate(programs)
            if position[stage] < len(program)
            and done.issuperset(_needs(program[position[stage]], stages))
        ]
        assert wave, "a schedule that waits for itself"
        for operation in wave:
            position[operation.stage] += 1
        done.update(wave)
        result.extend(wave)
    return tuple(result)
