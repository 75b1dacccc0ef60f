"""Order of operations on every GPU, for each published schedule.

A program is the sequence of one GPU; `build` adds dependencies between GPUs. Each order follows its
published description and is compared with torch.distributed.pipelining where that has it:

gpipe             Huang et al., NeurIPS 2019
1f1b              PipeDream-Flush: Narayanan et al., ICML 2021
interleaved-1f1b  Narayanan et al., SC21, section 2.2
zb-h1, zb-h2      Qi et al., ICLR 2024, section 2
zb-v              Qi et al., ICLR 2024, section 6; NeurIPS 2024 (controllable memory)
dualpipe-v        DeepSeek-AI, DualPipe: the V-shaped half of the DeepSeek-V3 schedule
"""

from collections import deque

from joulecut_engine.graph.pipeline import Kind, Operation, Pipeline

Program = list[Operation]


def programs(pipeline: Pipeline) -> list[Program]:
    """One program per stage. Raises ValueError for `explicit`; `shape` checks shapes."""
    writers = {
        "forward-only": _forward_only,
        "gpipe": _one_f_one_b,
        "1f1b": _one_f_one_b,
        "interleaved-1f1b": _one_f_one_b,
        "zb-h1": _one_f_one_b,
        "zb-h2": _one_f_one_b,
        "zb-v": _zero_bubble_v,
        "dualpipe-v": _dual_pipe_v,
    }
    if pipeline.schedule not in writers:
        raise ValueError(f"schedule {pipeline.schedule!r} cannot be laid out from a shape")
    write = writers[pipeline.schedule]
    tapes = [_Tape(stage) for stage in range(pipeline.stages)]
    for tape in tapes:
        write(pipeline, tape)
    # V-shaped orders are made for a number of microbatches that fills them, then cut.
    return [[o for o in tape.program if o.microbatch < pipeline.microbatches] for tape in tapes]


class _Tape:
    """The program of one GPU while it is built; microbatches of a chunk come in order."""

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.program: Program = []
        self._done: dict[tuple[Kind, int], int] = {}
        self._pending: deque[tuple[int, int]] = deque()  # (chunk, microbatch) without weights

    def forward(self, chunk: int) -> None:
        self._next("forward", "forward", chunk)

    def backward(self, chunk: int) -> None:
        """Whole: gradients of input and weights in one operation."""
        self._next("backward", "input", chunk)

    def input(self, chunk: int) -> None:
        """Gradients of the input; those of the weights are pending."""
        self._pending.append((chunk, self._next("input", "input", chunk)))

    def weight(self, chunk: int | None = None) -> None:
        """The weights pending longest, of a chunk or of any; nothing if none are."""
        pending = next((o for o in self._pending if chunk is None or o[0] == chunk), None)
        if pending is not None:
            self._pending.remove(pending)
            self.program.append(Operation(self.stage, pending[1], "weight", pending[0]))

    def weights(self, chunk: int | None = None) -> None:
        """All pending weights, of a chunk or of any."""
        for _ in [o for o in self._pending if chunk is None or o[0] == chunk]:
            self.weight(chunk)

    def _next(self, kind: Kind, count: Kind, chunk: int) -> int:
        microbatch = self._done.get((count, chunk), 0)
        self._done[count, chunk] = microbatch + 1
        self.program.append(Operation(self.stage, microbatch, kind, chunk))
        return microbatch


def _forward_only(pipeline: Pipeline, tape: _Tape) -> None:
    for _ in range(pipeline.microbatches):
        tape.forward(0)


def _one_f_one_b(pipeline: Pipeline, tape: _Tape) -> None:
    """Some forwards, then forward and backward in turn, then the remaining backwards.

    Schedules differ in how many forwards come first, and in how long weights are put off.
    With chunks, S microbatches go through one chunk before the next has its turn.
    """
    stages, chunks = pipeline.stages, pipeline.chunks
    later = stages - 1 - tape.stage  # stages that come after this one
    first = {
        "gpipe": pipeline.microbatches,
        "1f1b": later,
        "interleaved-1f1b": (chunks - 1) * stages + 2 * later,
        "zb-h1": (chunks - 1) * stages + later,
        "zb-h2": 2 * later,
    }[pipeline.schedule]
    put_off = {"zb-h1": tape.stage, "zb-h2": 2 * tape.stage}.get(pipeline.schedule)
    count = chunks * pipeline.microbatches
    first = min(first, count)
    for turn in range(count + first):
        if turn < count:
            tape.forward(turn // stages % chunks)
        back = turn - first
        if back < 0:
            continue
        chunk = chunks - 1 - back // stages % chunks
        if put_off is None:
            tape.backward(chunk)
            continue
        tape.input(chunk)
        if back >= put_off:
            tape.weight()
    tape.weights()


def _zero_bubble_v(pipeline: Pipeline, tape: _Tape) -> None:
    """Chunk 1 runs back through the same GPUs, so the last GPU has no head start to lose."""
    stages, stage = pipeline.stages, tape.stage
    count = max(pipeline.microbatches, 2 * stages - 1)  # fewer would leave the V open

    def forward_and_back(chunk: int) -> None:
        tape.forward(chunk)
        tape.input(chunk)
        tape.weight(chunk)

    for _ in range(2 * (stages - stage) - 1):
        tape.forward(0)
    for _ in range(stage):
        tape.forward(1)
        tape.forward(0)
    for _ in range(stages - stage):
        forward_and_back(1)
    forwards = count - (2 * stages - 1 - stage)
    for turn in range(count - stages):
        if turn < forwards:
            tape.forward(0)
        tape.input(0)
        tape.weight(0)
        forward_and_back(1)
    for _ in range(stage):
        tape.input(0)
        tape.input(1)
    for _ in range(stages - stage):
        tape.input(0)
        tape.weight(0)
    tape.weights(1)
    tape.weights(0)


def _dual_pipe_v(pipeline: Pipeline, tape: _Tape) -> None:
    """A forward of one chunk beside a backward of the other, so that their transfers overlap.

    Here the two are done one after the other, forward first: on one GPU they share its time.
    """
    stages, stage, count = pipeline.stages, tape.stage, pipeline.microbatches
    later = stages - 1 - stage

    for _ in range(2 * later):
        tape.forward(0)
    for _ in range(stage + 1):
        tape.forward(0)
        tape.forward(1)
    for _ in range(later):
        tape.input(1)
        tape.weight()
        tape.forward(1)
    for _ in range(count - 2 * stages + stage + 1):
        tape.forward(0)
        tape.backward(1)
        tape.forward(1)
        tape.backward(0)
    for _ in range(later):
        tape.backward(1)
        tape.forward(1)
        tape.backward(0)
    # From the middle of the last backwards on, weights are put off to fill the way out.
    whole = stage + 1
    for turn in range(2 * (stage + 1)):
        back = tape.backward if turn < whole else tape.input
        back(1 - turn % 2)
    for _ in range(later):
        tape.weight()
        tape.input(0)
    tape.weights()
