"""The board in brief: what fits a screen, of a fleet of any size.

The same shape as the board, so that whoever shows one shows the other. Of many GPUs only those
that need a look are listed, and the rest are counted.
"""

from dataclasses import replace

from joulecut_controller.board import Board, JobBoard
from joulecut_controller.plan.plan import Plan
from joulecut_controller.view import GpuView, View
from joulecut_controller.web.answer import Json
from joulecut_controller.web.job import job_json
from joulecut_controller.web.render import gpu_json, in_order, shell_json, work_by_gpu

GPUS_LISTED_MAX = 64  # as many as a person reads; more are counted
ODD_LISTED_MAX = 24
# Reasons that a clock of ours, or nothing to do, brings about; all others are worth a look.
QUIET_REASONS = frozenset(("applications_clocks_setting", "gpu_idle", "none"))


def brief_json(board: Board) -> Json:
    """As `board_json`, with `brief`, `gpu_counts`, `node_counts` and `node_names` besides.

    In a fleet of more than a screenful `gpus` holds the odd ones, `nodes` the lost ones, and
    jobs are without GPUs and frontier; plans are always without actions.
    """
    view, work = board.view, work_by_gpu(board)
    large = len(view.gpus) > GPUS_LISTED_MAX
    gpus = in_order(view.gpus)
    odd = [gpu for gpu in gpus if _is_odd(gpu, work.get(gpu.uuid))] if large else gpus
    lost = [node for node in view.nodes if not node.connected]
    return shell_json(board, nodes=lost if large else view.nodes) | {
        "gpus": [gpu_json(gpu, work.get(gpu.uuid)) for gpu in odd[:ODD_LISTED_MAX]]
        if large
        else [gpu_json(gpu, work.get(gpu.uuid)) for gpu in gpus],
        "jobs": [_job(job, view, large=large) for job in board.jobs],
        "brief": large,
        "gpu_counts": _counts(gpus, odd_count=len(odd) if large else 0),
        "node_counts": {"all": len(view.nodes), "lost": len(lost)},
        "node_names": [node.node or node.address for node in view.nodes],
    }


def _is_odd(gpu: GpuView, work: tuple[str, int] | None) -> bool:
    """Silent, drifting, slow for a reason of its own, or held by a job that is not its own."""
    seen = gpu.snapshot
    if seen is None or seen.drift or seen.stands_back_s > 0.0:
        return True
    if seen.lease is not None and (work is None or seen.lease.job != work[0]):
        return True
    return not QUIET_REASONS.issuperset(seen.event_reasons)


def _counts(gpus: list[GpuView], odd_count: int) -> Json:
    silent = sum(gpu.snapshot is None for gpu in gpus)
    leased = sum(gpu.snapshot is not None and gpu.snapshot.lease is not None for gpu in gpus)
    return {
        "all": len(gpus),
        "leased": leased,
        "default": len(gpus) - leased - silent,
        "silent": silent,
        "not_controllable": sum(not gpu.description.controllable for gpu in gpus),
        "odd": odd_count,
    }


def _job(job: JobBoard, view: View, *, large: bool) -> Json:
    slim = replace(job, decision=_bare(job.decision), applied=_bare(job.applied), frontier=())
    if not large:  # a screenful: the clocks each GPU should have are part of it
        whole = job_json(replace(slim, decision=job.decision), view)
        return whole | {"decision": _plan(whole["decision"])}
    return job_json(slim, view, gpus=False) | {"gpu_count": sum(map(len, job.view.stages))}


def _bare(plan: Plan | None) -> Plan | None:
    return plan and replace(plan, actions=(), solution=None)


def _plan(plan: Json | None) -> Json | None:
    return plan and plan | {"actions": [], "solution": None}


assert ODD_LISTED_MAX <= GPUS_LISTED_MAX
