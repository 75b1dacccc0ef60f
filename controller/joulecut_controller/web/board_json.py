"""The board as JSON, whole and in brief: one shape for the page, the API and the command line.

Keys carry their unit. Unknown values are null, never zero and never NaN. Ages and remaining lease
times are as of `at_unix_s`, the start of the pass. The brief form has the same shape for a fleet of
any size: of many GPUs it lists those that need attention and counts the rest.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from joulecut_controller.board import Board, JobBoard, PowerLimits
from joulecut_controller.cluster.summary import cluster_of
from joulecut_controller.plan.plan import Plan
from joulecut_controller.ports import Event
from joulecut_controller.view import BUDGET_JOB, GpuView, NodeView, View
from joulecut_controller.web.job_json import hold_json, job_json, state_json, strongest_mode
from joulecut_controller.web.responses import Json, number
from joulecut_controller.web.summary_json import summary_json
from joulecut_wire.messages import GpuSnapshot

EVENTS_ON_BOARD = 50  # /api/v1/events has the rest

SIMULATED = "GPU-sim-"  # How the simulator begins its UUIDs; a driver's are "GPU-" and hex.

_NOTHING_SEEN = GpuSnapshot(uuid="")


def board_json(board: Board) -> Json:
    """The whole board, without the operations of plans, which have their own address."""
    return shell_json(board) | {
        "gpus": list(gpus_in_order(board)),
        "jobs": [job_json(job, board.view) for job in board.jobs],
    }


def gpus_in_order(board: Board) -> Iterator[Json]:
    """Every GPU, one at a time."""
    work = work_by_gpu(board)
    return (gpu_json(gpu, work.get(gpu.uuid)) for gpu in in_order(board.view.gpus))


def shell_json(board: Board, nodes: Sequence[NodeView] | None = None) -> Json:
    """The board with room for `gpus` and `jobs`; its nodes, or only those given."""
    return {
        "at_unix_s": number(board.at_unix_s),
        "role": "leader" if board.leads else "standby",
        "leader": board.leader,  # of a standby: address of the leader
        "pass_number": board.pass_number,
        "epoch": board.epoch,
        "interval_s": number(board.interval_s),
        "sentence": board.sentence,
        "mode": strongest_mode(board.jobs),
        "simulated": any(uuid.startswith(SIMULATED) for uuid in board.view.gpus),
        "policy": {
            "source": board.policy_source,
            "digest": board.policy_digest,
            "error": board.policy_error,
        },
        "nodes": [node_json(node) for node in (board.view.nodes if nodes is None else nodes)],
        "gpus": [],
        "holds": [hold_json(hold) for hold in board.holds],
        "cluster": summary_json(cluster_of(board)),
        "power_budget": board.power_limits and power_limits_json(board.power_limits),
        "jobs": [],
        "events": [event_json(event) for event in board.events[:EVENTS_ON_BOARD]],
    }


def power_limits_json(limits: PowerLimits) -> Json:
    """The power budget and the power limits that keep it."""
    return {
        "budget_w": number(limits.budget_w),
        "capacity_w": number(limits.capacity_w),
        "in_force_w": number(limits.in_force_w),
        "least_w": number(limits.least_w),
        "limits_w": {uuid: number(limit_w) for uuid, limit_w in limits.limits_w.items()},
        "state": limits.state,
        "best_effort": limits.best_effort,
        "sentence": limits.sentence,
    }


def node_json(node: NodeView) -> Json:
    """One agent and its connection."""
    return {
        "node": node.node,
        "address": node.address,
        "connected": node.connected,
        "error": node.error,
        "agent_version": node.agent_version,
        "epoch_seen": node.epoch_seen,
        "ttl_max_s": number(node.ttl_max_s),
        "keeps_power_limits": node.keeps_power_limits,
    }


def gpu_json(gpu: GpuView, work: tuple[str, int] | None = None) -> Json:
    """One GPU. `work` is the job and stage it serves, None where no job of the policy has it."""
    description = gpu.description
    seen = gpu.snapshot or _NOTHING_SEEN
    clocks = description.clocks_mhz
    return {
        "uuid": gpu.uuid,
        "node": gpu.node,
        "index": description.index,
        "model": description.model,
        "simulated": gpu.uuid.startswith(SIMULATED),
        "job": work[0] if work else None,
        "stage": work[1] if work else None,
        "age_s": number(gpu.age_s),
        "controllable": description.controllable,
        "why_not_controllable": description.reason,
        "clock_seen_mhz": seen.clock_sm_mhz,
        "clock_asked_mhz": (seen.lease.clock_max_mhz or None) if seen.lease else None,
        "clock_lowest_mhz": clocks[0] if clocks else None,
        "clock_highest_mhz": clocks[-1] if clocks else None,
        "power_average_w": number(seen.power_average_w),
        "power_instant_w": number(seen.power_instant_w),
        "power_limit_w": number(seen.power_limit_enforced_w),
        "power_limit_least_w": description.power_limit_min_w or None,
        "power_controllable": description.power_controllable,
        "temperature_celsius": number(seen.temperature_celsius),
        "utilization_gpu_ratio": number(seen.utilization_gpu_ratio),
        "event_reasons": list(seen.event_reasons),
        "lease": _lease_json(gpu),
    }


def event_json(event: Event) -> Json:
    """One line of the audit log."""
    return {
        "at_unix_s": number(event.at_unix_s),
        "kind": event.kind,
        "job": event.job,
        "generation": event.generation,
        "text": event.text,
    }


def event_with_detail_json(event: Event) -> Json:
    """As `event_json`, with the whole detail (a plan is tens of kilobytes)."""
    return {**event_json(event), "detail": _detail(event.detail)}


def _detail(text: str) -> Any:
    """The detail as JSON; as text where it is not JSON."""
    if not text:
        return None
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except ValueError:
        return text


def _lease_json(gpu: GpuView) -> Json | None:
    lease = gpu.snapshot.lease if gpu.snapshot else None
    if lease is None:
        return None
    return {
        "job": lease.job,
        "epoch": lease.epoch,
        "generation": lease.generation,
        "clock_min_mhz": lease.clock_min_mhz,
        "clock_max_mhz": lease.clock_max_mhz,
        # The lease ran on since the snapshot.
        "remaining_s": number(max(0.0, lease.expires_in_s - gpu.age_s)),
    }


def work_by_gpu(board: Board) -> dict[str, tuple[str, int]]:
    """Job and stage of every GPU that a job of the policy has."""
    return {
        uuid: (job.view.policy.name, stage)
        for job in board.jobs
        for stage, uuids in enumerate(job.view.placement.stages)
        for uuid in uuids
    }


def in_order(gpus: Mapping[str, GpuView]) -> list[GpuView]:
    return sorted(gpus.values(), key=lambda gpu: (gpu.node, gpu.description.index, gpu.uuid))


GPUS_LISTED_MAX = 64  # more are counted
ODD_LISTED_MAX = 24
# Event reasons of an idle GPU or a planned clock; all others need attention.
QUIET_REASONS = frozenset(("applications_clocks_setting", "gpu_idle", "none"))


def brief_json(board: Board) -> Json:
    """As `board_json`, with `brief`, `gpu_counts`, `node_counts` and `node_names` besides.

    In a large fleet `gpus` holds only GPUs that need attention, `nodes` the lost ones, and jobs are
    without GPUs and frontier; plans are always without actions.
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
    """Silent, drifting, slow for another reason than its plan, or held by another job."""
    seen = gpu.snapshot
    if seen is None or seen.drift or seen.backoff_s > 0.0:
        return True
    lease = seen.lease
    if lease and lease.job != BUDGET_JOB and (work is None or lease.job != work[0]):
        return True
    return not QUIET_REASONS.issuperset(seen.event_reasons)


def _counts(gpus: list[GpuView], odd_count: int) -> Json:
    silent = sum(gpu.snapshot is None for gpu in gpus)
    leases = (gpu.snapshot.lease for gpu in gpus if gpu.snapshot)
    leased = sum(lease is not None and lease.job != BUDGET_JOB for lease in leases)
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
    if not large:  # a small fleet: the clocks of each GPU are part of it
        whole = job_json(replace(slim, decision=job.decision), view)
        return whole | {"decision": _plan(whole["decision"])} | state_json(job)
    brief = job_json(slim, view, gpus=False) | state_json(job)
    return brief | {"gpu_count": sum(map(len, job.view.placement.stages))}


def _bare(plan: Plan | None) -> Plan | None:
    return plan and replace(plan, actions=(), solution=None)


def _plan(plan: Json | None) -> Json | None:
    return plan and plan | {"actions": [], "solution": None}


assert ODD_LISTED_MAX <= GPUS_LISTED_MAX
