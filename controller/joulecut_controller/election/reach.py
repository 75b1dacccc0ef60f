"""Agents that this controller does not reach, while another of its store may. Pure."""

from collections.abc import Iterable

from joulecut_controller.election.leader_lock import HOLD_S_DEFAULT
from joulecut_controller.view import NodeView

LOST_S = HOLD_S_DEFAULT  # a silent controller keeps its jobs as long
AGAIN_S = 60.0  # a link that comes and goes moves no job more often


class Reach:
    """How long each agent has not been reached."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}  # by address
        self._until_s: dict[str, float] = {}

    def look(self, nodes: Iterable[NodeView], now_s: float) -> None:
        lost = [node.address for node in nodes if not node.connected]
        self._since_s = {address: self._since_s.get(address, now_s) for address in lost}

    def lost(self, now_s: float) -> frozenset[str]:
        """Agents that were not reached for LOST_S, until AGAIN_S after that has ended."""
        for address, since_s in self._since_s.items():
            if now_s - since_s >= LOST_S:
                self._until_s[address] = now_s + AGAIN_S
        self._until_s = {one: until_s for one, until_s in self._until_s.items() if until_s > now_s}
        return frozenset(self._until_s)
