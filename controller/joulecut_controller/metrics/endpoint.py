"""What /metrics shows: the leader's figures, or that this one is a standby."""

from collections.abc import Callable

from joulecut_controller.board import Board
from joulecut_controller.election.leadership import Leadership
from joulecut_controller.metrics.collector import BoardCollector, StandbyCollector
from joulecut_controller.metrics.exposition import Exposition, written
from joulecut_controller.reconcile.reconciler import Reconciler


class Face:
    """Shows one of the two at a time, and nothing before either is known."""

    def __init__(self) -> None:
        self._text: Callable[[], bytes] = bytes  # nothing yet

    def show(self, reconciler: Reconciler, leadership: Leadership) -> None:
        collector = BoardCollector(
            lambda: reconciler.board,
            reconciler.meters,
            epoch=reconciler.epoch,
            leads=lambda: reconciler.leads and leadership.proven,
        )
        self._text = Exposition(collector).text

    def stand_by(self, board: Board) -> None:
        self._text = lambda: written(StandbyCollector(board).collect())

    def metrics_text(self) -> bytes:
        return self._text()
