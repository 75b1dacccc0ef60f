"""`joulecut report`: measured savings in energy, money and CO2, from a controller's store."""

import json
from argparse import Namespace
from pathlib import Path

from joulecut_cli.report.owners import by_owner, by_text
from joulecut_cli.report.table import report_text
from joulecut_wire import duration
from joulecut_wire.command import FINE, Parser, gone
from joulecut_wire.errors import BadInput
from joulecut_wire.flags import number

PROG = "joulecut report"
CO2_G_PER_KWH_MAX = 10_000.0  # coal alone is around 1000
SINCE_S_MAX = 3_660 * 86_400.0  # ten years: longer than anything is kept
INSTALLED = Path("/etc/joulecut/controller.yaml")


def run(argv: list[str]) -> int:
    """Prints a report. Raises BadInput, Unavailable."""
    given = _parsed(argv)
    since_s = duration.seconds(given.since, "--since", SINCE_S_MAX)
    if given.store is None and given.config == INSTALLED and not INSTALLED.exists():
        raise BadInput("--config", f"no {INSTALLED} here", "another controller's, or --store URL")
    # Late: a wrong flag is refused before numpy and the database are loaded.
    from joulecut_cli.report.stored import Place, of_controller, report_of

    place = Place(given.store, given.policy) if given.store else of_controller(given.config)
    made = report_of(place, since_s, given.co2, given.job or "")
    if given.json:
        print(json.dumps(by_owner(made, given.by)) if given.by else json.dumps(made, indent=2))
    else:
        print(by_text(made, given.by) if given.by else report_text(made, place.name))
    return FINE


def _parsed(argv: list[str]) -> Namespace:
    parser = Parser(
        PROG,
        "Savings of plans, measured by hold-out windows at default clocks, with 95 % intervals.",
    )
    parser.add_argument("--since", metavar="TIME", default="7d", help="90m, 24h, 7d (default)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--config", metavar="FILE", type=Path, default=INSTALLED,
        help=f"of a controller: its store and its policy; default {INSTALLED}",
    )  # fmt: skip
    source.add_argument("--store", metavar="URL", help="a controller's store")
    parser.add_argument(
        "--policy", metavar="FILE", type=Path, help="prices and tenants, with --store"
    )
    parser.add_argument(
        "--co2", type=number(0.0, CO2_G_PER_KWH_MAX, above=True), metavar="G",
        help="grams of CO2 per kWh of the grid; overrides the policy",
    )  # fmt: skip
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--job", metavar="NAME", help="one job only, with every change of its clocks"
    )
    which.add_argument(
        "--by",
        choices=("user", "account", "partition", "namespace"),
        help="energy of all GPUs by their owners",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    gone(parser, "--csv", "--json")
    gone(parser, "--html", "--json, or the controller's page")
    gone(parser, "--controller", "--config FILE, or --store URL, on the controller's machine")
    gone(parser, "--receipt", "--job NAME")
    given = parser.parse_args(argv)
    if given.policy is not None and given.store is None:
        allowed = "--policy with --store; a controller's configuration names its own"
        raise BadInput(PROG, "--policy without --store", allowed)
    if given.job == "":
        raise BadInput("--job", "an empty name", "the name of a job")
    return given
