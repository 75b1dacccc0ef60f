"""From a GPU's rank to its pipeline stage, where the job does not report it.

Launchers number processes; frameworks map numbers to places by an order of parallelisms. A wrong
order gives a plan for another machine, so the job's own reports have to confirm the result. Pure.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joulecut_controller.view import GpuView
from joulecut_engine.graph.pipeline import Pipeline

PIPELINE = "pp"
# Labels of pods. An Indexed Job numbers its pods; a JobSet numbers its Jobs as well.
POD_INDEX = "batch.kubernetes.io/job-completion-index"
JOB_INDICES = ("jobset.sigs.k8s.io/job-global-index", "jobset.sigs.k8s.io/job-index")


def coordinates(rank: int, order: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Where a rank stands in each dimension of `order` (like tp-cp-ep-dp-pp), the first changing
    fastest, as Megatron-LM numbers its ranks. Dimensions without a size have size 1. Raises
    ValueError for a rank outside.
    """
    place, left = {}, rank
    for dimension in order.split("-"):
        left, place[dimension] = divmod(left, sizes.get(dimension, 1))
    if rank < 0 or left:
        raise ValueError(f"rank {rank} is outside of {dict(sizes)}")
    return place


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of one GPU in its job: pipeline stage, and data-parallel replica."""

    stage: int
    replica: int


def seats(ranked: Sequence[str], order: str, pipeline: Pipeline) -> Mapping[str, Seat]:
    """The seat of every GPU of a rank order; empty where they make no whole groups.

    Expert-parallel groups are taken out of context and data parallelism, neighbours first, as
    Megatron-LM does.
    """
    group = pipeline.stages * pipeline.tensor_parallel * pipeline.context_parallel
    if not ranked or len(ranked) % group:
        return {}
    sizes = {
        PIPELINE: pipeline.stages,
        "tp": pipeline.tensor_parallel,
        "cp": pipeline.context_parallel,
        "dp": len(ranked) // group,
    }
    together = pipeline.lockstep // pipeline.tensor_parallel
    found = {}
    for rank, uuid in enumerate(ranked):
        at = coordinates(rank, order, sizes)
        replica = (at["cp"] + sizes["cp"] * at["dp"]) // together
        found[uuid] = Seat(at[PIPELINE], replica)
    return found


def by_completion(gpus: Sequence[GpuView]) -> tuple[tuple[str, ...], str]:
    """The GPUs of one job in rank order by the indices of its pods, and a complaint.

    Within a pod, processes count its GPUs in the node's order.
    """
    pods: dict[tuple[int, int], str] = {}
    ranked: list[tuple[int, int, int, str]] = []
    for gpu in gpus:
        if gpu.allocation is None:
            return (), f"the agent of GPU {gpu.place} names no owner"
        index = _number(gpu.allocation.labels, (POD_INDEX,))
        if index is None:
            return (), f"pod {gpu.allocation.pod} has no label {POD_INDEX}"
        part = _number(gpu.allocation.labels, JOB_INDICES) or 0
        pod = pods.setdefault((part, index), gpu.allocation.pod)
        if pod != gpu.allocation.pod:
            return (), f"pods {pod} and {gpu.allocation.pod} have the same completion index {index}"
        ranked.append((part, index, gpu.description.index, gpu.uuid))
    counts = set(Counter(row[:2] for row in ranked).values())
    if len(counts) > 1:
        return (), f"pods have {min(counts)} to {max(counts)} GPUs; ranks need the same number"
    return tuple(uuid for *_, uuid in sorted(ranked)), _gap(pods)


def _gap(pods: Mapping[tuple[int, int], str]) -> str:
    """A pod that is not there yet would shift every rank after it."""
    by_part: dict[int, set[int]] = {}
    for part, index in pods:
        by_part.setdefault(part, set()).add(index)
    missing = [part for part in range(max(by_part, default=-1) + 1) if part not in by_part]
    if missing:
        return f"no pod of job index {missing[0]} is there"
    for part, indices in sorted(by_part.items()):
        if absent := set(range(max(indices) + 1)) - indices:
            where = f" of job index {part}" if len(by_part) > 1 else ""
            return f"no pod with completion index {min(absent)}{where} is there"
    return ""


def _number(labels: Mapping[str, str], keys: Sequence[str]) -> int | None:
    found = next((labels[key] for key in keys if key in labels), "")
    return int(found) if found.isascii() and found.isdigit() and len(found) <= 9 else None
