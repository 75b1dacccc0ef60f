"""`joulecut audit`: energy waste of a cluster, from agents or from a Prometheus; read-only.

Needs no privilege: it watches agents for a while, or queries the past of a Prometheus.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from joulecut_cli import outfile
from joulecut_cli.money import given_prices
from joulecut_cli.progress import Progress, solving
from joulecut_controller.sources.prometheus import Access, Prometheus
from joulecut_engine.money import Prices
from joulecut_lab.audit import job_estimate, report
from joulecut_lab.audit.auditor import Auditor
from joulecut_lab.audit.finding import Audit
from joulecut_lab.audit.job_estimate import Observed, OperatorInput
from joulecut_lab.audit.series import History
from joulecut_wire.command import FINE
from joulecut_wire.duration import seconds
from joulecut_wire.errors import BadInput, Unavailable

FOR_S_MAX = 31 * 86_400.0  # most keep less
FOR_S_MIN = 60.0  # of a Prometheus: two scrapes at least


def run(given: argparse.Namespace) -> int:
    """Prints an audit. Raises BadInput, Unavailable."""
    facts = job_estimate.read(given.policy, given.store)
    prices = given_prices(given, facts.cost.prices())
    duration_s = seconds(given.duration, "--for", FOR_S_MAX)
    if given.agents:
        audit, about = _live(given, facts, prices, duration_s)
    else:
        audit, about = _past(given, facts, prices, duration_s)
    if given.html is not None:
        outfile.write("--html", given.html, report.as_html(audit, about))
    if given.json:
        print(json.dumps(report.as_json(audit, about), allow_nan=False, indent=2))
    elif given.csv:
        print(report.as_csv(audit, about), end="")
    else:
        print(report.text(audit, about))
    return FINE


def _past(
    given: argparse.Namespace, facts: OperatorInput, prices: Prices, duration_s: float
) -> tuple[Audit, report.About]:
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
    if given.job_label and history.gpus and given.job_label not in labels:
        what = f'no series of this time range has the label "{given.job_label:.60}"'
        raise BadInput("--job-label", what, ", ".join(sorted(labels)) or "no label was found")
    seen = Observed(gpus=history.gpus, rates={}, allocations={}, bloat_j=history.bloat_j)
    about = report.About(
        source=f"{server.url} ({history.exporter.title} series)",
        ended_unix_s=end_s,
        step_s=history.step_s,
        prices=prices,
    )
    return _judged(auditor, facts, seen, history.doubts()), about


def _live(
    given: argparse.Namespace, facts: OperatorInput, prices: Prices, duration_s: float
) -> tuple[Audit, report.About]:
    from joulecut_lab.audit.agents import watch_of  # gRPC: a Prometheus is read without it

    watch = watch_of(given, duration_s)
    auditor = Auditor()
    with Progress(f"watching {given.agents} (an interrupt ends it early)") as progress:
        watch.follow(auditor.take, progress.advance)
    seen = Observed(gpus=watch.gpus, rates=watch.rates, allocations=watch.allocations, bloat_j={})
    lost = (f"no answer from {', '.join(watch.silent)}",) if watch.silent else ()
    about = report.About(
        source=given.agents,
        ended_unix_s=time.time(),
        step_s=watch.step_s,
        prices=prices,
        notes=lost,
    )
    return _judged(auditor, facts, seen), about


def _judged(
    auditor: Auditor, facts: OperatorInput, seen: Observed, doubts: Mapping[str, str] | None = None
) -> Audit:
    """`doubts` say of jobs why nothing of them is measured."""
    jobs = auditor.jobs()
    with Progress(solving("comparing profiles with measurements")):
        estimates = {
            job.name: job_estimate.estimate(facts, job, seen, largest=job is jobs[0])
            for job in jobs
        }
    audit = auditor.finish(seen.gpus, estimates, doubts or {})
    if not audit.gpus:
        raise Unavailable(
            "no GPU in this time range: series need the label UUID (dcgm-exporter) or uuid, "
            "agents need GPUs"
        )
    return audit


def _moment(text: str) -> float:
    allowed = "a time like 2026-01-31T12:00Z"
    with contextlib.suppress(ValueError):
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    raise BadInput("--until", f'"{text}"', allowed)
