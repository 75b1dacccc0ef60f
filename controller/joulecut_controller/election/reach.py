"""Agents that this controller does not reach, while another of its store may. Judged while its
event loop is on time: otherwise messages wait here, and no agent is at fault. Pure.
"""

from collections.abc import Iterable

from joulecut_controller.election.leader_lock import HOLD_S_DEFAULT
from joulecut_controller.view import NodeView

LOST_S = HOLD_S_DEFAULT  # a silent controller keeps its jobs as long
AGAIN_S = 60.0  # a link that comes and goes moves no job more often
LATE_S = 0.5  # of the event loop: twice its 99th percentile with 10,000 GPUs


class Reach:
    """How long each agent has not been reached. `none_is_reached`: all of them for LOST_S."""

    def __init__(self) -> None:
        self.none_is_reached = False
        self._since_s: dict[str, float] = {}  # by address
        self._until_s: dict[str, float] = {}

    def run_late(self, late_s: float) -> None:
        """The event loop was late by so much. From LATE_S on, silent times restart at zero."""
        if late_s >= LATE_S:
            self._since_s.clear()

    def update(self, nodes: Iterable[NodeView], now_s: float) -> None:
        known = {node.address: node.connected for node in nodes}
        lost = [address for address, connected in known.items() if not connected]
        self._since_s = {address: self._since_s.get(address, now_s) for address in lost}
        away = [one for one, since_s in self._since_s.items() if now_s - since_s >= LOST_S]
        self._until_s |= dict.fromkeys(away, now_s + AGAIN_S)
        self.none_is_reached = bool(known) and len(away) == len(known)

    def lost(self, now_s: float) -> frozenset[str]:
        """Agents that were not reached for LOST_S, until AGAIN_S after that has ended."""
        self._until_s = {one: until_s for one, until_s in self._until_s.items() if until_s > now_s}
        return frozenset(self._until_s)
