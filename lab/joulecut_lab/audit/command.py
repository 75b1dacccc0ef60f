"""`joulecut audit`: energy waste of a cluster, from the past of a Prometheus; read-only."""

import argparse
import contextlib
import json
import time
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from joulecut_cli.money import add_price_flags, given_prices
from joulecut_cli.progress import Progress
from joulecut_controller.sources.prometheus import Access, Prometheus
from joulecut_lab.audit import report
from joulecut_lab.audit.auditor import Auditor
from joulecut_lab.audit.finding import Audit
from joulecut_lab.audit.series import History
from joulecut_wire.command import FINE, Parser, gone
from joulecut_wire.duration import seconds
from joulecut_wire.errors import BadInput, Unavailable

PROG = "joulecut audit"
FOR_S_MAX = 31 * 86_400.0  # most keep less
FOR_S_MIN = 60.0  # of a Prometheus: two scrapes at least


def run(argv: list[str]) -> int:
    """Prints an audit. Raises BadInput, Unavailable."""
    given = _parse(argv)
    duration_s = seconds(given.duration, "--for", FOR_S_MAX)
    audit, about = _audited(given, duration_s)
    if given.json:
        print(json.dumps(report.as_json(audit, about), allow_nan=False, indent=2))
    else:
        print(report.text(audit, about))
    return FINE


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


def _audited(given: argparse.Namespace, duration_s: float) -> tuple[Audit, report.About]:
    if duration_s < FOR_S_MIN:
        raise BadInput("--for", f'"{given.duration}"', f"at least {FOR_S_MIN:g} s of a Prometheus")
    access = Access(
        bearer_token=given.bearer_token_file,
        username=given.username,
        password=given.password_file,
        ca=given.ca,
        cert=given.cert,
        key=given.key,
    )
    server = Prometheus(given.prometheus, access)
    end_s = _moment(given.until) if given.until else time.time()
    auditor = Auditor()
    with Progress(f"reading {server.url}") as progress:
        history = History(
            server, end_s - duration_s, end_s, matcher=given.match, job_label=given.job_label
        )
        for frame in history.frames(progress.advance):
            auditor.take(frame)
    labels = history.owner_labels - {"__name__"}
    if given.job_label and history.models and given.job_label not in labels:
        what = f'no series of this time range has the label "{given.job_label:.60}"'
        raise BadInput("--job-label", what, ", ".join(sorted(labels)) or "no label was found")
    about = report.About(
        source=f"{server.url} ({history.exporter.title} series)",
        ended_unix_s=end_s,
        step_s=history.step_s,
        prices=given_prices(given),
    )
    return _judged(auditor, history), about


def _judged(auditor: Auditor, history: History) -> Audit:
    savings = {}
    if find_spec("numpy") is not None:  # the engine is not of the role `check`
        from joulecut_lab.audit.first_saving import first_savings

        savings = {job.name: first_savings(job, history.models) for job in auditor.jobs()}
    audit = auditor.finish(savings, history.doubts())
    if not audit.gpus:
        raise Unavailable(
            "no GPU in this time range: series need the label UUID (dcgm-exporter) or uuid"
        )
    return audit


def _moment(text: str) -> float:
    allowed = "a time like 2026-01-31T12:00Z"
    with contextlib.suppress(ValueError):
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    raise BadInput("--until", f'"{text}"', allowed)
