"""Schedule of a pipeline from the order of forwards and backwards on one of its ranks. Pure.

1F1B puts as many forwards before the first backward as there are stages from this one on; GPipe
puts all of them there. Where both are the same number, or the order is another, the schedule stays
unknown.
"""

from collections.abc import Sequence

from joulecut_wire.messages import PipelineShape

FORWARD, BACKWARD = "forward", "backward"
STAGES_MAX, MICROBATCHES_MAX = 256, 4096  # as in a policy


def shape_of(
    kinds: Sequence[str], stage: int, *, stages: int, tensor_parallel: int = 1,
    data_parallel: int = 1,
) -> PipelineShape | None:  # fmt: skip
    """From the operations of one iteration on a rank of `stage`, in order; None if impossible."""
    if not 0 <= stage < stages <= STAGES_MAX:
        return None
    schedule, microbatches = _schedule(kinds, stage, stages)
    return PipelineShape(schedule, stages, microbatches, tensor_parallel, data_parallel)


def _schedule(kinds: Sequence[str], stage: int, stages: int) -> tuple[str, int]:
    """Name and microbatches; "" and 0 where the order does not show them."""
    forwards = sum(kind == FORWARD for kind in kinds)
    whole = forwards and set(kinds) == {FORWARD, BACKWARD} and len(kinds) == 2 * forwards
    if not whole or forwards > MICROBATCHES_MAX:
        return "", 0
    gpipe = [FORWARD] * forwards + [BACKWARD] * forwards
    one_f_one_b = _one_f_one_b(forwards, stages - stage - 1)
    found = [
        name for name, order in (("1f1b", one_f_one_b), ("gpipe", gpipe)) if list(kinds) == order
    ]
    return (found[0] if len(found) == 1 else ""), (forwards if found else 0)


def _one_f_one_b(microbatches: int, following: int) -> list[str]:
    ahead = min(following, microbatches)
    steady = [FORWARD, BACKWARD] * (microbatches - ahead)
    return [FORWARD] * ahead + steady + [BACKWARD] * ahead
