"""`joulecut study`: finds the requested part of the study."""

import importlib

from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput

SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "layer": ("joulecut_lab.study.layer", "sweep decoder layers across SM clocks into a table"),
    "report": ("joulecut_lab.study.report", "a page of curves and tables from such a table"),
    "talks": ("joulecut_lab.talks.command", "figures and tables of four talks, one page a talk"),
    "fit": ("joulecut_lab.study.fit", "how well the predictors learn from such a table"),
    "teach": ("joulecut_lab.study.teach", "such a table teaches a controller's predictor"),
}


def run(argv: list[str]) -> int:
    """The exit status. Raises BadInput, Unavailable."""
    if not argv:
        raise BadInput("joulecut study", "no part named", ", ".join(SUBCOMMANDS))
    if argv[0] in {"-h", "--help"}:
        width = max(map(len, SUBCOMMANDS))
        print("usage: joulecut study PART ...\n")
        for name, (_, text) in SUBCOMMANDS.items():
            print(f"  {name:<{width}}  {text}")
        print("\njoulecut study PART --help says more.")
        return FINE
    if argv[0] not in SUBCOMMANDS:
        raise BadInput("joulecut study", f'no part is called "{argv[0]}"', ", ".join(SUBCOMMANDS))
    status: int = importlib.import_module(SUBCOMMANDS[argv[0]][0]).run(argv[1:])
    return status
