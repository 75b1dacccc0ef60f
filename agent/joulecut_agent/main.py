"""The command `joulecut-agent`: run, keeper, restore.

Each subcommand imports what it needs and no more: a keeper carries no gRPC.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecut_wire.command import Parser, guarded
from joulecut_wire.errors import BadInput, Unavailable

if TYPE_CHECKING:
    from joulecut_agent.settings import Settings

USAGE = "run | keeper | restore, each with --config FILE"


def main() -> int:
    return guarded("joulecut-agent", lambda: dispatch(sys.argv[1:]))


def dispatch(argv: list[str]) -> int:
    """Runs one subcommand. Raises JoulecutError."""
    parser = Parser("joulecut-agent", "measures GPUs, and holds their clocks under leases")
    parser.add_argument("command", choices=("run", "keeper", "restore"), help=USAGE)
    parser.add_argument("--config", metavar="FILE", type=Path, help="the agent's configuration")
    parser.add_argument("--agent-fd", type=int, default=-1, help="set by the agent for its child")
    parser.add_argument("--settings", default="", help="set by the agent for its child")
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


def _settings(path: Path) -> "Settings":
    try:
        from joulecut_agent import config  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise Unavailable(f"{error.name} is not installed: pip install 'joulecut[agent]'") from None
    settings = config.load(path)
    Path(settings.keeper.state_dir).mkdir(mode=0o750, parents=True, exist_ok=True)
    return settings


def _run(settings: "Settings") -> int:
    from joulecut_agent.loop import Agent  # noqa: PLC0415

    return Agent(settings).run()


def _keeper(settings: "Settings") -> int:
    from joulecut_agent import devices, keeper  # noqa: PLC0415

    backend = devices.load(settings.device)
    state_dir = settings.keeper.state_dir
    return keeper.run(settings.keeper, lambda: backend.open_writer(settings.options, state_dir))


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


def _child(agent_fd: int, words: str) -> int:
    """A keeper for the agent at `agent_fd`: that one has read the configuration already, so
    that a file broken since then cannot keep a keeper from restoring.
    """
    from joulecut_agent import devices, keeper  # noqa: PLC0415
    from joulecut_agent.limits import Bounds  # noqa: PLC0415

    os.set_inheritable(agent_fd, False)
    given: dict[str, Any] = json.loads(words)
    default = given["keeper"]["site_default"]
    settings = keeper.Settings(
        given["keeper"]["state_dir"],
        Bounds(**given["keeper"]["bounds"]),
        None if default is None else (default[0], default[1]),
    )
    backend = devices.load(given["device"])
    return keeper.run(
        settings, lambda: backend.open_writer(given["options"], settings.state_dir), agent_fd
    )


if __name__ == "__main__":
    sys.exit(main())
