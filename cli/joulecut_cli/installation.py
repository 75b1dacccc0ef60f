"""What is wrong with an installation, without any job: one step for each thing that must hold.

A node is examined by its agent's configuration, a controller by its own or by its URL, scraping by
a Prometheus. Steps do not build on each other: each that fails names its own next step.
"""

import grp
import os
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from joulecut_cli.agent_lease import agent_at
from joulecut_cli.controller_client import Controller, Json
from joulecut_cli.doctor import Step, agents
from joulecut_cli.figures import seconds
from joulecut_wire import card_facts, document, tls
from joulecut_wire.errors import BadInput, JoulecutError, Unavailable
from joulecut_wire.messages import NodeDescription
from joulecut_wire.tls import TlsFiles

if TYPE_CHECKING:
    from joulecut_agent.settings import Settings

INSTALLED = tuple(Path(f"/etc/joulecut/{name}.yaml") for name in ("agent", "controller"))
FREE_BYTES_MIN = 64 << 20  # journals, audit trail and store grow by some MB a day
CERT_LEFT_S = 14 * 86_400.0  # time to renew it; as JoulecutCertificateExpires
DRIVER_MIN = 535  # older ones have neither both powers nor the reasons for lower clocks
SCRAPED = "joulecut_build_info"
SCRAPE_S = 300.0  # five scrapes at the usual interval
SELFTEST = "joulecut selftest --write --save FILE, then measured: FILE in its configuration"


@dataclass(frozen=True, slots=True)
class Parts:
    """What is to be examined; None or empty: not that."""

    agent: Path | None = None
    controller: Path | None = None
    url: str = ""
    prometheus: str = ""


def parts(configs: Sequence[Path], url: str | None, prometheus: str | None) -> Parts:
    """The kind of each configuration by its keys. Raises BadInput on one that is neither."""
    given = list(configs) or [path for path in INSTALLED if path.exists()]
    kinds: dict[str, Path] = {}
    for path in given:
        data = document.load(path).data
        keys = set(data) if isinstance(data, dict) else set()
        if not keys & {"device", "agents"}:
            raise BadInput(str(path), "neither `device` nor `agents`", "an agent's, a controller's")
        kind = "agent" if "device" in keys else "controller"
        if kinds.setdefault(kind, path) != path:
            raise BadInput("--config", f"{kinds[kind]} and {path} are of the same role", "one each")
    if not (kinds or url or prometheus):
        allowed = "--config FILE, --controller URL, --prometheus URL, or a JOB"
        raise BadInput("joulecut doctor", "nothing is installed here", allowed)
    return Parts(kinds.get("agent"), kinds.get("controller"), url or "", prometheus or "")


def examined(wanted: Parts) -> Iterator[Step]:
    """Raises BadInput on a configuration that no agent or controller would start with."""
    url = wanted.url
    if wanted.agent is not None:
        yield from _node(wanted.agent)
    if wanted.controller is not None:
        from joulecut_controller import config

        found = config.read(wanted.controller)
        url = url or f"http://{found.http[0]}:{found.http[1]}"
        if found.tls is not None:
            yield _certificate("controller", found.tls)
        if found.store.startswith(config.STORE_PREFIX):
            yield _disk(Path(found.store.removeprefix(config.STORE_PREFIX)).parent)
        try:
            yield _names(found.agents.addresses())
        except JoulecutError as error:
            yield Step("names", False, str(error), f"agents in {wanted.controller}")
    if url:
        yield from _controller(url)
    if wanted.prometheus:
        yield _scraped(wanted.prometheus)


# -- a node --------------------------------------------------------------------------------------


def _node(path: Path) -> Iterator[Step]:
    from joulecut_agent import config

    found = config.load(path)
    state_dir = Path(found.keeper.state_dir)
    sockets = [found.socket, found.local_socket.path if found.local_socket else ""]
    wanted = [state_dir, Path(found.keeper.journal_dir or state_dir)]
    wanted += [Path(one).parent for one in sockets if one]
    yield _directories(wanted)
    if state_dir.is_dir():
        yield _disk(state_dir)
    yield _alone(path, found)
    if found.tls is not None:
        yield _certificate("agent", found.tls)
    if found.local_socket is not None:
        yield _group(found.local_socket.path, found.local_socket.group)
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


def _directories(wanted: Sequence[Path]) -> Step:
    missing = next((one for one in wanted if not one.is_dir()), None)
    if missing is None:
        return Step("directories", True, "all there")
    mend = "StateDirectory= or RuntimeDirectory= of the unit, or mkdir with its user as owner"
    return Step("directories", False, f"no directory {missing}", mend)


def _disk(folder: Path) -> Step:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Step("disk", False, f"{folder}: {error.strerror}", "the directory of its unit")
    found = f"{free / 2**20:.0f} MiB free for {folder}"
    return Step("disk", free >= FREE_BYTES_MIN, found, f"free space on the disk of {folder}")


def _alone(path: Path, mine: "Settings") -> Step:
    """Whether another agent of this machine has the same GPUs."""
    from joulecut_agent import config

    for pid, other in _agents():
        try:
            same = other != path.resolve() and _devices(config.load(other)) == _devices(mine)
        except (BadInput, OSError):
            continue
        if same:
            found = f"process {pid} is an agent of the same GPUs, by {other}"
            return Step("one agent", False, found, f"end its unit, or kill {pid}")
    return Step("one agent", True, "no other one has these GPUs")


def _devices(settings: "Settings") -> tuple[str, str]:
    """What two agents with the same GPUs have in common."""
    simulated = settings.device != "nvml"
    folder, state = Path(settings.keeper.state_dir), settings.options.get("state", "gpus.state")
    return settings.device, str(folder / state) if simulated else ""


def _agents() -> Iterator[tuple[int, Path]]:
    """The agents that run on this machine, with their configurations."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
            names = [Path(word).name for word in words[:3]]
            if "joulecut-agent" not in names or "run" not in words or "--config" not in words:
                continue
            config = words[words.index("--config") + 1]
            cwd = (entry.parent / "cwd").readlink()
            yield int(entry.parent.name), (cwd / config).resolve()
        except (OSError, IndexError):
            continue  # it has ended, or is another user's


def _certificate(whose: str, files: TlsFiles) -> Step:
    name = f"{whose}'s certificate"
    try:
        left_s = tls.expires_unix_s(files.cert, tls.contents(files.cert)) - time.time()
    except BadInput as error:
        return Step(name, False, str(error), "cert of its tls")
    if left_s <= 0.0:
        return Step(name, False, f"{files.cert} expired {seconds(-left_s)} ago", "renew it")
    return Step(name, left_s > CERT_LEFT_S, f"valid for {seconds(left_s)}", "renew it soon")


def _group(path: str, group: str) -> Step:
    name = "command socket"
    try:
        gid = grp.getgrnam(group).gr_gid if group else None
    except KeyError:
        return Step(name, False, f"no group {group}", f"groupadd --system {group}")
    try:
        seen = os.stat(path)
    except OSError as error:
        return Step(name, False, f"{path}: {error.strerror}", "systemctl status joulecut-agent")
    if gid is not None and seen.st_gid != gid:
        found = f"{path} belongs to group {seen.st_gid}, not {group}"
        return Step(name, False, found, f"the agent's user into group {group}, then restart it")
    if not os.access(path, os.W_OK):
        mend = f"usermod -aG {group or seen.st_gid} USER, then a new login"
        return Step(name, False, f"you are not in the group of {path}", mend)
    return Step(name, True, f"{path}, group {group or seen.st_gid}")


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
        return Step("control", True, f"{len(about.gpus)} GPUs may be set")
    first = fixed[0]
    is_locked = "site_default" in first.reason
    found = (
        f"{len(fixed)} of {len(about.gpus)} GPUs may not be set: GPU {first.index}: {first.reason}"
    )
    return Step("control", False, found, mend if is_locked else "systemctl status joulecut-keeper")


# -- a controller, and who scrapes ---------------------------------------------------------------


def _names(addresses: Sequence[str]) -> Step:
    for address in addresses:
        host = address.rpartition(":")[0].strip("[]")
        if address.startswith("unix:"):
            continue
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            found = f"{host}: {error.strerror or error}"
            return Step("names", False, found, f"DNS, or /etc/hosts, or the address of {host}")
    return Step("names", True, f"{len(addresses)} agents have addresses")


def _controller(url: str) -> Iterator[Step]:
    controller = Controller(url)
    try:
        board = controller.board()
    except Unavailable as error:
        yield Step("controller", False, str(error), "systemctl status joulecut-controller")
        return
    yield Step("controller", True, f"answers at {controller.url}, mode {board['mode']}")
    ahead_s = controller.skew_s
    found = f"{seconds(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'} the controller's"
    yield Step(
        "clock", not ahead_s, found if ahead_s else "as the controller's", "chronyc tracking"
    )
    yield agents(board)
    shared = [node for node in board["nodes"] if node.get("is_shared")]
    if shared:
        found = f"{shared[0]['node']} has another one, with a store of its own"
        yield Step("controllers", False, found, "docs/runbook.md#joulecuttwocontrollers")
    yield _matched(board)
    yield _rated(board)


def _matched(board: Json) -> Step:
    empty = [job["name"] for job in board["jobs"] if not job["gpus"] and not job["found"]]
    if not empty:
        return Step("policy", True, f"{len(board['jobs'])} jobs have GPUs")
    found = f"{empty[0]} matches no GPU" + (f", nor do {len(empty) - 1} more" if empty[1:] else "")
    mend = f"its match in {board['policy']['source'] or 'the policy'}; joulecut status lists GPUs"
    return Step("policy", False, found, mend)


def _rated(board: Json) -> Step:
    silent = [job["name"] for job in board["jobs"] if job["gpus"] and job["report_age_s"] is None]
    if not silent:
        return Step("rates", True, "every job with GPUs reports")
    return Step("rates", False, f"{silent[0]} has no rate", f"joulecut doctor {silent[0]}")


def _scraped(url: str) -> Step:
    from joulecut_controller.sources.prometheus import Access, Prometheus

    now_s = time.time()
    try:
        names = Prometheus(url, Access()).names(now_s - SCRAPE_S, now_s, SCRAPED)
    except Unavailable as error:
        return Step("scraping", False, str(error), "--prometheus URL selects another")
    if SCRAPED in names:
        return Step("scraping", True, f"{url} has metrics of agents")
    mend = "scrape_configs: joulecut deploy prometheus, then reload it"
    return Step("scraping", False, f"{url} scrapes no agent and no controller", mend)
