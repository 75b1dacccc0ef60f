"""The board as JSON, whole and in brief: one shape for the page, the API and the command line.

Keys carry their unit. Unknown values are null, never zero and never NaN. Ages and remaining lease
times are as of `at_unix_s`, the start of the pass. The brief form has the same shape for a fleet of
any size: many GPUs are counted alone.
"""

import json
from collections.abc import Mapping
from typing import Any

from joulecut_controller import answer as a
from joulecut_controller.answer import Answer, Json, Key, component, listed, maybe, one_of
from joulecut_controller.board import Board, JobBoard
from joulecut_controller.cluster.needs import Severity
from joulecut_controller.cluster.summary import Cluster, cluster_of, parts_of
from joulecut_controller.plan.record import MODE
from joulecut_controller.view import GpuView
from joulecut_controller.web.gpu_json import GPU, SIMULATED, gpu_json
from joulecut_controller.web.job_json import HOLD, JOB, job_json, strongest_mode

NEEDS_LISTED_MAX = 20  # more are counted
EVENTS_ON_BOARD = 50  # /api/v1/events has the rest


def board_json(board: Board) -> Json:
    """The whole board, without the operations of plans, which have their own address."""
    return shell_json(board) | {
        "gpus": gpus_in_order(board),
        "jobs": [job_json(job, board.view, policy=board.policy) for job in board.jobs],
    }


def gpus_in_order(board: Board) -> list[Json]:
    work = work_by_gpu(board)
    return [gpu_json(gpu, work.get(gpu.uuid)) for gpu in in_order(board.view.gpus)]


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
    # Jobs that other controllers of the store command, and how old this is.
    elsewhere=listed(
        Answer(
            controller=a.TEXT.at(lambda one: one[1].controller),
            age_s=a.NUMBER.at(lambda one: one[0]),
            jobs=listed(a.TEXT).at(lambda one: [row["name"] for row in one[1].rows]),
        )
    ).at(parts_of),
)


BRIEF = component("Brief", {"allOf": [BOARD.schema, Answer(brief=a.FLAG).schema]})


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


def brief_json(board: Board) -> Json:
    """As `board_json`, with `brief`: whether GPUs are counted alone, as in a large fleet. Its jobs
    are without GPUs, frontier and the actions of plans.
    """
    large = len(board.view.gpus) > GPUS_LISTED_MAX
    if not large:
        return board_json(board) | {"brief": large}
    return shell_json(board) | {"jobs": [_job(job, board) for job in board.jobs], "brief": large}


def _job(job: JobBoard, board: Board) -> Json:
    made = job_json(job, board.view, gpus=False, policy=board.policy) | {"frontier": []}
    for plan in filter(None, (made["decision"], made["applied"])):
        plan |= {"actions": [], "solution": None}
    return made
