"""The fleet behind a fence: commands are sent only while leadership is proven.

The check happens at the moment of sending, not when the pass began: nothing that was decided before
a freeze is sent after it. Agents refuse older epochs as well; this saves them the question. A node
that shows a newer epoch is quarantined: a real takeover shows in the store, which ends this term.
A controller that enforces nothing only says so.

Where controllers share the jobs, a command carries the group's newest epoch that this one knows.
One that an agent refuses as older is sent once more, after the database has shown the epoch that
another controller has begun meanwhile.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace

from joulecut_controller.election.claims import Claims
from joulecut_controller.election.leader_lock import COMMAND_S
from joulecut_controller.fleet.grpc_fleet import COMMAND_DEADLINE_S
from joulecut_controller.ports import ArrivedReport, Fleet, FleetState
from joulecut_controller.view import NodeView
from joulecut_wire.messages import Command, Result

assert COMMAND_S >= COMMAND_DEADLINE_S, "a command must end before another controller can lead"
NOT_SENT = "not sent: leadership cannot be proven"
OLDER = "epoch "  # begins an agent's reason to refuse an epoch
# Until a check has shown whether an epoch that an agent shows is of the group.
UNKNOWN_S = 10.0


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
        claims: Claims | None = None,
        epoch_above: Callable[[int], Awaitable[bool]] | None = None,
    ) -> None:
        """Terms up to `earlier` are of this store as well; None: all before this one.
        `epoch_above` asks for a newer epoch of the group; None: each term has one epoch.
        """
        self._fleet, self._proven, self._epoch = fleet, proven, epoch
        self._earlier = epoch if earlier is None else earlier
        self._enforces, self._claims = enforces, claims or Claims(epoch)
        self._epoch_above = epoch_above
        self._unknown_since_s: dict[str, float] = {}  # by agent

    def observe(self, now_s: float, addresses: Collection[str] = ()) -> FleetState:
        state = self._fleet.observe(now_s, addresses)
        if all(self._own(node, now_s) for node in state.nodes):
            return state
        return replace(state, nodes=tuple(self._judged(node, now_s) for node in state.nodes))

    def _own(self, node: NodeView, now_s: float) -> bool:
        seen = node.epoch_seen
        if seen <= self._earlier or self._epoch <= seen <= self._claims.epoch:
            self._unknown_since_s.pop(node.address, None)
            return True
        if self._epoch_above is None or seen < self._epoch:
            return False
        return now_s - self._unknown_since_s.setdefault(node.address, now_s) < UNKNOWN_S

    def _judged(self, node: NodeView, now_s: float) -> NodeView:
        if self._own(node, now_s):
            return node
        node = replace(node, other_term=node.epoch_seen)
        if node.quarantine or node.epoch_seen < self._epoch or not self._enforces():
            return node
        why = (
            f"it has seen epoch {node.epoch_seen}, and no controller of this store began one after "
            f"{self._claims.epoch}: another controller commands it, or run joulecut-agent "
            "reset-epoch on that node"
        )
        return replace(node, quarantine=why)

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        return self._fleet.take_reports()

    async def apply(self, address: str, command: Command) -> tuple[Result, ...]:
        return await self._sent(
            command.epoch,
            lambda epoch: self._fleet.apply(address, replace(command, epoch=epoch)),
        )

    async def renew(
        self, address: str, epoch: int, job: str, generation: int, ttl_s: float
    ) -> tuple[Result, ...]:
        return await self._sent(
            epoch, lambda now: self._fleet.renew(address, now, job, generation, ttl_s)
        )

    async def clear(
        self, address: str, epoch: int, job: str, uuids: Sequence[str], reason: str
    ) -> tuple[Result, ...]:
        return await self._sent(
            epoch, lambda now: self._fleet.clear(address, now, job, uuids, reason)
        )

    async def _sent(
        self, epoch: int, send: Callable[[int], Awaitable[tuple[Result, ...]]]
    ) -> tuple[Result, ...]:
        if not self._proven():
            return _refused()
        if self._epoch_above is None:
            return await send(epoch)
        epoch = self._claims.epoch
        results = await send(epoch)
        older = any(one.reason.startswith(OLDER) for one in results if not one.accepted)
        if not older or not await self._epoch_above(epoch) or not self._proven():
            return results
        return await send(self._claims.epoch)


def _refused() -> tuple[Result, ...]:
    return (Result("", accepted=False, reason=NOT_SENT),)
