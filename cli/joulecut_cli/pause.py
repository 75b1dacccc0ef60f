"""`joulecut pause`: the controller keeps its hands off a job, or all, until a person resumes it."""

import argparse
import json

from joulecut_cli.controller_client import Controller, Json, quoted
from joulecut_cli.status import add_controller_flags
from joulecut_wire.command import FAILED, FINE, Parser
from joulecut_wire.errors import BadInput


def run(argv: list[str]) -> int:
    """Raises BadInput for a bad flag or an unknown job, Unavailable where nobody takes it."""
    parser = Parser(
        "joulecut pause",
        "Gives a job's GPUs back now, and changes none of its clocks until it is resumed.",
    )
    add_order_flags(parser)
    given = parser.parse_args(argv)
    only_one(parser, given.job, whole=given.all)
    controller = Controller(given.controller)
    if given.all:
        return told(controller.order("pause", all=True, reason=given.reason), given)
    path = f"jobs/{quoted(given.job)}/pause"
    return told(controller.order(path, reason=given.reason), given)


def add_order_flags(parser: Parser, metavar: str = "JOB") -> None:
    """What every order to the controller takes."""
    parser.add_argument(
        "job", metavar=metavar, nargs="?", default="", help="its name in the policy"
    )
    parser.add_argument("--all", action="store_true", help="every job")
    parser.add_argument("--reason", metavar="TEXT", default="", help="stands in the audit trail")
    add_controller_flags(parser)


def only_one(parser: Parser, name: str, *, whole: bool) -> None:
    """Raises BadInput unless exactly one of a name and --all is given."""
    if bool(name) == whole:
        what = "a name and --all" if name else "nothing named"
        raise BadInput(parser.prog, what, "JOB or --all")


def told(done: Json, given: argparse.Namespace) -> int:
    """Prints what became of an order; failed where an agent did not take its part."""
    print(json.dumps(done, indent=2) if given.json else f"{done['sentence']}.")
    return FINE if done["complete"] else FAILED
