"""The numbers of leadership terms that agents have followed, and what they mean for a new one.

A term that no controller of the store began is of another controller, with a store of its own. As
long as a lease of a newer term is seen it is alive. Two controllers that both enforce must not take
turns with the same GPUs, so each comeback waits twice as long as the one before. Pure.
"""

from collections.abc import Iterable

from joulecut_controller.ports import FleetState
from joulecut_controller.view import NodeView

QUIET_S = 60.0  # the longest lease of agents as shipped
DOUBLINGS_MAX = 6  # an hour


EPOCH_MAX = 2**32  # a controller started every second for 136 years


def confirmed_epoch(nodes: Iterable[NodeView], stored: int) -> int:
    """The term that a new one must exceed. `stored` is the newest of the store, 0 without one.

    A lost or older store is behind the agents. Of three numbers or more, one alone is not believed:
    the second largest counts. A number that most others would refuse to follow never counts.
    """
    seen = sorted(node.epoch_seen for node in nodes if node.epoch_seen)
    known = sorted((*seen, stored) if stored else seen)
    highest = min(EPOCH_MAX, known[(len(known) - 1) // 2] + 2**20 - 1) if known else 0
    known = [epoch for epoch in known if epoch <= highest]
    if not known:
        return 0
    return known[-2] if len(known) > 2 else known[-1]


class Comeback:
    """When a controller begins a new term of its own, because its agents have followed another
    one. Of one process, over all of its terms.
    """

    def __init__(self) -> None:
        self._times, self._quiet_since_s = 0, float("inf")

    def due(self, state: FleetState, epoch: int, now_s: float) -> str:
        """Why the term `epoch` ends and a newer one begins; empty while it does not."""
        seen = confirmed_epoch(state.nodes, epoch)
        leases = (gpu.snapshot.lease for gpu in state.gpus if gpu.snapshot)
        alive = any(lease is not None and lease.epoch > epoch for lease in leases)
        if seen <= epoch or alive:
            self._quiet_since_s = float("inf")
            return ""
        self._quiet_since_s = min(self._quiet_since_s, now_s)
        if now_s - self._quiet_since_s < QUIET_S * 2.0 ** min(self._times, DOUBLINGS_MAX):
            return ""
        self._times, self._quiet_since_s = self._times + 1, float("inf")
        return (
            f"agents have followed epoch {seen} of another controller, which holds no lease any "
            f"more: a new epoch begins in place of {epoch}"
        )
