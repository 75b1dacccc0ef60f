"""The board as JSON, whole and in brief: one shape for the page, the API and the command line.

Keys carry their unit. Unknown values are null, never zero and never NaN. Ages and remaining lease
times are as of `at_unix_s`, the start of the pass. The brief form has the same shape for a fleet of
any size: of many GPUs it lists those that need attention and counts the rest.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from joulecut_controller import answer as a
from joulecut_controller.answer import Answer, Json, Key, component, listed, maybe, one_of
from joulecut_controller.board import Board, JobBoard
from joulecut_controller.cluster.needs import Severity
from joulecut_controller.cluster.summary import Cluster, cluster_of, gpu_counts
from joulecut_controller.cluster.worth import job_worth, worth_json
from joulecut_controller.plan.plan import Plan
from joulecut_controller.plan.record import MODE
from joulecut_controller.view import BUDGET_JOB, GpuView
from joulecut_controller.web.gpu_json import GPU, SIMULATED, gpu_json
from joulecut_controller.web.job_json import HOLD, JOB, STATE, job_json, strongest_mode
from joulecut_wire.messages import POWER_PROFILE

NEEDS_LISTED_MAX = 20  # more are counted
EVENTS_ON_BOARD = 50  # /api/v1/events has the rest


def board_json(board: Board) -> Json:
    """The whole board, without the operations of plans, which have their own address."""
    return shell_json(board) | {
        "gpus": list(gpus_in_order(board)),
        "jobs": [job_json(job, board.view, policy=board.policy) for job in board.jobs],
    }


def gpus_in_order(board: Board) -> Iterator[Json]:
    """Every GPU, one at a time."""
    work = work_by_gpu(board)
    return (gpu_json(gpu, work.get(gpu.uuid)) for gpu in in_order(board.view.gpus))


def _detail(text: str) -> Any:
    """The detail of an event as JSON, a plan of tens of kilobytes; as text where it is not."""
    if not text:
        return None
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except ValueError:
        return text


# One agent and its connection.
NODE = Answer(
    "Node",
    node=a.TEXT,
    address=a.TEXT,
    connected=a.FLAG,
    error=a.TEXT,
    agent_version=a.TEXT,
    epoch_seen=a.COUNT,
    ttl_max_s=a.NUMBER,
    keeps_power_limits=a.FLAG,
    is_shared=a.FLAG,
)
EVENT = Answer(at_unix_s=a.NUMBER, kind=a.TEXT, job=a.TEXT, generation=a.COUNT, text=a.TEXT)
EVENT_WITH_DETAIL = Answer("Event", **EVENT.keys, detail=Key({}, _detail))
# The power budget and the power limits that keep it.
POWER_BUDGET = Answer(
    budget_w=a.NUMBER,
    capacity_w=a.NUMBER,
    in_force_w=a.NUMBER,
    least_w=a.NUMBER,
    limits_w=a.NUMBERS,
    state=Key({"enum": ["kept", "lowering", "recommended", "lifted"]}),
    best_effort=a.TEXT,
    sentence=a.TEXT,
)
NEED = Answer(
    severity=one_of("Severity", Severity), text=a.TEXT, job=a.TEXT, node=a.TEXT, runbook=a.TEXT
)


def _counted(cluster: Cluster) -> Json:
    return {name: cluster.count(name) for name in ("fault", "decision", "note")}


_JOB_COUNTS = {
    "type": "object",
    "properties": {"all": a.COUNT.schema},
    "required": ["all"],
    "additionalProperties": a.COUNT.schema,
}
# The cluster without its tables.
SUMMARY = Answer(
    headline=a.TEXT,
    needs=listed(NEED).at(lambda cluster: cluster.needs[:NEEDS_LISTED_MAX]),
    need_counts=Key(Answer(fault=a.COUNT, decision=a.COUNT, note=a.COUNT).schema).at(_counted),
    power=Answer(
        now_w=a.NUMBER,
        without_w=a.NUMBER,
        without_is_predicted=a.FLAG.at("predicted"),
        available_w=a.NUMBER,
    ).key,
    savings=Answer(measured_j=a.NUMBER, promised_j=a.NUMBER, predicted_j=a.NUMBER).key.at(
        "account"
    ),
    gpu_counts=Answer(
        all=a.COUNT, controlled=a.COUNT, default=a.COUNT, silent=a.COUNT, not_controllable=a.COUNT
    ).key.at("gpus"),
    node_counts=Answer(all=a.COUNT.at("nodes"), lost=a.COUNT.at("nodes_lost")).key.here,
    job_counts=Key(_JOB_COUNTS).at(lambda one: {"all": sum(one.states.values()), **one.states}),
)
# Which controller answers, and of which pass.
RUN = {
    "at_unix_s": a.NUMBER,
    "role": Key({"enum": ["leader", "standby"]}).at(
        lambda board: "leader" if board.leads else "standby"
    ),
    "leader": a.TEXT,  # of a standby: address of the leader
    "pass_number": a.COUNT,
    "epoch": a.COUNT,
    "interval_s": a.NUMBER,
    "mode": MODE.at(lambda board: strongest_mode(board.jobs)),
    "simulated": a.FLAG.at(
        lambda board: any(uuid.startswith(SIMULATED) for uuid in board.view.gpus)
    ),
    "policy": Answer(
        source=a.TEXT.at("policy_source"),
        digest=a.TEXT.at("policy_digest"),
        error=a.TEXT.at("policy_error"),
    ).key.here,
    "events": listed(EVENT).at(lambda board: board.events[:EVENTS_ON_BOARD]),
}
BOARD = Answer(
    "Board",
    **RUN,
    sentence=a.TEXT,
    nodes=listed(NODE).at("view.nodes"),
    gpus=listed(GPU).given,
    holds=listed(HOLD),
    cluster=SUMMARY.key.at(cluster_of),
    power_budget=maybe(POWER_BUDGET).at("power_limits"),
    jobs=listed(JOB).given,
)


_GPU_COUNTS = Answer(
    all=a.COUNT,
    leased=a.COUNT.at("controlled"),
    default=a.COUNT,
    silent=a.COUNT,
    not_controllable=a.COUNT,
    odd=a.COUNT.given,
)
_BRIEF = Answer(
    brief=a.FLAG,
    gpu_counts=_GPU_COUNTS.key,
    node_counts=Answer(all=a.COUNT, lost=a.COUNT).key,
    node_names=listed(a.TEXT),
)
BRIEF = component("Brief", {"allOf": [BOARD.schema, _BRIEF.schema]})


def shell_json(board: Board) -> Json:
    """The board with room for `gpus` and `jobs`."""
    return BOARD.json(board, gpus=[], jobs=[])


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
    without GPUs, frontier and the actions of plans.
    """
    nodes, odd = board.view.nodes, list[GpuView]()
    lost = [node for node in nodes if not node.connected]
    large = len(board.view.gpus) > GPUS_LISTED_MAX
    if large:
        work = work_by_gpu(board)
        odd = [one for one in in_order(board.view.gpus) if _is_odd(one, work.get(one.uuid))]
        shown = shell_json(board) | {
            "nodes": [NODE.json(node) for node in lost],
            "gpus": [gpu_json(one, work.get(one.uuid)) for one in odd[:ODD_LISTED_MAX]],
            "jobs": [_job(job, board) for job in board.jobs],
        }
    else:
        shown = board_json(board)
    return shown | {
        "brief": large,
        "gpu_counts": _GPU_COUNTS.json(gpu_counts(board), odd=len(odd)),
        "node_counts": {"all": len(nodes), "lost": len(lost)},
        "node_names": [node.node or node.address for node in nodes],
    }


def _is_odd(gpu: GpuView, work: tuple[str, int] | None) -> bool:
    """Silent, drifting, slow for another reason than its plan, or held by another job."""
    seen = gpu.snapshot
    if seen is None or seen.drift or seen.backoff_s > 0.0:
        return True
    lease = seen.lease
    if lease and lease.job != BUDGET_JOB and (work is None or lease.job != work[0]):
        return True
    loud = (one for one in seen.event_reasons if not one.startswith(POWER_PROFILE))
    return not QUIET_REASONS.issuperset(loud)


def _job(job: JobBoard, board: Board) -> Json:
    slim = replace(job, decision=_bare(job.decision), applied=_bare(job.applied), frontier=())
    state = STATE.json(job) | {"money": worth_json(job_worth(job, board.policy))}
    gpus = {"gpu_count": sum(map(len, job.view.placement.stages))}
    return job_json(slim, board.view, gpus=False) | state | gpus


def _bare(plan: Plan | None) -> Plan | None:
    return plan and replace(plan, actions=(), solution=None)


assert ODD_LISTED_MAX <= GPUS_LISTED_MAX
