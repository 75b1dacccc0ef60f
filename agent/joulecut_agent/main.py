"""The command `joulecut-agent`.

Each subcommand imports only what it needs: a keeper has no gRPC, and `--help` has nothing.
"""

import gc
import json
import os
import sys
from argparse import SUPPRESS
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecut_agent import __version__
from joulecut_wire import log_line
from joulecut_wire.command import Parser, guarded
from joulecut_wire.errors import BadInput, Unavailable, not_installed

if TYPE_CHECKING:
    from joulecut_agent.keeper.settings import Settings as KeeperSettings
    from joulecut_agent.ports.writer import DeviceWriter
    from joulecut_agent.settings import Settings

COMMANDS = ("run", "keeper", "restore", "reset-epoch")
GONE = {  # answered until 0.3
    "release": "joulecut release unix:PATH --for TIME, with PATH of listen.grpc_socket",
    "resume": "joulecut resume unix:PATH, with PATH of listen.grpc_socket",
    "audit": "audit.jsonl in state_dir, a JSON object a line",
}
LOCK = "agent.lock"  # as in the loop


def main() -> int:
    return guarded("joulecut-agent", lambda: dispatch(sys.argv[1:]))


def dispatch(argv: list[str]) -> int:
    """Runs one subcommand. Raises JoulecutError."""
    if argv and argv[0] in GONE:
        raise BadInput(f"joulecut-agent {argv[0]}", "is gone", GONE[argv[0]])
    parser = Parser("joulecut-agent", "Measures GPUs, and holds their clocks under leases.")
    version = f"%(prog)s {__version__}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("command", choices=COMMANDS, help="each needs --config FILE")
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="configuration file of the agent"
    )
    parser.add_argument("--node", metavar="NAME", help="for run: name of this node")
    parser.add_argument(
        "--keep-power-limits", action="store_true", help="for restore: clocks alone, under a budget"
    )
    parser.add_argument(
        "--log-format", choices=log_line.FORMATS, default=log_line.TEXT,
        help="lines of standard error as text (default) or JSON",
    )  # fmt: skip
    parser.add_argument("--agent-fd", type=int, default=-1, help=SUPPRESS)
    parser.add_argument("--settings", default="", help=SUPPRESS)
    args = parser.parse_args(argv)
    log_line.use(args.log_format)
    _check_installed()
    try:
        if args.command == "keeper" and args.settings:
            return _child(args.agent_fd, args.settings)
        if args.config is None:
            raise BadInput("--config", "is missing", "the path of a configuration file")
        for given, flag, command, use in (
            (args.keep_power_limits, "--keep-power-limits", "restore", "restore"),
            (args.node is not None, "--node", "run", "run --node NAME"),
        ):
            if given and command != args.command:
                raise BadInput(flag, f"has no meaning for {args.command}", use)
        settings = _settings(args.config, args.node)
        if args.command == "restore":
            return _restore(settings, lift_power_limits=not args.keep_power_limits)
        commands = {"run": _run, "keeper": _keeper, "reset-epoch": _reset_epoch}
        return commands[args.command](settings)
    except OSError as error:
        raise Unavailable(f"{error.filename or args.command}: {error.strerror or error}") from None


def _check_installed() -> None:
    """Raises Unavailable if a package of the agent is not installed."""
    modules = ("google", "grpc", "msgspec", "prometheus_client", "yaml")
    if missing := [module for module in modules if find_spec(module) is None]:
        raise not_installed(f"modules of the agent are missing ({', '.join(missing)})", "agent")


def _settings(path: Path, node: str | None = None) -> "Settings":
    from joulecut_agent import config  # noqa: PLC0415

    settings = config.load(path, node)
    # World-readable (owners); files with secrets have their own mode.
    for folder in _folders(settings):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    return settings


def _folders(settings: "Settings") -> list[Path]:
    keeper = settings.keeper
    return [Path(folder) for folder in (keeper.state_dir, keeper.journal_dir) if folder]


def _run(settings: "Settings") -> int:
    # Read when gRPC loads: an address in use is reported in one line of ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from joulecut_agent.loop import Agent  # noqa: PLC0415

    bare = [folder for folder in _folders(settings) if not any(folder.iterdir())]
    try:
        return Agent(settings).run()
    except BadInput:  # of a device's options, which its back end judges
        for folder in bare:
            with suppress(OSError):
                (folder / LOCK).unlink(missing_ok=True)
                folder.rmdir()
        raise


def _keeper(settings: "Settings") -> int:
    """A keeper as a service. Inside a release window it opens nothing until the window is over.

    A window begins without a lock of ours; if the journal names one, it is restored first.
    """
    from joulecut_agent.control import release_file  # noqa: PLC0415
    from joulecut_agent.keeper import keeper  # noqa: PLC0415
    from joulecut_agent.log import log  # noqa: PLC0415
    from joulecut_agent.notify import Notifier  # noqa: PLC0415

    notifier = Notifier()
    notifier.feed_always()
    window = release_file.of_this_boot(settings.keeper.state_dir)
    if window.left_s() and keeper.journal(settings.keeper).is_restored:

        def released() -> None:  # once a signal to leave is obeyed
            log("keeper", "started inside a release window: nothing is opened until it is over")
            notifier.ready("released: no device is opened")

        if not window.wait(released):
            return 0
    ready = partial(notifier.ready, "earlier settings are restored")
    return _keep(settings.keeper, settings.device, settings.options, ready=ready)


def _keep(
    settings: "KeeperSettings", device: str, options: dict[str, Any], agent_fd: int = -1,
    ready: Callable[[], None] = lambda: None,
) -> int:  # fmt: skip
    from joulecut_agent import devices, memory  # noqa: PLC0415
    from joulecut_agent.keeper import service  # noqa: PLC0415
    from joulecut_agent.keeper.writer_process import WriterProcess  # noqa: PLC0415

    backend = devices.load(device)

    def open_writer() -> "DeviceWriter":
        writer = backend.open_writer(options, settings.state_dir)
        memory.give_back()
        return writer

    gc.freeze()  # objects of the start live on; a collection must not delay a write
    return service.run(settings, WriterProcess(open_writer), agent_fd, ready)


def _recorded(settings: "Settings", op: str, act: Callable[[], int], **asked: Any) -> int:
    from joulecut_agent.control import audit_log  # noqa: PLC0415

    folder = Path(settings.keeper.state_dir)
    return audit_log.record_command(folder, settings.audit, op, act, **asked)


def _restore(settings: "Settings", *, lift_power_limits: bool) -> int:
    from joulecut_agent import devices, restore  # noqa: PLC0415

    open_writer = partial(
        devices.load(settings.device).open_writer, settings.options, settings.keeper.state_dir
    )
    asked = settings.keeper, _sockets(settings), open_writer
    act = partial(restore.run, *asked, lift_power_limits=lift_power_limits)
    return _recorded(settings, "restore", act)


def _reset_epoch(settings: "Settings") -> int:
    from joulecut_agent.control import epoch_reset  # noqa: PLC0415

    act = partial(epoch_reset.reset, settings.keeper, _sockets(settings))
    return _recorded(settings, "reset-epoch", act)


def _sockets(settings: "Settings") -> list[Path]:
    """Sockets on which a keeper of this node may listen."""
    sockets = [Path(settings.keeper.state_dir) / "keeper.sock"]
    if settings.keeper_mode not in {"child", "none"}:
        sockets.insert(0, Path(settings.keeper_mode))
    return sockets


def _child(agent_fd: int, given_as: str) -> int:
    """A keeper for the agent at `agent_fd`: that one has read the configuration already, so
    that a file broken since then cannot keep a keeper from restoring.
    """
    import msgspec  # noqa: PLC0415

    from joulecut_agent.keeper.settings import Settings  # noqa: PLC0415

    os.set_inheritable(agent_fd, False)
    given: dict[str, Any] = json.loads(given_as)
    settings = msgspec.convert(given["keeper"], Settings)
    return _keep(settings, given["device"], given["options"], agent_fd)


if __name__ == "__main__":
    sys.exit(main())
