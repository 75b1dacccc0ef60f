"""The command `joulecut-agent`: run, keeper, restore.

Each subcommand imports what it needs and no more: a keeper carries no gRPC.
"""

import json
import os
import sys
from argparse import SUPPRESS
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecut_wire.command import Parser, guarded
from joulecut_wire.errors import BadInput, Unavailable

if TYPE_CHECKING:
    from joulecut_agent import keeper
    from joulecut_agent.ports.writer import DeviceWriter
    from joulecut_agent.settings import Settings

USAGE = "run | keeper | restore, each with --config FILE"


def main() -> int:
    return guarded("joulecut-agent", lambda: dispatch(sys.argv[1:]))


def dispatch(argv: list[str]) -> int:
    """Runs one subcommand. Raises JoulecutError."""
    _need_role()
    parser = Parser("joulecut-agent", "measures GPUs, and holds their clocks under leases")
    parser.add_argument("command", choices=("run", "keeper", "restore"), help=USAGE)
    parser.add_argument("--config", metavar="FILE", type=Path, help="the agent's configuration")
    parser.add_argument("--agent-fd", type=int, default=-1, help=SUPPRESS)
    parser.add_argument("--settings", default="", help=SUPPRESS)
    args = parser.parse_args(argv)
    try:
        if args.command == "keeper" and args.settings:
            return _child(args.agent_fd, args.settings)
        if args.config is None:
            raise BadInput("--config", "is missing", "the path of a configuration file")
        settings = _settings(args.config)
        return {"run": _run, "keeper": _keeper, "restore": _restore}[args.command](settings)
    except OSError as error:
        raise Unavailable(f"{error.filename or args.command}: {error.strerror or error}") from None


def _need_role() -> None:
    """Says what is missing before anything else fails on it. Raises Unavailable."""
    for module in ("google", "grpc", "msgspec", "prometheus_client", "yaml"):
        if find_spec(module) is None:
            raise Unavailable(f"{module} is not installed: pip install 'joulecut[agent]'")


def _settings(path: Path) -> "Settings":
    from joulecut_agent import config  # noqa: PLC0415

    settings = config.load(path)
    Path(settings.keeper.state_dir).mkdir(mode=0o750, parents=True, exist_ok=True)
    return settings


def _run(settings: "Settings") -> int:
    from joulecut_agent.loop import Agent  # noqa: PLC0415

    return Agent(settings).run()


def _keeper(settings: "Settings") -> int:
    return _keep(settings.keeper, settings.device, settings.options, -1)


def _keep(settings: "keeper.Settings", device: str, options: dict[str, Any], agent_fd: int) -> int:
    from joulecut_agent import devices, keeper, memory  # noqa: PLC0415
    from joulecut_agent.hand import Hand  # noqa: PLC0415

    backend = devices.load(device)

    def open_writer() -> "DeviceWriter":
        writer = backend.open_writer(options, settings.state_dir)
        memory.give_back()
        return writer

    return keeper.run(settings, Hand(open_writer), agent_fd)


def _restore(settings: "Settings") -> int:
    from joulecut_agent import devices, restore  # noqa: PLC0415

    backend = devices.load(settings.device)
    state_dir = settings.keeper.state_dir
    sockets = [Path(state_dir) / "keeper.sock"]
    if settings.keeper_mode not in {"child", "none"}:
        sockets.insert(0, Path(settings.keeper_mode))
    return restore.run(
        settings.keeper, sockets, lambda: backend.open_writer(settings.options, state_dir)
    )


def _child(agent_fd: int, given_as: str) -> int:
    """A keeper for the agent at `agent_fd`: that one has read the configuration already, so
    that a file broken since then cannot keep a keeper from restoring.
    """
    from joulecut_agent import keeper  # noqa: PLC0415
    from joulecut_agent.limits import Bounds  # noqa: PLC0415

    os.set_inheritable(agent_fd, False)
    given: dict[str, Any] = json.loads(given_as)
    words = given["keeper"]
    words["bounds"] = Bounds(**words["bounds"])
    if words["site_default"] is not None:
        words["site_default"] = tuple(words["site_default"])
    settings = keeper.Settings(**words)
    return _keep(settings, given["device"], given["options"], agent_fd)


if __name__ == "__main__":
    sys.exit(main())
