"""What is wrong with a node, without any job: what answers there, and what it can do.

Steps do not build on each other: each that fails names its own next step. What a daemon refuses at
its start stands in its log, and what comes later is an alert: neither is examined again.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from joulecut_agent import config
from joulecut_cli.agent_lease import agent_at
from joulecut_cli.doctor import Step
from joulecut_cli.figures import seconds
from joulecut_wire import card_facts
from joulecut_wire.errors import Unavailable
from joulecut_wire.messages import NodeDescription

DRIVER_MIN = 535  # older ones have neither both powers nor the reasons for lower clocks
SELFTEST = "joulecut selftest --write --save FILE, then measured: FILE in its configuration"


def examined(path: Path) -> Iterator[Step]:
    """By the agent's configuration. Raises BadInput on one that no agent would start with."""
    found = config.load(path)
    yield _keeper(found.keeper_mode)
    if found.device == "nvml":
        yield from _driver(found.measured)
    if found.local_socket is None:
        return
    try:
        agent = agent_at("listen.grpc_socket", f"unix:{found.local_socket.path}")
        described, drifts = agent.describe(), {one.uuid: one.drift for one in agent.seen().gpus}
    except Unavailable as error:
        yield Step("agent", False, str(error), "systemctl status joulecut-agent")
        return
    yield Step("agent", True, f"answers, {len(described.gpus)} GPUs")
    yield _clocks(described, drifts)
    if kept := agent.kept_limits():
        yield Step("kept limits", True, kept)


def _keeper(mode: str) -> Step:
    if mode == "none":
        return Step("keeper", True, "none: this node is measured, and no clock is set")
    if mode == "child":
        return Step("keeper", True, "a child of the agent (for trials)")
    from joulecut_agent.keeper.client import KeeperClient, KeeperGone

    client = KeeperClient("")
    try:
        client.connect(mode)
        client.refresh()
    except KeeperGone as error:
        mend = "systemctl enable --now joulecut-keeper"
        return Step("keeper", False, str(error), "" if client.mismatch else mend)
    finally:
        client.detach()
    return Step("keeper", True, f"listens at {mode}")


def _driver(measured: Sequence[card_facts.CardFacts]) -> Iterator[Step]:
    from joulecut_agent.nvml.card import identify
    from joulecut_agent.ports.failure import DeviceError

    try:
        cards, unread = identify()
    except DeviceError as error:
        yield Step(
            "driver", False, str(error), "load the NVIDIA driver, until nvidia-smi lists the GPUs"
        )
        return
    version = cards[0].driver if cards else ""
    major = version.partition(".")[0]
    new = not major.isdigit() or int(major) >= DRIVER_MIN
    found = f"{version or 'no GPU'}, {len(cards)} GPUs"
    mend = f"driver {DRIVER_MIN} or newer"
    if unread:
        first = min(unread)
        found = f"{len(cards)} of {len(cards) + len(unread)} GPUs open: {unread[first]}"
        mend = f"restart the container; outside one reset GPU {first}: nvidia-smi --gpu-reset"
    yield Step("driver", new and bool(cards) and not unread, found, mend)
    pending = [card for card in cards if len(set(card.ecc)) > 1]
    found = f"GPU {pending[0].index} changes its mode at the next reset" if pending else "settled"
    yield Step("ECC", not pending, found, "joulecut release NODE, then nvidia-smi --gpu-reset")
    ages_s = [
        facts.age_s()
        for card in cards
        if (facts := card_facts.valid_for(measured, card.uuid, card.driver, card.vbios))
    ]
    found = f"{len(ages_s)} of {len(cards)} GPUs on measured values, the others on assumed ones"
    if ages_s:
        found += f"; measured {seconds(max(ages_s))} ago"
    yield Step("measured", True, found + ("" if len(ages_s) == len(cards) else f" ({SELFTEST})"))


def _clocks(about: NodeDescription, drifts: dict[str, str]) -> Step:
    mend = "nvidia-smi -rgc and the end of what locks, or site_default in the agent's configuration"
    if about.stopped:
        return Step("control", False, about.stopped, "joulecut resume, or remove the stop file")
    for gpu in about.gpus:
        if drift := drifts.get(gpu.uuid, ""):
            return Step(
                "control", False, f"GPU {gpu.index}: another sets its clocks: {drift}", mend
            )
    fixed = [gpu for gpu in about.gpus if not gpu.controllable]
    if not fixed:
        return Step("control", True, f"GPUs that may be set: {len(about.gpus)}")
    first = fixed[0]
    is_locked = "site_default" in first.reason
    found = (
        f"{len(fixed)} of {len(about.gpus)} GPUs may not be set: GPU {first.index}: {first.reason}"
    )
    return Step("control", False, found, mend if is_locked else "systemctl status joulecut-keeper")
