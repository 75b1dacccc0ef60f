"""`joulecut study talks`: every figure and table of four public talks, one page a talk."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

from joulecut_cli.progress import Progress
from joulecut_lab.exhibit import Exhibit, talk
from joulecut_lab.study.report import folder
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput
from joulecut_wire.quantity import shown

# Each is a module with a TITLE and a list PARTS of functions that return exhibits.
Part = Callable[[], Iterator[Exhibit]]
TALKS = ("layers", "efficiency", "components", "bloat")


def run(argv: list[str]) -> int:
    """The exit status. Raises BadInput, Unavailable."""
    parser = Parser("joulecut study talks", "Figures and tables of four talks, one page a talk.")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the pages")
    parser.add_argument(
        "--only", default=",".join(TALKS), metavar="TALK[:PART],...",
        help=f"{', '.join(TALKS)}, or a part of one: bloat:five",
    )  # fmt: skip
    args = parser.parse_args(argv)
    out = folder(args.out)
    chosen = _chosen(args.only)
    whole, done = sum(len(parts) for _, parts in chosen.values()), 0
    pages: list[Path] = []
    with Progress("exhibits") as progress:
        for name, (title, parts) in chosen.items():
            exhibits: list[Exhibit] = []
            for part in parts:
                exhibits += part()
                done += 1
                progress.advance(done, whole)
            pages.append(talk(out, name, title, exhibits))
    print(*pages, sep="\n")
    return FINE


def _chosen(words: str) -> dict[str, tuple[str, list[Part]]]:
    """By talk, in their own order, its title and parts. Raises BadInput."""
    found: dict[str, tuple[str, list[Part]]] = {}
    for word in words.split(","):
        name, _, part = word.strip().partition(":")
        if name not in TALKS:
            raise BadInput("--only", f"{shown(name)} is none of them", ", ".join(TALKS))
        module = importlib.import_module(f"joulecut_lab.talks.{name}")
        parts = {one.__name__.replace("_", "-"): one for one in module.PARTS}
        if part and part not in parts:
            raise BadInput("--only", f"{name} has no part {shown(part)}", ", ".join(parts))
        some = [parts[part]] if part else list(parts.values())
        taken = found.setdefault(name, (module.TITLE, []))[1]
        taken += [one for one in some if one not in taken]
    return {name: found[name] for name in TALKS if name in found}
