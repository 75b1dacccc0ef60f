"""The board: what the steps since the last one observed, decided and did."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from joulecut_controller.board import Board, JobBoard, LogLine
from joulecut_controller.election.claims import Claims
from joulecut_controller.reconcile.cluster_step import TROUBLE, Cluster
from joulecut_controller.reconcile.context import JobServices
from joulecut_controller.view import NodeView
from joulecut_wire.errors import described


async def make_board(
    services: JobServices,
    cluster: Cluster,
    *,
    number: int,
    done: tuple[LogLine, ...],
    troubles: Mapping[str, str],
    elsewhere: tuple[tuple[float, str], ...],
) -> Board:
    """The board of one pass. `done`: log lines since the last board. `troubles`: errors by key of
    the loop whose last step failed. `elsewhere`: jobs of other controllers. Each job is shown as of
    its last step; a job without a step is absent.
    """
    policy = cluster.state.policy
    said = {key: trouble_text(key, error) for key, error in troubles.items()}
    boards = await _jobs(cluster, said)
    trouble = services.audit.trouble
    waits = f"the audit log waits for the store: {trouble}" if trouble else ""
    others = other_controller(cluster.state.view.nodes)
    left = _left(services.claims)
    found = (services.leases.lost, services.budgets.complaint, waits, *said.values(), others, left)
    warnings = tuple(filter(None, found))
    done = () if services.leases.lost else done
    actions = "; ".join((*(f"{line.job}: {line.text}" for line in done), *warnings))
    return Board(
        at_unix_s=services.unix_s(),
        pass_number=number,
        epoch=services.epoch,
        sentence=actions or "no change",
        lines=(*done, *_wrong(cluster, said, warnings)),
        warnings=warnings,
        view=cluster.view(board.view for board in boards),
        jobs=boards,
        events=services.audit.newest,
        policy_source=policy.source,
        policy_digest=policy.digest,
        policy_error=cluster.watcher.error,
        budget=services.budgets.shares,
        power_limits=services.power_budget.shown,
        interval_s=services.interval_s,
        holds=services.holds.all,
        policy=policy,
        unused_s=services.energy.ledger.unused_s(services.unix_s()),
        elsewhere=elsewhere,
    )


async def _jobs(cluster: Cluster, said: dict[str, str]) -> tuple[JobBoard, ...]:
    boards = []
    for name in cluster.state.policies:
        job = cluster.jobs.get(name)
        if job is not None and job.observed is not None:
            try:
                shown = job.board(job.observed)
            except Exception as error:  # one line of this job's, and no trouble of others
                said[name] = trouble_text(name, described(error))
                continue
            boards.append(replace(shown, sentence=said.get(name, shown.sentence)))
            await asyncio.sleep(0)
    return tuple(boards)


def _wrong(cluster: Cluster, said: Mapping[str, str], warnings: Iterable[str]) -> Iterator[LogLine]:
    """Failed steps are errors, of their job where the key is one."""
    for key, text in said.items():
        job = key if key in cluster.state.policies else ""
        yield LogLine(job, text.removeprefix(f"{job} ") if job else text, "error")
    failed = set(said.values())
    yield from (LogLine("", text, "warning") for text in warnings if text not in failed)


def _left(claims: Claims) -> str:
    """That jobs have no controller since all have as many as they can keep; else empty."""
    group = claims.group
    if group is None or not group.leads or not group.most:
        return ""
    left = sum(number == 0 for number in group.wanted.values())
    most = f"controllers are late and keep {', '.join(map(str, sorted(group.most.values())))}"
    return f"{left} jobs have no controller and are at default clocks: {most} jobs" if left else ""


def other_controller(nodes: Iterable[NodeView]) -> str:
    """That agents follow a controller of another store, or are watched by one; else empty."""
    shared = [node for node in nodes if node.is_shared]
    theirs = [node for node in shared if node.other_term]
    if shared and not theirs:
        return (
            f"another controller, with a store of its own, watches {len(shared)} of the agents, "
            f"{shared[0].node} first, from {shared[0].other_hosts[0]}"
        )
    if not shared:
        return ""
    term = max(node.other_term for node in theirs)
    return (
        f"another controller has commanded {len(theirs)} of the agents, {theirs[0].node} first: "
        f"they have seen its epoch {term}, which no controller of this store began"
    )


def trouble_text(key: str, error: str) -> str:
    """What a failing step means, in a sentence."""
    return f"{TROUBLE.get(key, f'{key} cannot be reconciled')}: {error}"
