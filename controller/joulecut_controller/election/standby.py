"""What a controller without the seat shows: the agents as it sees them, and who leads.

The same value as a leader's, so that page, API and command line need to know nothing new.
"""

from joulecut_controller.board import Board
from joulecut_controller.ports import FleetState
from joulecut_controller.view import View


def standing_by(
    state: FleetState,
    sentence: str,
    *,
    leader: str = "",
    number: int,
    interval_s: float,
    now_s: float,
    unix_s: float,
) -> Board:
    """A board without jobs. `leader` is where to ask, `number` counts boards, `now_s` is the
    clock of ages in `state`.
    """
    gpus = {gpu.uuid: gpu for gpu in state.gpus}
    return Board(
        at_unix_s=unix_s,
        pass_number=number,
        epoch=0,
        sentence=sentence,
        view=View(now_s=now_s, nodes=state.nodes, gpus=gpus),
        jobs=(),
        events=(),
        interval_s=interval_s,
        leads=False,
        leader=leader,
    )
