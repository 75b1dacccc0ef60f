"""Power limits of all GPUs under a power budget: their allocation, and the order of changes.

The limits that stay when leases end sum to no more than what the budget leaves to GPUs. A GPU
whose limit cannot be set counts with the highest limit that may be in force on it. Lower limits are
sent first; a raise is sent only where it fits beside everything that may be in force. Above them,
as long as its clocks are held, a job has the limits that leave it these clocks, where its mean
power is within the sum of those that stay. Pure; watts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from joulecut_controller.plan.costs import Costs
from joulecut_controller.plan.evaluation import Clocks
from joulecut_controller.power.budget import Demand
from joulecut_controller.view import POWER_SLACK_W

# Power of one GPU above the mean of its siblings, which predictions are of: three standard
# deviations of 1.5 %, as measured between the GPUs of one node.
HEADROOM_RATIO = 0.05
# The limits that stay follow the shares of jobs in steps of STEP_RATIO: the mean power of a job may
# be above them by little more.
ABOVE_RATIO = 0.06
# A new allocation that moves no limit further is noise: a limit costs a write on every change.
STEP_RATIO, STEP_W = 0.05, 5.0
# After the end of a budget the limits go back within this time, evenly: a training cluster's
# power then rises no faster than when its jobs start.
RAMP_S = 60.0


@dataclass(frozen=True, slots=True)
class LimitedGpu:
    """One GPU under the budget.

    `least_w` to `most_w` is the range of its limit: what the card takes, up to the limit found
    before the first write. `wanted_w` is what its work needs. `in_force_w` is the highest limit
    that may be in force, `above_w` the one that stands above it under a lease (0: none).
    `fixed` says why the limit cannot be set; empty where it can.
    """

    uuid: str
    least_w: float
    most_w: float
    wanted_w: float
    in_force_w: float
    fixed: str = ""
    above_w: float = 0.0


@dataclass(frozen=True, slots=True)
class Allocation:
    """A limit for every GPU that can be set. `least_w` is the smallest sum that is possible, with
    the GPUs that cannot be set. `complaint` says why the budget cannot be kept; empty where it can.
    """

    capacity_w: float
    limits_w: Mapping[str, float] = field(default_factory=dict)
    least_w: float = 0.0
    complaint: str = ""


def allocate_limits(gpus: Sequence[LimitedGpu], capacity_w: float) -> Allocation:
    """Limits that sum to at most `capacity_w`, in whole watts.

    Every GPU gets its least limit. The rest goes to what work needs, in proportion where it is
    short, and then to all GPUs up to their highest limit. Where even the least limits exceed the
    capacity, they are chosen, with a complaint.
    """
    free = [gpu for gpu in gpus if not gpu.fixed]
    fixed_w = sum(gpu.in_force_w for gpu in gpus if gpu.fixed)
    low = [float(math.ceil(gpu.least_w)) for gpu in free]
    wanted = [
        min(max(gpu.wanted_w, least_w), max(gpu.most_w, least_w))
        for gpu, least_w in zip(free, low, strict=True)
    ]
    high = [max(gpu.most_w, wanted_w) for gpu, wanted_w in zip(free, wanted, strict=True)]
    room_w = capacity_w - fixed_w
    level = _between(_between(low, wanted, room_w), high, room_w)
    limits_w = {gpu.uuid: float(math.floor(w)) for gpu, w in zip(free, level, strict=True)}
    least_w = sum(low) + fixed_w
    complaint = ""
    if least_w > capacity_w:
        count = len(gpus) - len(free)
        rest = f", {fixed_w:.6g} W of it on {count} that cannot be set" if count else ""
        complaint = (
            f"the power limits of {len(gpus)} GPUs cannot sum to {capacity_w:.6g} W: "
            f"{least_w:.6g} W is the least possible{rest}"
        )
    return Allocation(capacity_w, limits_w, least_w, complaint)


def shared_limits(
    gpus: Sequence[LimitedGpu],
    equal: Allocation,
    demands: Mapping[str, Demand],
    shares_w: Mapping[str, float],
) -> dict[str, float]:
    """Equal limits, but for the jobs whose share of the budget is known: what all these have of
    equal limits goes by their shares, and within a job by what its clocks need.
    """
    known, limits_w = {gpu.uuid: gpu for gpu in gpus}, dict(equal.limits_w)
    sharing = {
        name: demand
        for name, demand in demands.items()
        if shares_w.get(name) and all(uuid in limits_w for uuid in demand.uuids)
    }
    room_w = sum(limits_w[uuid] for demand in sharing.values() for uuid in demand.uuids)
    sum_w = sum(shares_w[name] for name in sharing)
    for name, demand in sharing.items():
        own = [
            replace(known[uuid], wanted_w=demand.needs_w.get(uuid, known[uuid].wanted_w))
            for uuid in demand.uuids
        ]
        limits_w |= allocate_limits(own, room_w * shares_w[name] / sum_w).limits_w
    return limits_w


def limits_above(
    gpus: Sequence[LimitedGpu], demands: Mapping[str, Demand], capacity_w: float
) -> dict[str, dict[str, float]]:
    """By job, the limits that may stand above those that stay: where mean power is no more than
    these sum to, and all together within the capacity. A job may be named without any.
    """
    known = {gpu.uuid: gpu for gpu in gpus}
    total_w = sum(gpu.in_force_w for gpu in gpus)
    asked = []
    for name, demand in demands.items():
        own = [known[uuid] for uuid in demand.uuids if uuid in known]
        if (
            demand.mean_w is not None
            and len(own) == len(demand.uuids)
            and not any(g.fixed for g in own)
        ):
            asked.append((demand.mean_w - sum(gpu.in_force_w for gpu in own), name, own))
    found: dict[str, dict[str, float]] = {}
    for more_w, name, own in sorted(asked, key=lambda one: one[:2]):
        stays_w = sum(gpu.in_force_w for gpu in own)
        if more_w <= ABOVE_RATIO * stays_w and total_w + more_w <= capacity_w:
            total_w += more_w
            needs_w = {g.uuid: min(demands[name].needs_w.get(g.uuid, 0.0), g.most_w) for g in own}
            found[name] = {
                gpu.uuid: float(math.ceil(needs_w[gpu.uuid]))
                for gpu in own
                if needs_w[gpu.uuid] > gpu.in_force_w + POWER_SLACK_W
            }
    return found


def _between(low: Sequence[float], high: Sequence[float], room_w: float) -> list[float]:
    """Raises `low` evenly towards `high`, as far as the room goes."""
    span_w = sum(high) - sum(low)
    spare_w = max(0.0, room_w - sum(low))
    share = min(1.0, spare_w / span_w) if span_w > 0.0 else 1.0
    return [least + share * (most - least) for least, most in zip(low, high, strict=True)]


def moved(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Whether some limit moved by more than noise, or is of another GPU."""
    return before.keys() != after.keys() or any(
        abs(after[uuid] - limit_w) > max(STEP_W, STEP_RATIO * limit_w)
        for uuid, limit_w in before.items()
    )


def next_limits(
    gpus: Sequence[LimitedGpu], limits_w: Mapping[str, float], capacity_w: float
) -> dict[str, float]:
    """The limits to send now, towards `limits_w`: every lower one, and the raises that fit beside
    all that may be in force, smallest first.

    Whichever of them take effect, in whatever order, the sum stays within the capacity once it is.
    """
    in_force = {gpu.uuid: gpu.in_force_w for gpu in gpus if not gpu.fixed and gpu.uuid in limits_w}
    sent = {u: limits_w[u] for u, now_w in in_force.items() if limits_w[u] < now_w - POWER_SLACK_W}
    room_w = capacity_w - sum(gpu.in_force_w for gpu in gpus)
    raises = sorted((limits_w[u] - now_w, u) for u, now_w in in_force.items() if u not in sent)
    for raise_w, uuid in raises:
        if POWER_SLACK_W < raise_w <= room_w:
            sent[uuid] = limits_w[uuid]
            room_w -= raise_w
    return sent


def next_raises(
    gpus: Sequence[LimitedGpu], gap_w: float, elapsed_s: float
) -> tuple[dict[str, float], float]:
    """After the end of a budget: the GPUs whose limits go back now, and the watts still below.

    `gap_w` is the sum of all raises when the ramp began, `elapsed_s` the time since. At most
    gap_w / RAMP_S watts per second are given back, and all of them by RAMP_S.
    """
    below = sorted((gpu.uuid, gpu.most_w, gpu.most_w - gpu.in_force_w) for gpu in gpus)
    left_w = sum(raise_w for _, _, raise_w in below)
    allowed_w = gap_w * min(1.0, elapsed_s / RAMP_S) - (gap_w - left_w)
    sent: dict[str, float] = {}
    for uuid, most_w, raise_w in below:
        if raise_w > allowed_w and elapsed_s < RAMP_S:
            break
        sent[uuid] = most_w
        allowed_w -= raise_w
    return sent, left_w


def needed_w(costs: Costs, clocks: Clocks) -> tuple[float, ...] | None:
    """By stage of the graph, the power that work draws at most on one GPU at these clocks, with
    head room; None where a clock has no predicted cost.
    """
    operations = costs.problem.graph.operations
    most = list(costs.problem.blocking_power_w)
    if len(clocks) != len(operations):
        return None
    for operation, clock_mhz in zip(operations, clocks, strict=True):
        option = costs.option(operation, clock_mhz)
        if option is None:
            return None
        power_w = option.power_w
        most[operation.stage] = max(most[operation.stage], power_w)
    return tuple(power_w * (1.0 + HEADROOM_RATIO) for power_w in most)
