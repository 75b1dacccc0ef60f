"""A controller that dies must not be a power surge: 1,000 simulated GPUs, each node by itself.

The lease machines are the keepers' own, on a virtual clock; power is the simulated A100's.
No node knows of another: what spreads the restores is the GPU's own name.
"""

from dataclasses import dataclass, field

from keeper_requests import apply_of
from lease_machine import apply_event

from joulecut_agent.keeper.lease import State, restore_finished
from joulecut_sim.skus import find

NODES, GPUS_PER_NODE = 125, 8
TTL_S, SPREAD_S, TICK_S = 15.0, 60.0, 0.1
LOW_MHZ, HIGH_MHZ = 1005, 1410
SKU = find("a100-sxm", "here")


@dataclass
class Node:
    state: State
    low: set[str] = field(default_factory=set)

    def turn(self, now_s: float) -> None:
        done = apply_event(self.state, None, now_s)
        self.state = done.state
        for uuid, _ in done.restores:
            self.low.discard(uuid)
            self.state = restore_finished(self.state, uuid, True, now_s)


def _cluster(restore_jitter_s: float) -> list[Node]:
    nodes = []
    for n in range(NODES):
        uuids = [f"GPU-{n:04x}-{g}" for g in range(GPUS_PER_NODE)]
        done = apply_event(
            State(restore_jitter_s=restore_jitter_s),
            apply_of(1, "gpt", 1, TTL_S, dict.fromkeys(uuids, (0, LOW_MHZ))),
            0.0,
            {},
        )
        nodes.append(Node(done.state, set(uuids)))
    return nodes


def _powers_w(restore_jitter_s: float) -> list[float]:
    """The cluster's power at each tick after the controller's last word, until all is quiet."""
    nodes, powers_w = _cluster(restore_jitter_s), []
    low_w, high_w = SKU.load_power_w(LOW_MHZ, 1.0), SKU.load_power_w(HIGH_MHZ, 1.0)
    for tick in range(round((TTL_S + restore_jitter_s + 1.0) / TICK_S) + 1):
        for node in nodes:
            node.turn(tick * TICK_S)
        low = sum(len(node.low) for node in nodes)
        powers_w.append(low * low_w + (NODES * GPUS_PER_NODE - low) * high_w)
    assert not any(node.low for node in nodes), "all given back inside the bound"
    return powers_w


def _steepest_w_per_s(powers_w: list[float]) -> float:
    second = round(1.0 / TICK_S)
    return max(later - now for now, later in zip(powers_w, powers_w[second:], strict=False))


def test_a_thousand_gpus_rise_slowly_and_within_the_bound() -> None:
    powers_w = _powers_w(SPREAD_S)
    rise_w = powers_w[-1] - powers_w[0]
    assert rise_w > 100_000, "worth spreading"
    # Names fall on the line like dice: 17 of 1,000 in a second on average, sometimes twice that.
    assert _steepest_w_per_s(powers_w) <= 2.0 * rise_w / SPREAD_S
    before_end = powers_w[: round(TTL_S / TICK_S)]
    assert set(before_end) == {powers_w[0]}, "nothing moves while leases live"


def test_without_a_spread_they_rise_at_once() -> None:
    powers_w = _powers_w(0.0)
    assert _steepest_w_per_s(powers_w) == powers_w[-1] - powers_w[0]
