"""`joulecut frontier JOB.yaml`: energy against iteration time, from fastest to cheapest.

The flags alone: `frontier_points` does the work, and is imported after they are read, so that
`--help` and a misspelt flag need no solver.
"""

from argparse import SUPPRESS, Namespace
from pathlib import Path

from joulecut_cli.granularity import ALL, HELP, read_granularities
from joulecut_cli.money import add_price_flags
from joulecut_wire.command import Parser, retired
from joulecut_wire.flags import whole

PROG = "joulecut frontier"
POINTS = 50
POINTS_MAX = 10_000  # at 20 ms each some minutes; more than any plot can show


def run(argv: list[str]) -> int:
    """Prints the frontier of one job. Raises BadInput."""
    options = _parse(argv)
    asked = None if options.granularity is None else read_granularities(options.granularity)
    if options.prove:
        retired("--prove", "has no effect on a frontier: joulecut plan --prove searches on for one")

    from joulecut_cli import frontier_points

    return frontier_points.run(options, asked)


def _parse(argv: list[str]) -> Namespace:
    parser = Parser(PROG, "Energy against iteration time, from fastest to cheapest.")
    parser.add_argument("job", type=Path, metavar="JOB.yaml")
    parser.add_argument(
        "--points", type=whole(2, POINTS_MAX), default=POINTS, metavar="N",
        help=f"at most so many (default {POINTS})",
    )  # fmt: skip
    parser.add_argument(
        "--granularity",
        help=f"{HELP} (the default; changes where the job file has `switching`); "
        f"{ALL}: beside each other",
    )
    parser.add_argument("--prove", nargs="?", const="20", help=SUPPRESS)
    add_price_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", metavar="FILE", help="write a picture: .html or .png")
    return parser.parse_args(argv)
