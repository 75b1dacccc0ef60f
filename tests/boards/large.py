"""A board of a large fleet, made up: nodes of eight GPUs, one job of eight stages a node."""

from dataclasses import replace

import boards
from job_states import changed

from joulecut_controller.board import Board
from joulecut_controller.view import NodeView, View


def board(nodes: int = 1250, *, passes: int = 128, jobs: int = 100) -> Board:
    """`nodes` x 8 GPUs, all under leases; the jobs share all of them."""
    whole = boards.board("enforce", passes=passes)
    [shown] = whole.jobs
    gpus, agents = {}, []
    for node in range(nodes):
        name, address = f"node{node:04d}", f"10.0.{node // 250}.{node % 250}:9431"
        agents.append(NodeView(address, name, connected=True, epoch_seen=7, ttl_max_s=60.0))
        for index in range(8):
            one = boards.gpu(index, boards.PLANNED_MHZ[index])
            uuid = f"GPU-sim-{name}-{index}"
            assert one.snapshot is not None
            gpus[uuid] = replace(
                one,
                description=replace(one.description, uuid=uuid, index=index),
                snapshot=replace(one.snapshot, uuid=uuid),
                address=address,
                node=name,
            )
    placed = sorted(gpus)
    each = nodes // jobs
    made = []
    for number in range(jobs):
        mine = [f"GPU-sim-node{number * each + n:04d}-{i}" for i in range(8) for n in range(each)]
        stages = tuple(tuple(mine[i * each : (i + 1) * each]) for i in range(8))
        assert shown.decision is not None
        actions = tuple(
            replace(shown.decision.actions[stage], uuid=uuid)
            for stage, uuids in enumerate(stages)
            for uuid in uuids
        )
        plan = replace(shown.decision, actions=actions, job=f"job{number:03d}")
        policy = replace(shown.view.policy, name=f"job{number:03d}")
        state = changed(shown.view, policy=policy, stages=stages)
        made.append(replace(shown, view=state, decision=plan, applied=plan))
    assert len(placed) == nodes * 8
    view = View(now_s=640.0, nodes=tuple(agents), gpus=gpus, jobs=tuple(job.view for job in made))
    return replace(whole, view=view, jobs=tuple(made))
