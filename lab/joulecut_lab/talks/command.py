"""`joulecut study talks`: every figure and table of four public talks, one page a talk.

joulecut study talks --out DIR [--only TALK,...]
"""

import importlib
from pathlib import Path

from joulecut_cli.progress import Progress
from joulecut_lab.study.report import folder
from joulecut_lab.talks.exhibit import Talk
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput
from joulecut_wire.flags import words

# Each is a module with a TITLE and a list PARTS of functions that return exhibits.
TALKS = ("layers", "efficiency", "components", "bloat")


def run(argv: list[str]) -> int:
    """The exit status. Raises BadInput, Unavailable."""
    parser = Parser("joulecut study talks", "Figures and tables of four talks, one page a talk.")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the pages")
    parser.add_argument(
        "--only", type=words(*TALKS), default=TALKS, metavar="TALK,...", help=", ".join(TALKS)
    )
    args = parser.parse_args(argv)
    out = folder(args.out, "--out")
    modules = {name: importlib.import_module(f"joulecut_lab.talks.{name}") for name in args.only}
    whole, done = sum(len(module.PARTS) for module in modules.values()), 0
    pages: list[Path] = []
    with Progress("exhibits") as progress:
        for name, module in modules.items():
            exhibits = []
            for part in module.PARTS:
                exhibits += part()
                done += 1
                progress.advance(done, whole)
            try:
                out.mkdir(exist_ok=True)
                pages.append(Talk(name, module.TITLE, exhibits).write(out))
            except OSError as error:
                raise BadInput(
                    str(out), error.strerror or "cannot be written", "a folder"
                ) from None
    print(*pages, sep="\n")
    return FINE
