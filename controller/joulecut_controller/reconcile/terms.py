"""What the terms that agents have seen mean for a controller.

A larger term means that another controller leads. But terms count starts of controllers: one
that no controller can have reached was sent by something else, and would shut out every
controller after it. Nobody but an operator can tell what that was.
"""

from collections.abc import Iterable

from joulecut_controller.view import NodeView
from joulecut_wire.errors import JoulecutError

EPOCH_MAX = 2**32  # a controller started every second for 136 years


class Absurd(JoulecutError):
    """A term that only a person can explain; trying again mends nothing."""


def absurd(nodes: Iterable[NodeView]) -> str:
    """What an operator has to do about a term that is none; empty where there is no such."""
    nodes = tuple(nodes)
    least = min((node.epoch_seen for node in nodes if node.epoch_seen), default=0)
    highest = min(EPOCH_MAX, least + 2**20 - 1)  # all others would refuse the term after it
    node = next((node for node in nodes if node.epoch_seen > highest), None)
    if node is None:
        return ""
    return (
        f"agent {node.address} has seen term {node.epoch_seen}, which no controller can have "
        "reached: stop its keeper, delete the keeper's journal while no lease is held, and start "
        "it again"
    )


def overtaken(nodes: Iterable[NodeView], epoch: int) -> str:
    """Why a controller of this term must not command any more; empty where it may."""
    nodes = tuple(nodes)
    newer = next((node for node in nodes if node.epoch_seen > epoch), None)
    if newer is None:
        return ""
    strange = absurd(nodes)
    if strange:
        return f"{strange}; nothing is commanded until this controller is restarted"
    return (
        f"another controller leads: agent {newer.address} has seen term {newer.epoch_seen}, "
        f"this one is {epoch}; nothing is commanded until this controller is restarted"
    )
