"""`joulecut report`: measured savings in energy, money and CO2, and receipts of jobs."""

import json
from argparse import SUPPRESS, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from joulecut_cli.controller_client import DEFAULT_URL, Controller, Json, Period, understood
from joulecut_cli.report.owners import by_owner, by_text
from joulecut_cli.report.spreadsheet import report_csv
from joulecut_cli.report.table import receipt_text, report_text
from joulecut_wire import duration
from joulecut_wire.command import FINE, Parser, retired
from joulecut_wire.errors import BadInput
from joulecut_wire.flags import number

if TYPE_CHECKING:
    from joulecut_cli.report.stored import FromStore

PROG = "joulecut report"
CO2_G_PER_KWH_MAX = 10_000.0  # coal alone is around 1000
SINCE_S_MAX = 3_660 * 86_400.0  # ten years: longer than anything is kept


@understood
def run(argv: list[str]) -> int:
    """Prints a report or a receipt. Raises BadInput, Unavailable."""
    given = _parsed(argv)
    job = given.receipt if given.receipt is not None else given.job or ""
    since_s = duration.seconds(given.since, "--since", SINCE_S_MAX)
    period = Period(since_s, given.co2)
    source = _source(given)
    if given.receipt is not None:
        made, is_receipt = source.receipt(period, job), True
    else:
        made, is_receipt = source.report(period, job), False
        if job and not made["jobs"]:
            raise BadInput("--job", f"no job {job!r}", f"a job in {source.name}")
    if given.by is not None:
        print(json.dumps(by_owner(made, given.by)) if given.json else by_text(made, given.by))
    else:
        print(_printed(given, made, source.name, is_receipt=is_receipt))
    return FINE


def _source(given: Namespace) -> "Controller | FromStore":
    if given.store is None:
        return Controller(given.controller or DEFAULT_URL)
    # Loads numpy and a database, which a query to a controller needs not.
    from joulecut_cli.report.stored import FromStore

    return FromStore(given.store, given.policy)


def _printed(given: Namespace, made: Json, source: str, *, is_receipt: bool) -> str:
    if given.json:
        return json.dumps(made, indent=2)
    if given.csv:
        return report_csv(made).rstrip("\r\n")
    return receipt_text(made, source) if is_receipt else report_text(made, source)


def _parsed(argv: list[str]) -> Namespace:
    parser = Parser(
        PROG,
        "Savings of plans, measured by hold-out windows at default clocks, with 95 % intervals.",
    )
    parser.add_argument("--since", metavar="TIME", default="7d", help="90m, 24h, 7d (default)")
    parser.add_argument("--controller", metavar="URL", help=f"default {DEFAULT_URL}")
    parser.add_argument("--store", metavar="URL", help="read a controller's store directly")
    parser.add_argument(
        "--policy", metavar="FILE", type=Path, help="prices and tenants, with --store"
    )
    parser.add_argument(
        "--co2", type=number(0.0, CO2_G_PER_KWH_MAX, above=True), metavar="G",
        help="grams of CO2 per kWh of the grid; overrides the policy",
    )  # fmt: skip
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--job", metavar="NAME", help="one job only")
    which.add_argument(
        "--by",
        choices=("user", "account", "partition", "namespace"),
        help="energy of all GPUs by their owners",
    )
    which.add_argument("--receipt", metavar="JOB", help="one job with every change of its clocks")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object")
    form.add_argument(
        "--csv", action="store_true", help="one line per job and tenant, and the total"
    )
    parser.add_argument("--html", help=SUPPRESS)
    given = parser.parse_args(argv)
    if given.html is not None:
        retired("--html", "is no page any more: --csv, --json, or the controller's page")
    if given.store is not None and given.controller is not None:
        raise BadInput(PROG, "--store and --controller exclude each other", "one of them")
    if given.policy is not None and given.store is None:
        raise BadInput(
            PROG,
            "--policy without --store",
            "--policy with --store; a controller has its own policy",
        )
    if given.by is not None and given.csv:
        raise BadInput(PROG, "--by with --csv", "--json, or a table")
    if given.receipt is not None and given.csv:
        raise BadInput(PROG, "--csv of a receipt", "--json, or a table")
    for name in ("job", "receipt"):
        if getattr(given, name) == "":
            raise BadInput(f"--{name}", "an empty name", "the name of a job")
    return given
