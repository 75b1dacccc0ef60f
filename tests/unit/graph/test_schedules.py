"""Every schedule: complete, free of circles, and as long as its authors published."""

from itertools import pairwise

import orders
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from joulecut_engine.graph import Graph, build
from joulecut_engine.graph.pipeline import SCHEDULES_ALL, Kind, Operation, Pipeline, Schedule
from joulecut_engine.graph.schedules import programs
from joulecut_engine.graph.shape import chunks_of, kinds_of, misfit, part_of

# Forward, input and weight gradient alike, as the published figures assume; a whole backward
# is both its halves.
EQUAL: dict[Kind, float] = {"forward": 1.0, "backward": 2.0, "input": 1.0, "weight": 1.0}

shapes = st.builds(
    Pipeline,
    st.sampled_from(SCHEDULES_ALL),
    st.integers(1, 5),
    st.integers(1, 13),
    chunks=st.integers(1, 3),
).filter(lambda pipeline: misfit(pipeline) is None)


def shape(
    schedule: Schedule, stages: int, microbatches: int, chunks: int | None = None
) -> Pipeline:
    return Pipeline(schedule, stages, microbatches, chunks=chunks_of(schedule, chunks))


def end_s(graph: Graph, seconds: list[float]) -> float:
    """The longest path, by the graph's edges alone."""
    ends: list[float] = []
    for i, lasts_s in enumerate(seconds):
        ends.append(max((ends[a] for a, b in graph.edges if b == i), default=0.0) + lasts_s)
    return max(ends)


@given(shapes)
def test_every_part_does_everything_once(pipeline: Pipeline) -> None:
    graph = build(pipeline)
    assert len(set(graph.operations)) == len(graph.operations)
    done: dict[tuple[int, int], list[Kind]] = {}
    for operation in graph.operations:
        assert operation.kind in kinds_of(pipeline)
        part = part_of(pipeline, operation.stage, operation.chunk)
        done.setdefault((part, operation.microbatch), []).append(operation.kind)
    parts = pipeline.stages * pipeline.chunks
    assert set(done) == {(p, m) for p in range(parts) for m in range(pipeline.microbatches)}
    for kinds in done.values():
        assert sorted(kinds) in (["backward", "forward"], ["forward", "input", "weight"])


@given(shapes)
def test_edges_lead_forward_and_hold_the_order_of_every_stage(pipeline: Pipeline) -> None:
    graph = build(pipeline)
    assert all(a < b for a, b in graph.edges)
    assert list(graph.edges) == sorted(set(graph.edges))
    assert sorted(i for order in graph.order for i in order) == list(range(len(graph.operations)))
    for stage, order in enumerate(graph.order):
        assert {graph.operations[i].stage for i in order} == {stage}
        assert set(pairwise(order)) <= set(graph.edges)


@given(shapes, st.data())
def test_the_edges_say_what_running_the_programs_says(
    pipeline: Pipeline, data: st.DataObject
) -> None:
    """No edge is missing and none is too many, whatever the kinds cost."""
    seconds = {kind: float(data.draw(st.integers(1, 9))) for kind in kinds_of(pipeline)}
    graph = build(pipeline)
    longest_s = end_s(graph, [seconds[o.kind] for o in graph.operations])
    ran = orders.spans(pipeline, [[[o] for o in p] for p in programs(pipeline)], seconds)
    assert longest_s == max(end for _, end, _ in ran)


@given(shapes, st.sampled_from(["overlapped", "synchronous"]), st.data())
def test_a_circle_is_reported_where_running_would_stop(
    pipeline: Pipeline, transfers: str, data: st.DataObject
) -> None:
    """Sends take part in the order: either the graph is whole, or it says who waits for whom."""
    sending = Pipeline(
        pipeline.schedule,
        pipeline.stages,
        pipeline.microbatches,
        chunks=pipeline.chunks,
        transfers="overlapped" if transfers == "overlapped" else "synchronous",
    )
    try:
        graph = build(sending)
    except ValueError as error:
        assert transfers == "synchronous"
        assert "circle: " in str(error)
        assert rendezvous_stops(pipeline)
        return
    if transfers == "synchronous":
        assert not rendezvous_stops(pipeline)
    plain = build(pipeline)
    crossing = [
        (a, b) for a, b in plain.edges if plain.operations[a].stage != plain.operations[b].stage
    ]
    sends = [o for o in graph.operations if o.kind.startswith("send-")]
    assert len(sends) == len(crossing)
    seconds = {kind: float(data.draw(st.integers(1, 9))) for kind in kinds_of(sending)}
    longer_s = end_s(graph, [seconds[o.kind] for o in graph.operations])
    assert longer_s >= end_s(plain, [seconds[o.kind] for o in plain.operations])


def rendezvous_stops(pipeline: Pipeline) -> bool:
    """Runs the programs with meetings: between two operations a GPU is ready for the sends of
    the one and the receives of the other, and a transfer happens when both its ends are."""
    plain = build(pipeline)
    program_of = programs(pipeline)
    place = {o: (gpu, i) for gpu, program in enumerate(program_of) for i, o in enumerate(program)}
    sends = [
        (place[plain.operations[a]], place[plain.operations[b]])
        for a, b in plain.edges
        if plain.operations[a].stage != plain.operations[b].stage
    ]
    done = [0] * len(program_of)  # operations finished by each GPU
    met: set[int] = set()
    while True:
        moved = False
        for number, ((gpu, i), (other, j)) in enumerate(sends):
            if number not in met and done[gpu] == i + 1 and done[other] == j:
                met.add(number)
                moved = True
        for gpu, program in enumerate(program_of):
            at = done[gpu]
            waits = any(
                number not in met and (to == (gpu, at) or source == (gpu, at - 1))
                for number, (source, to) in enumerate(sends)
            )
            if at < len(program) and not waits:
                done[gpu] += 1
                moved = True
        if not moved:
            return any(done[gpu] < len(program) for gpu, program in enumerate(program_of))


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("rounds", [2, 3, 4])
class TestPublishedBubbles:
    """Time that a GPU is not at work, with S stages, M microbatches, and F = I = W = 1."""

    def bubble_s(self, pipeline: Pipeline) -> tuple[float, float]:
        """Of the iteration, and (as the zero-bubble papers count) between first and last work."""
        blocks = [[[o] for o in program] for program in programs(pipeline)]
        ran = orders.spans(pipeline, blocks, EQUAL)
        whole_s = max(end for _, end, _ in ran)
        busy_s = ran[0][2]
        assert all(busy == busy_s for _, _, busy in ran)
        graph = build(pipeline)
        assert end_s(graph, [EQUAL[o.kind] for o in graph.operations]) == whole_s
        return whole_s - busy_s, max(end - start - busy for start, end, busy in ran)

    @pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
    def test_one_chunk(self, schedule: Schedule, stages: int, rounds: int) -> None:
        """(S - 1) / (M + S - 1) of the iteration: Narayanan et al., SC21, section 2.2.1."""
        count = rounds * stages
        bubble_s, _ = self.bubble_s(shape(schedule, stages, count))
        fraction = bubble_s / (bubble_s + 3 * count)
        assert fraction == pytest.approx((stages - 1) / (count + stages - 1))

    @pytest.mark.parametrize("chunks", [2, 3, 4])
    def test_interleaved(self, chunks: int, stages: int, rounds: int) -> None:
        """(S - 1) / (V M + S - 1), the bubble 1/V of 1F1B's: SC21, section 2.2.2."""
        count = rounds * stages
        bubble_s, _ = self.bubble_s(shape("interleaved-1f1b", stages, count, chunks))
        fraction = bubble_s / (bubble_s + 3 * count * chunks)
        assert fraction == pytest.approx((stages - 1) / (chunks * count + stages - 1))

    @pytest.mark.parametrize("chunks", [1, 2])
    def test_zb_h1(self, chunks: int, stages: int, rounds: int) -> None:
        """(S - 1)(F + I - W): Qi et al., ICLR 2024, table 2 (there B is our I)."""
        bubble_s, _ = self.bubble_s(shape("zb-h1", stages, rounds * stages, chunks))
        assert bubble_s == stages - 1

    @pytest.mark.parametrize("schedule", ["zb-h2", "zb-v"])
    def test_zero_bubble(self, schedule: Schedule, stages: int, rounds: int) -> None:
        """(S - 1)(F + I - 2 W) = 0: same table; V: Qi et al. 2024, section 6 there.

        Counted between a GPU's first and last operation: the papers let the next iteration
        begin before this one has ended everywhere. Ours ends together: S - 1 is left.
        """
        bubble_s, within_s = self.bubble_s(shape(schedule, stages, rounds * stages))
        assert within_s == 0.0
        assert bubble_s == stages - 1

    def test_dualpipe_v(self, stages: int, rounds: int) -> None:
        """(PP/2 - 1)(F&B + B - 3 W) with PP = 2 S parts: README of deepseek-ai/DualPipe.

        F&B is a forward and a backward that overlap, and hand over together; without overlap
        it lasts F + B. The product's graph lets the forward go first, which is shorter.
        """
        pipeline = shape("dualpipe-v", stages, rounds * stages)
        blocks = [overlapping(program) for program in programs(pipeline)]
        ran = orders.spans(pipeline, blocks, EQUAL)
        bubble_s = max(end for _, end, _ in ran) - ran[0][2]
        forward_s, backward_s, weight_s = EQUAL["forward"], EQUAL["backward"], EQUAL["weight"]
        overlapped_s = forward_s + backward_s
        published_s = (stages - 1) * (overlapped_s + backward_s - 3 * weight_s)
        assert bubble_s == published_s
        assert self.bubble_s(pipeline)[0] <= published_s


def overlapping(program: list[Operation]) -> list[list[Operation]]:
    """Forwards paired with the whole backward of the other chunk that follows them.

    The very first pair of the last GPU stays apart, as in the published order.
    """
    blocks: list[list[Operation]] = []
    for operation in program:
        before = blocks[-1] if blocks else []
        pairs = (
            operation.kind == "backward"
            and len(before) == 1
            and before[0].kind == "forward"
            and before[0].chunk != operation.chunk
        )
        apart = operation.microbatch == 0 and operation.stage == operation.chunk == 1
        if pairs and not apart:
            before.append(operation)
        else:
            blocks.append([operation])
    return blocks


@given(st.integers(1, 6), st.integers(1, 20))
def test_zb_h1_holds_no_more_activations_than_1f1b(stages: int, microbatches: int) -> None:
    """Why H1 exists beside H2 (ICLR 2024, section 2.1): S at most, H2 up to 2 S - 1."""
    for schedule, most in (("zb-h1", stages), ("zb-h2", 2 * stages - 1)):
        known: Schedule = "zb-h1" if schedule == "zb-h1" else "zb-h2"
        for program in programs(Pipeline(known, stages, microbatches)):
            held = 0
            for operation in program:
                held += {"forward": 1, "input": 0, "weight": -1}[operation.kind]
                assert held <= most


@pytest.mark.parametrize(
    ("pipeline", "key", "allowed"),
    [
        (Pipeline("interleaved-1f1b", 4, 6, chunks=2), "microbatches", "a multiple of 4"),
        (Pipeline("zb-h1", 4, 6, chunks=2), "microbatches", "a multiple of 4"),
        (Pipeline("interleaved-1f1b", 4, 8), "chunks", "2 to 64"),
        (Pipeline("1f1b", 4, 8, chunks=2), "chunks", "1"),
        (Pipeline("zb-h2", 4, 8, chunks=2), "chunks", "1"),
        (Pipeline("zb-v", 4, 8, chunks=3), "chunks", "2"),
        (Pipeline("dualpipe-v", 4, 7, chunks=2), "microbatches", "at least 8, twice the stages"),
        (Pipeline("explicit", 4, 8), "schedule", " | ".join(SCHEDULES_ALL)),
        (Pipeline("1f1b", 0, 8), "stages", "each at least 1"),
    ],
)
def test_a_shape_that_a_schedule_does_not_take(pipeline: Pipeline, key: str, allowed: str) -> None:
    found = misfit(pipeline)
    assert (found.key, found.allowed) == (key, allowed)
    with pytest.raises(ValueError, match=f"^{key}: "):
        build(pipeline)


@given(shapes)
def test_collectives_and_the_optimizer_stand_where_they_belong(pipeline: Pipeline) -> None:
    assume(pipeline.stages > 1)
    whole = Pipeline(
        pipeline.schedule,
        pipeline.stages,
        pipeline.microbatches,
        chunks=pipeline.chunks,
        tensor_collective=True,
        data_collective=True,
        optimizer=True,
    )
    graph = build(whole)
    assert {o.kind for o in graph.operations} == set(kinds_of(whole))
    for order in graph.order:
        program = [graph.operations[i] for i in order]
        assert [o.kind for o in program[-2:]] == ["collective", "optimizer"]
        for first, second in pairwise(program[:-2]):
            if first.kind == "forward":
                assert (second.kind, second.microbatch) == ("tensor-forward", first.microbatch)
            elif first.kind in ("backward", "input"):
                assert (second.kind, second.microbatch) == ("tensor-backward", first.microbatch)
    # What another GPU waits for is the sum over the group, never a part of it.
    for a, b in graph.edges:
        first, second = graph.operations[a], graph.operations[b]
        assert first.stage == second.stage or first.kind in ("tensor-forward", "tensor-backward")


@given(st.integers(1, 5), st.integers(1, 13))
def test_an_evaluation_is_the_forwards_of_training(stages: int, microbatches: int) -> None:
    graph = build(Pipeline("forward-only", stages, microbatches))
    assert {o.kind for o in graph.operations} == {"forward"}
    assert end_s(graph, [1.0] * len(graph.operations)) == stages + microbatches - 1
