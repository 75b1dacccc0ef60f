"""The command `joulecut-controller --config FILE`.

Arguments and configuration are checked before the process is imported, which takes seconds.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

from joulecut_controller import __version__
from joulecut_wire.command import Parser, guarded
from joulecut_wire.errors import Unavailable

NAME = "joulecut-controller"


def main() -> int:
    return guarded(NAME, lambda: run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Runs until stopped by a signal. Raises BadInput, Unavailable."""
    parser = Parser(NAME, "Plans GPU clocks for the jobs of a policy.")
    parser.add_argument("--version", action="version", version=f"{NAME} {__version__}")
    parser.add_argument("--config", type=Path, required=True, help="configuration (YAML)")
    path = parser.parse_args(argv).config
    for module in ("yaml", "pydantic", "grpc", "numba", "starlette", "sqlalchemy", "pg8000"):
        if find_spec(module) is None:
            raise Unavailable(f"{module} is not installed: pip install 'joulecut[controller]'")

    from joulecut_controller import config  # noqa: PLC0415 -- only with a role

    settings = config.read(path)
    from joulecut_controller import process  # noqa: PLC0415 -- only with settings

    return process.run(settings)


if __name__ == "__main__":
    sys.exit(main())
