"""Collectives of one group of GPUs: ring algorithms over the links that its placement uses.

Ranks are placed as Megatron-LM places them: tensor, then context, then data, then pipeline. A ring
that leaves the node crosses with all of its members of that node at once, each through its own
network interface.
"""

from dataclasses import dataclass

import numpy as np

from joulecut_lab.model.runs import Flags, Floats
from joulecut_lab.model.system import System

BITS = 8.0
# Rate of kernels that forward within a node over that of NCCL: 44 of 50 GB/s leave an H800 for 3 or
# 7 other nodes (DeepEP, 57 and 51 GB/s with what stays), NCCL's 0.75 of the link are assumed.
FORWARDED = 0.88 / 0.75


@dataclass(slots=True)
class Group:
    """`size` GPUs, `stride` ranks apart. Rates in bytes per second per GPU and direction."""

    size: Floats
    local: Floats  # members in one node
    bytes_s: Floats
    latency_s: Floats
    inside: Flags  # all members share the fast links
    up_bytes_s: float  # of the fast links, and of one member's slow one
    own_bytes_s: float

    def all_reduce(self, volume: Floats) -> Floats:
        return 2.0 * self.gather(volume)

    def gather(self, volume: Floats) -> Floats:
        """All-gather or reduce-scatter; `volume` is the whole of it, in bytes."""
        return self._time((self.size - 1.0) / self.size * volume)

    def exchange(self, volume: Floats, crossing: Floats | float = 1.0) -> Floats:
        """All-to-all of `volume` bytes that each member holds. What leaves the node takes the
        member's own slow link, beside the rest; `crossing` is the share of it that does, where a
        node forwards what several of its members want.
        """
        once = crossing < 1.0
        apart = (self.size - self.local) / self.size * volume * crossing
        near = (self.size - 1.0) / self.size * volume
        near = np.where(self.inside | once, near, near - apart)
        rate = np.where(once, self.own_bytes_s * FORWARDED, self.own_bytes_s)
        slow = np.where(self.inside, 0.0, apart / rate)
        steps = np.log2(np.maximum(self.size, 1.0))
        spent = np.maximum(near / self.up_bytes_s, slow) + steps * self.latency_s
        return np.where(self.size > 1.0, spent, 0.0)

    def pass_on(self, volume: Floats) -> Floats:
        """A ring step repeated until every member has seen every `volume`. Only the last member in
        a node sends out of it, through its own interface, and every step waits for it.
        """
        rate = np.where(self.inside, self.up_bytes_s, self.own_bytes_s)
        return np.where(self.size > 1.0, (self.size - 1.0) * (volume / rate + self.latency_s), 0.0)

    def bits(self, time_bytes: Floats) -> tuple[Floats, Floats]:
        """Bits over fast and over slow links of one GPU for bytes that it sends."""
        sent = BITS * (self.size - 1.0) / self.size * time_bytes
        crossing = np.where(self.inside, 0.0, 1.0 / self.local)
        return sent * (1.0 - crossing), sent * crossing

    def _time(self, sent: Floats) -> Floats:
        steps = np.log2(np.maximum(self.size, 1.0))
        return np.where(self.size > 1.0, sent / self.bytes_s + steps * self.latency_s, 0.0)


def group(system: System, size: Floats, stride: Floats) -> Group:
    local = np.clip(np.floor(system.domain / stride), 1.0, size)
    return _placed(system, size, local, local >= size)


def neighbour(system: System, distance: Floats, gpus: Floats) -> Group:
    """A pair `distance` ranks apart. Some pair of a long pipeline crosses nodes: the slowest."""
    inside, two = gpus <= system.domain, np.full_like(distance, 2.0)
    return _placed(system, two, np.where(inside, two, 1.0), inside)


def _placed(system: System, size: Floats, local: Floats, inside: Flags) -> Group:
    up = system.scale_up_gb_s * 1e9 * system.scale_up_efficiency
    out = system.scale_out_gb_s * 1e9 * system.scale_out_efficiency
    bytes_s = np.where(inside, up, np.minimum(up, out * local))
    latency_s = np.where(inside, system.scale_up_latency_s, system.scale_out_latency_s)
    return Group(size, local, bytes_s, latency_s, inside, up, out)
