"""The fleet behind a fence: commands are sent only while leadership is proven.

The check happens at the moment of sending, not when the pass began: nothing that was decided before
a freeze is sent after it. Agents refuse older epochs as well; this saves them the question. A node
that shows a newer epoch is quarantined: a real takeover shows in the store, which ends this term.
A controller that enforces nothing only says so.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from joulecut_controller.election.leader_lock import COMMAND_S
from joulecut_controller.fleet.grpc_fleet import COMMAND_DEADLINE_S
from joulecut_controller.ports import ArrivedReport, Fleet, FleetState
from joulecut_controller.view import NodeView
from joulecut_wire.messages import Command, Result

assert COMMAND_S >= COMMAND_DEADLINE_S, "a command must end before another controller can lead"
NOT_SENT = "not sent: leadership cannot be proven"


class FencedFleet:
    """Implements `ports.Fleet` for the term `epoch`; observing is always allowed."""

    def __init__(
        self,
        fleet: Fleet,
        proven: Callable[[], bool],
        epoch: int,
        *,
        earlier: int | None = None,
        enforces: Callable[[], bool] = lambda: True,
    ) -> None:
        """Terms up to `earlier` are of this store as well; None: all before this one."""
        self._fleet, self._proven, self._epoch = fleet, proven, epoch
        self._earlier = epoch if earlier is None else earlier
        self._enforces = enforces

    def observe(self, now_s: float, addresses: Collection[str] = ()) -> FleetState:
        state = self._fleet.observe(now_s, addresses)
        if all(self._own(node) for node in state.nodes):
            return state
        return replace(state, nodes=tuple(map(self._judged, state.nodes)))

    def _own(self, node: NodeView) -> bool:
        return node.epoch_seen <= self._earlier or node.epoch_seen == self._epoch

    def _judged(self, node: NodeView) -> NodeView:
        if self._own(node):
            return node
        node = replace(node, other_term=node.epoch_seen)
        if node.quarantine or node.epoch_seen < self._epoch or not self._enforces():
            return node
        why = (
            f"it has seen term {node.epoch_seen}, and no controller of this store began one after "
            f"{self._epoch}: another controller commands it, or run joulecut-agent reset-epoch on "
            "that node"
        )
        return replace(node, quarantine=why)

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        return self._fleet.take_reports()

    async def apply(self, address: str, command: Command) -> tuple[Result, ...]:
        if not self._proven():
            return _refused()
        return await self._fleet.apply(address, command)

    async def renew(
        self, address: str, epoch: int, job: str, generation: int, ttl_s: float
    ) -> tuple[Result, ...]:
        if not self._proven():
            return _refused()
        return await self._fleet.renew(address, epoch, job, generation, ttl_s)

    async def clear(
        self, address: str, epoch: int, job: str, uuids: Sequence[str], reason: str
    ) -> tuple[Result, ...]:
        if not self._proven():
            return _refused()
        return await self._fleet.clear(address, epoch, job, uuids, reason)


def _refused() -> tuple[Result, ...]:
    return (Result("", accepted=False, reason=NOT_SENT),)
