"""`joulecut plan JOB.yaml`: the clocks that use least energy within a deadline.

The flags alone: `planning` does the work, and is imported after they are read, so that `--help`
and a misspelt flag need no solver.
"""

from argparse import SUPPRESS, Namespace, _ActionsContainer
from pathlib import Path

from joulecut_cli.granularity import HELP, read_granularity
from joulecut_cli.money import add_price_flags
from joulecut_wire.command import Parser, retired
from joulecut_wire.flags import number, percentage

PROG = "joulecut plan"
PERCENT_MAX = 1e6  # ten thousand times slower: a mistake
SECONDS_MAX = 1e9  # thirty years
PROVE_S, PROVE_S_MAX = 20.0, 86_400.0
# Of releases before `--prove`: `quick` is the first answer, the others go on.
EFFORTS = ("quick", "usual", "thorough")


def run(argv: list[str]) -> int:
    """Prints one plan. Raises BadInput."""
    options = _parse(argv)
    asked = None if options.granularity is None else read_granularity(options.granularity)
    if options.effort:
        retired("--effort", "has a successor: --prove [SECONDS]; without it the answer is quick")
        if options.effort != EFFORTS[0]:
            options.prove = options.prove or PROVE_S

    from joulecut_cli import planning

    return planning.run(options, asked)


def _parse(argv: list[str]) -> Namespace:
    parser = Parser(
        PROG,
        "The clocks that use least energy within a deadline, at once. With --prove the search "
        "goes on for a better plan and a tighter bound.",
    )
    parser.add_argument("job", type=Path, metavar="JOB.yaml")
    target = parser.add_mutually_exclusive_group()
    add_max_slowdown(target)
    seconds = number(0.0, SECONDS_MAX, above=True, unit="seconds")
    target.add_argument("--deadline", type=seconds, metavar="SECONDS", help="for one iteration")
    parser.add_argument(
        "--granularity",
        help=f"{HELP} (the default; changes where the job file has `switching`)",
    )
    parser.add_argument(
        "--prove",
        nargs="?",
        type=number(0.0, PROVE_S_MAX, above=True, unit="seconds"),
        const=PROVE_S,
        default=0.0,
        metavar="SECONDS",
        help="go on for a better plan and a tighter bound, with progress on standard error "
        f"(default {PROVE_S:g} s)",
    )
    parser.add_argument("--effort", choices=EFFORTS, help=SUPPRESS)
    add_price_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", metavar="FILE", help="write a picture: .html or .png")
    parser.add_argument("--timeline", metavar="FILE", help="write a trace for Perfetto: .json")
    return parser.parse_args(argv)


def add_max_slowdown(parser: _ActionsContainer) -> None:
    parser.add_argument(
        "--max-slowdown",
        type=percentage(PERCENT_MAX),
        metavar="PCT",
        help="of the fastest iteration: 2 or 2%% (default 0)",
    )
