"""The command `joulecut-controller --config FILE`.

Arguments and configuration are checked before the process is imported, which takes seconds.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

from joulecut_controller import __version__, log
from joulecut_wire import log_line
from joulecut_wire.command import Parser, guarded
from joulecut_wire.errors import not_installed


def main() -> int:
    return guarded(log.NAME, lambda: run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Runs until stopped by a signal. Raises BadInput, Unavailable."""
    parser = Parser(log.NAME, "Plans GPU clocks for the jobs of a policy.")
    parser.add_argument("--version", action="version", version=f"{log.NAME} {__version__}")
    parser.add_argument("--config", type=Path, required=True, help="configuration (YAML)")
    parser.add_argument(
        "--log-format",
        choices=log_line.FORMATS,
        default=log_line.TEXT,
        help="lines of standard error as text (default) or JSON",
    )
    args = parser.parse_args(argv)
    log.use(args.log_format)
    modules = ("yaml", "grpc", "numba", "starlette", "sqlalchemy", "pg8000")
    if missing := [module for module in modules if find_spec(module) is None]:
        what = f"modules of the controller are missing ({', '.join(missing)})"
        raise not_installed(what, "controller")

    from joulecut_controller import config  # noqa: PLC0415 -- only with a role

    settings = config.read(args.config)
    from joulecut_controller import process  # noqa: PLC0415 -- only with settings

    return process.run(settings)


if __name__ == "__main__":
    sys.exit(main())
