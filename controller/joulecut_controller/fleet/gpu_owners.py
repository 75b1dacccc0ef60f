"""Which agent speaks for which GPU.

A GPU belongs to the agent that showed it first, by its address; with TLS the agent's certificate
names that address. So does the name of a node, by which a policy lists GPUs. Another agent that
shows it as well makes a conflict and changes nothing, until the first has not shown it for an hour,
or an operator decides (`joulecut adopt`). Where two agents show a GPU and nobody was first, it gets
no commands until one of them shows it no more or is no longer among the agents. An agent at a new
address that gives the name of the node before moves its GPUs at once, where the old address is no
longer among the agents.

What was decided survives a restart as text. Pure.
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import msgspec

GONE_S = 3600.0
NAME = "name "  # begins the entry of a node's name, which is owned as a GPU is
OWNED_MAX = 256  # by one agent: four times what it may show at once, and no memory for inventions
# Agents describe themselves within so long after a controller's start: who came first says nothing.
EQUAL_S = 60.0


@dataclass(frozen=True, slots=True)
class _Owned:
    """`shown_s` is when the owner showed the GPU last. `settled`: another claim comes too late."""

    address: str
    node: str
    since_s: float
    shown_s: float
    settled: bool = False


@dataclass(slots=True)
class GpuOwners:
    """Owners by UUID, and the other agents that show the same GPU."""

    _owned: dict[str, _Owned] = field(default_factory=dict)
    _rivals: dict[str, dict[str, str]] = field(default_factory=dict)  # UUID: address: node
    _undecided: set[str] = field(default_factory=set)  # nobody was first

    def named(self, address: str, node: str) -> str:
        """The node's name where this agent owns it; else its address."""
        return node if self.owns(address, NAME + node) else address

    def owns(self, address: str, uuid: str) -> bool:
        owned = self._owned.get(uuid)
        return owned is not None and owned.address == address

    def conflict(self, uuid: str) -> str:
        """Why nobody may command the GPU; empty where its owner is known."""
        if uuid not in self._undecided:
            return ""
        named = " and ".join(sorted((self._owned[uuid].node, *self._rivals[uuid].values())))
        return f"nodes {named} both show it: `joulecut adopt NODE` decides"

    def conflicts(self, address: str) -> str:
        """The GPUs that an agent shows and others own; empty without one."""
        uuids = self.claimed(address)
        if not uuids:
            return ""
        if uuids[0] in self._undecided:
            return f"{uuids[0]}: {self.conflict(uuids[0])}"
        what = uuids[0] if uuids[0].startswith(NAME) else f"GPU {uuids[0]}"
        owner, more = self._owned[uuids[0]], f" and {len(uuids) - 1} more" if uuids[1:] else ""
        return (
            f"shows {what}{more} of agent {owner.address}: these count as that agent's, "
            f"`joulecut adopt NODE` changes it"
        )

    def claimed(self, address: str) -> tuple[str, ...]:
        """The GPUs, and the name of a node, that an agent shows and others own; sorted."""
        return tuple(sorted(uuid for uuid, rivals in self._rivals.items() if address in rivals))

    def claim(
        self, address: str, node: str, uuids: Collection[str], agents: Collection[str], now_s: float
    ) -> None:
        """The agent described itself with these GPUs; `agents` are all configured addresses."""
        uuids = {*uuids, NAME + node}
        if not uuids <= self._owned.keys():
            count = sum(one.address == address for one in self._owned.values())
            uuids = uuids if count < OWNED_MAX else uuids & self._owned.keys()
        for uuid, rivals in list(self._rivals.items()):
            for one in (self._owned[uuid].address, *rivals):
                if one not in agents or (one == address and uuid not in uuids):
                    self._retreat(uuid, one)
        for uuid in uuids:
            owned = self._owned.get(uuid)
            if owned is None or self._is_free(owned, node, agents, now_s):
                self._give(uuid, _Owned(address, node, now_s, now_s))
            elif owned.address == address:
                settled = owned.settled or now_s - owned.since_s > EQUAL_S
                self._owned[uuid] = replace(owned, node=node, shown_s=now_s, settled=settled)
            else:
                self._contest(uuid, owned, address, node, now_s)

    def adopt(self, node: str) -> tuple[str, ...]:
        """The GPUs in conflict that this node shows are its own from now on. Returns them."""
        moved = []
        for uuid, rivals in list(self._rivals.items()):
            owned = self._owned[uuid]
            address = next((a for a, name in rivals.items() if node in (a, name)), "")
            if address:
                given = replace(owned, address=address, node=rivals[address], settled=True)
            elif node in (owned.address, owned.node):
                given = replace(owned, settled=True)
            else:
                continue
            self._owned[uuid] = given
            self._undecided.discard(uuid)
            if address:
                rivals[owned.address] = owned.node
                self._withdraw(uuid, address)
            moved.append(uuid)
        return tuple(moved)

    def text(self, now_s: float) -> str:
        """Settled owners, for `restore`. GPUs that nobody has shown for an hour are forgotten."""
        for uuid in [u for u, one in self._owned.items() if now_s - one.shown_s > GONE_S]:
            del self._owned[uuid]
            self._rivals.pop(uuid, None)
            self._undecided.discard(uuid)
        settled = {
            uuid: [one.address, one.node]
            for uuid, one in sorted(self._owned.items())
            if (one.settled or now_s - one.since_s > EQUAL_S) and uuid not in self._undecided
        }
        return json.dumps(settled, separators=(",", ":"))

    def restore(self, text: str, now_s: float) -> None:
        """Owners as an earlier controller left them; they count before all that was shown since.
        Text that cannot be read names none.
        """
        for uuid, (address, node) in _read(text).items():
            seen = self._owned.get(uuid)
            self._owned[uuid] = _Owned(address, node, -math.inf, now_s, settled=True)
            self._undecided.discard(uuid)
            if seen is not None and seen.address != address:
                self._rivals.setdefault(uuid, {})[seen.address] = seen.node
            self._withdraw(uuid, address)

    def _is_free(self, owned: _Owned, node: str, agents: Collection[str], now_s: float) -> bool:
        moved = owned.address not in agents and owned.node == node
        return moved or now_s - owned.shown_s > GONE_S

    def _give(self, uuid: str, owned: _Owned) -> None:
        before = self._owned.get(uuid)
        self._owned[uuid] = replace(owned, settled=before is not None)
        self._rivals.pop(uuid, None)
        self._undecided.discard(uuid)

    def _contest(self, uuid: str, owned: _Owned, address: str, node: str, now_s: float) -> None:
        known = self._rivals.setdefault(uuid, {})
        if address not in known and not owned.settled and now_s - owned.since_s <= EQUAL_S:
            self._undecided.add(uuid)
        known[address] = node

    def _retreat(self, uuid: str, address: str) -> None:
        """The agent is gone or shows the GPU no more. An owner of an undecided one gives it up."""
        owned = self._owned[uuid]
        if address == owned.address:
            rivals = self._rivals.get(uuid)
            if uuid not in self._undecided or not rivals:
                return
            address = next(iter(rivals))
            self._owned[uuid] = replace(owned, address=address, node=rivals[address])
        self._withdraw(uuid, address)

    def _withdraw(self, uuid: str, address: str) -> None:
        rivals = self._rivals.get(uuid, {})
        rivals.pop(address, None)
        if not rivals:
            self._rivals.pop(uuid, None)
            self._undecided.discard(uuid)


def _read(text: str) -> Mapping[str, tuple[str, str]]:
    try:
        return msgspec.json.decode(text, type=dict[str, tuple[str, str]])
    except msgspec.DecodeError:
        return {}
