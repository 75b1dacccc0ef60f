"""`joulecut audit`: its flags.

`auditing` does the work, and is imported after the flags are read.
"""

import argparse
from pathlib import Path

from joulecut_cli.money import add_price_flags
from joulecut_wire.command import Parser, gone
from joulecut_wire.errors import BadInput

PROG = "joulecut audit"


def run(argv: list[str]) -> int:
    """Prints an audit. Raises BadInput, Unavailable."""
    given = _parse(argv)

    from joulecut_lab.audit import auditing

    return auditing.run(given)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        PROG, "Energy waste of a cluster, from measurements that exist already. Changes nothing."
    )
    parser.add_argument("--prometheus", metavar="URL", help="Prometheus that scrapes the GPUs")
    parser.add_argument("--for", dest="duration", metavar="TIME", default="24h", help="default 24h")
    parser.add_argument("--until", metavar="WHEN", help="2026-01-31T12:00Z; default now")
    add_price_flags(parser)
    parser.add_argument("--match", metavar="LABELS", default="", help="""such as 'cluster="a"'""")
    parser.add_argument("--job-label", metavar="LABEL", default="", help="label that names the job")
    parser.add_argument("--bearer-token-file", metavar="FILE", type=Path)
    parser.add_argument("--username", metavar="NAME", default="")
    parser.add_argument("--password-file", metavar="FILE", type=Path)
    parser.add_argument("--cert", metavar="FILE", type=Path, help="certificate, PEM")
    parser.add_argument("--key", metavar="FILE", type=Path, help="its private key, PEM")
    parser.add_argument("--ca", metavar="FILE", type=Path, help="certificate authority, PEM")
    gone(parser, "--agents", "--prometheus URL, which reads the series of agents")
    gone(parser, "--policy", "joulecut plan JOB.yaml for a profile; --gpu-hour, --kwh, --pue")
    gone(parser, "--store", "the controller itself, which recommends for jobs without an entry")
    gone(parser, "--html", "the printed text, or --json")
    gone(parser, "--csv", "--json")
    gone(parser, "--kwh-price", "--kwh PRICE")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(argv)
    if not given.prometheus:
        raise BadInput(PROG, "no source to audit", "--prometheus URL")
    if bool(given.cert) != bool(given.key):
        raise BadInput("--cert, --key", "one without the other", "both, or none")
    if given.bearer_token_file and given.username:
        what = "two ways to authenticate"
        raise BadInput("--bearer-token-file, --username", what, "one of them")
    return given
