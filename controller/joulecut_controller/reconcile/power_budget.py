"""The power budget in force: power limits of all GPUs, set so that they outlive this controller.

Each pass compares what the nodes show with the allocation and sends the next step towards it. A GPU
counts with the highest limit that may be in force on it: read back after the last answered command,
or the one of a command without an answer. That is in the store before a raise is sent, so that
a restarted controller counts nodes that it cannot reach. After the end of a budget the limits go
back on a ramp. Limits above them last as long as the leases of clocks, and are in no record.
"""

import json
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from joulecut_controller.board import PowerLimits
from joulecut_controller.orders import ALL, Hold
from joulecut_controller.policy.policy import Policy
from joulecut_controller.ports import Record, Store
from joulecut_controller.power.budget import UNMEASURED_RATIO, Demand, Share
from joulecut_controller.power.limits import (
    RAMP_S,
    Allocation,
    LimitedGpu,
    allocate_limits,
    limits_above,
    moved,
    next_limits,
    next_raises,
    shared_limits,
)
from joulecut_controller.reconcile.audit_log import AuditLog
from joulecut_controller.reconcile.leases import Leases, LimitOutcome, Place
from joulecut_controller.reconcile.shared_budget import NO_JOB, LimitOrder, SharedBudget
from joulecut_controller.view import BUDGET_JOB, POWER_SLACK_W, GpuView, NodeView, View
from joulecut_wire.assumed import UNUSED_BUSY_RATIO
from joulecut_wire.messages import GpuSnapshot

TOPIC = "power_limit"  # records: the newest of each agent, its GPUs by UUID
RECORDS_READ_MAX = 100_000  # ten thousand agents, several times over
EXTERNAL_S = 300.0  # no limit is set for so long after another writer raised it
IDLE_AFTER_S = 15.0  # a checkpoint may leave a GPU idle for so long; its watts then go to others
MEASURED_S = 20.0  # the mean power of a job is measured over so long, some iterations
REASONS_SHOWN = 3
FAILURES_KEPT = 64  # a failed order is repeated each pass, and logged once
# What an agent shows moves the limits of all others, so that no GPU counts with more than this: the
# largest known board, GB300 (1,400 W).
BOARD_W_MAX = 1400.0
# A GPU that its agent has not shown for so long was replaced, or never was; and one whose agent has
# left, and that no other claims by then: it was not moved.
GONE_S, LEFT_S = 3600.0, 60.0
# From the answer to a command until a reading shows it: agents sample once a second, and a command
# without an answer ends within 3 s.
SHOWN_S = 1.0
EARLIER_S = 4.0


@dataclass(frozen=True, slots=True)
class _Limit:
    """One GPU's power limit, in watts, as far as it survives a restart.

    `found_w` was in force before the first write, `set_w` is what this controller asked for last
    (0: nothing). `bound_w` is the highest that may be in force.
    """

    found_w: float
    set_w: float
    bound_w: float


@dataclass(slots=True)
class _Seen:
    """One GPU of this process; times are monotonic.

    A reading counts from `shown_s` on: some time after the newest command was answered, infinite
    while it is not. `awaited`: no reading has followed that answer yet. `energy_j` is the last
    reading's counter, which a reloaded driver begins at 0: seen at `reloaded_s`, and `forgotten`
    until a reading shows our limit again. `there_s`: agent lost, or showing it.
    """

    limit: _Limit
    address: str
    shown_s: float = float("-inf")
    awaited: bool = False
    busy_s: float = float("-inf")
    external_until_s: float = float("-inf")  # another writer raised the limit
    refused: str = ""
    energy_j: float = 0.0
    reloaded_s: float = float("-inf")
    forgotten: bool = False
    there_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class _Above:
    """Limits of a job that stand above those that stay: sent at `sent_s`. Its energy counters
    showed `energy_j` at `since_s`, since when `mean_w` is predicted.
    """

    sent_s: float
    since_s: float
    mean_w: float = 0.0
    energy_j: float = 0.0


class PowerBudget:
    """All GPUs, under the policy's power budget, by the controller that keeps it (`shared` says
    which). `counted_w` are the limits that each counts with by equal parts, `unused` the GPUs
    without work, `ratios` the measured mean power of jobs over that predicted of the clocks they
    hold.
    """

    def __init__(
        self,
        store: Store,
        leases: Leases,
        audit: AuditLog,
        shared: SharedBudget,
        *,
        now_s: Callable[[], float],
        unix_s: Callable[[], float],
    ) -> None:
        """Raises Unavailable where the store cannot be read."""
        self._store, self._leases, self._audit, self._shared = store, leases, audit, shared
        self._now_s, self._unix_s = now_s, unix_s
        self._gpus: dict[str, _Seen] = {}
        self._kept: dict[str, str] = {}  # by address: the record in the store
        self.begun = False
        if shared.leads:
            self.begin()
        self._demands: Mapping[str, Demand] = {}
        self._job_of: Mapping[str, str] = {}
        self._limits_w: Mapping[str, float] = {}
        self._above: dict[str, _Above] = {}
        self.counted_w: Mapping[str, float] = {}
        self.unused: set[str] = set()
        self.ratios: dict[str, float] = {}
        self._ramp: tuple[float, float] | None = None  # since when, in seconds; watts to give back
        self._logged: deque[str] = deque(maxlen=FAILURES_KEPT)  # audit lines of failed orders
        self.shown: PowerLimits | None = None

    def begin(self) -> None:
        """What earlier controllers have set. Raises Unavailable."""
        for record in reversed(self._store.records(TOPIC, limit=RECORDS_READ_MAX)):
            self._kept[record.job] = record.content
        for address, content in self._kept.items():
            for uuid, limit in _read(content).items():
                # A command of the controller before may still be on its way.
                until_s = self._now_s() + EARLIER_S
                self._gpus[uuid] = _Seen(limit, address, until_s, there_s=self._now_s())
        self.begun = True

    def needed(self, policy: Policy) -> bool:
        """Whether there is a budget, or limits of this store's are still in force."""
        return policy.power_budget_w is not None or bool(self._gpus)

    def known(self, demand: Demand, host_power_w: float) -> Demand:
        """With what its limits leave it; one whose GPUs have no work cannot be slowed."""
        limits_w = sum(self.counted_w.get(uuid, 0.0) + host_power_w for uuid in demand.uuids)
        frontier = () if self.unused.issuperset(demand.uuids) else demand.frontier
        return replace(demand, limits_w=limits_w, frontier=frontier)

    def limiting(self, job: str, share: Share) -> Share:
        """With what the limits do to the job's clocks and power."""
        above = self._above.get(job)
        limited = self._shared.unknown.limited and (above is None or above.mean_w == 0.0)
        ratio = round(self.ratios.get(job, UNMEASURED_RATIO), 3)
        return replace(share, limited=limited, mean_ratio=ratio)

    def step(
        self,
        policy: Policy,
        view: View,
        demands: Mapping[str, Demand],
        shares: Mapping[str, Share],
        holds: Iterable[Hold],
    ) -> None:
        """One pass: the next orders; demands and shares by job. Raises Unavailable where the store
        cannot keep a step.
        """
        self._demands = demands
        self._job_of = {uuid: name for name, one in demands.items() for uuid in one.uuids}
        self.take_answers()
        self._shared.narrow(self._job_of)
        held = {hold.job: hold for hold in holds if hold.kind in ("pause", "restore")}
        over = _over(policy, held.get(ALL))
        self._look(view, adopts=not over)
        if over:
            self._limits_w, self._above = {}, {}
            self._give_back(policy, view, over)
            if policy.power_budget_w is None or policy.enforces:
                return
        else:
            self._ramp = None
        assert policy.power_budget_w is not None
        capacity_w = policy.power_budget_w - policy.cost.host_power_w * len(self._gpus)
        gpus = self._limited(policy, view, held)
        found = allocate_limits(gpus, capacity_w)
        fixed = {gpu.uuid: gpu.in_force_w for gpu in gpus if gpu.fixed}
        self.counted_w = {**found.limits_w, **fixed}
        host_power_w = policy.cost.host_power_w
        shares_w = {
            name: max(0.0, share.power_w - host_power_w * len(demands[name].uuids))
            for name, share in shares.items()
            if share.power_w is not None
        }
        limits_w = shared_limits(gpus, found, demands, shares_w)
        exceeds = sum(self._limits_w.values()) + sum(fixed.values()) > capacity_w
        if exceeds or moved(self._limits_w, limits_w):
            self._limits_w = limits_w
        if not over and not self._leases.lost and not held.get(ALL):
            steps = self._unconfirmed_left_out(next_limits(gpus, self._limits_w, capacity_w))
            reason = f"the power budget of {policy.power_budget_w:.6g} W"
            if steps:
                self._send(steps, view, keep=True, reason=reason)
                gpus = self._limited(policy, view, held)
            else:
                self._keep(view)  # limits that were read back
            self._step_above(view, gpus, self._corrected(demands), capacity_w, reason)
        self._show(policy, view, gpus, found, enforced=not over)

    def _corrected(self, demands: Mapping[str, Demand]) -> dict[str, Demand]:
        """With mean powers as measured."""
        self.ratios = {name: ratio for name, ratio in self.ratios.items() if name in demands}
        return {
            name: replace(one, mean_w=one.mean_w * self.ratios.get(name, UNMEASURED_RATIO))
            for name, one in demands.items()
            if one.mean_w is not None
        }

    def _step_above(
        self,
        view: View,
        gpus: Sequence[LimitedGpu],
        demands: Mapping[str, Demand],
        capacity_w: float,
        reason: str,
    ) -> None:
        """Limits above those that stay, and what jobs draw under them."""
        nodes = {node.address: node for node in view.nodes}
        able = {
            name: demand
            for name, demand in demands.items()
            if all(
                uuid in self._gpus and self._settled(self._gpus[uuid], nodes)
                for uuid in demand.uuids
            )
        }
        self._above = {name: above for name, above in self._above.items() if name in demands}
        wanted, above_w = limits_above(gpus, able, capacity_w), {g.uuid: g.above_w for g in gpus}
        for name, demand in demands.items():
            known, now_s = self._above.get(name), view.now_s
            stands = {uuid: above_w[uuid] for uuid in demand.uuids if above_w.get(uuid)}
            if name not in wanted:
                self._above.pop(name, None)
                if stands:
                    fixed = {gpu.uuid for gpu in gpus if gpu.fixed}
                    back = {u: self._gpus[u].limit.set_w for u in stands if u not in fixed}
                    self._send(back, view, keep=True, reason=reason)
                continue
            if moved(stands, wanted[name]):
                self._above.pop(name, None)
                if known is None or now_s - known.sent_s >= EARLIER_S:
                    self._above[name] = _Above(now_s, now_s)
                    above = LimitOrder(wanted[name], keep=False, above=True, reason=reason)
                    self._shared.order(above, self._job_of)
                else:
                    self._above[name] = known
            else:
                self._above[name] = self._measure(name, view, demand, known)

    def _settled(self, seen: _Seen, nodes: Mapping[str, NodeView]) -> bool:
        """Whether the limit that stays has been read back, and its node takes one above it."""
        node, limit = nodes.get(seen.address), seen.limit
        shown = limit.set_w > 0.0 and abs(limit.bound_w - limit.set_w) <= POWER_SLACK_W
        settled = shown and not seen.awaited and seen.shown_s < math.inf
        return node is not None and node.limits_above_kept and settled

    def _measure(self, name: str, view: View, demand: Demand, known: _Above | None) -> _Above:
        """The mean power of a job whose clocks no limit holds lower."""
        shown = [view.gpus[uuid].snapshot for uuid in demand.uuids if uuid in view.gpus]
        counters = [one.energy_j for one in shown if one is not None and one.energy_j is not None]
        energy_j = sum(counters)
        mean_w = round((demand.mean_w or 0.0) / self.ratios.get(name, UNMEASURED_RATIO), 3)
        begun = _Above(view.now_s, view.now_s, mean_w, energy_j)
        if known is None or known.mean_w != mean_w or len(counters) < len(demand.uuids):
            return begun
        if (elapsed_s := view.now_s - known.since_s) < MEASURED_S:
            return known
        if energy_j > known.energy_j:
            self.ratios[name] = (energy_j - known.energy_j) / elapsed_s / mean_w
        return begun

    def _unconfirmed_left_out(self, steps: Mapping[str, float]) -> dict[str, float]:
        """Without GPUs whose last command a reading has yet to show; with those whose last command
        had no answer, since only a later one settles which limit is in force. An order of the same
        limit that has no answer yet stands.
        """
        wanted = {u: limit_w for u, limit_w in steps.items() if not self._gpus[u].awaited}
        pending_w = self._shared.pending_w()
        for uuid, limit_w in self._limits_w.items():
            limit = self._gpus[uuid].limit
            if self._gpus[uuid].shown_s == math.inf and uuid not in pending_w:
                wanted.setdefault(uuid, min(limit_w, limit.bound_w))
        return {u: limit_w for u, limit_w in wanted.items() if pending_w.get(u) != limit_w}

    def _look(self, view: View, *, adopts: bool) -> None:
        """What the nodes show now. Limits that another controller has set are adopted under a
        budget that is enforced, and its own otherwise.
        """
        for uuid, gpu in view.gpus.items():
            default_w, shown = gpu.description.power_limit_default_w, gpu.snapshot
            new = _Seen(_Limit(default_w, 0.0, default_w), gpu.address)
            seen = self._gpus.setdefault(uuid, new)
            seen.address = gpu.address
            if shown is None:
                continue
            read = view.now_s - gpu.age_s > seen.shown_s
            if shown.energy_j is not None and shown.energy_j < seen.energy_j:
                # The driver was loaded again; a person who raises a limit leaves the counter alone.
                seen.external_until_s, seen.reloaded_s, seen.forgotten = -math.inf, view.now_s, True
            if read:
                _read_back(seen, gpu, shown, view.now_s, adopts=adopts)
            if shown.energy_j is not None:
                seen.energy_j = shown.energy_j
            if (shown.utilization_gpu_ratio or 0.0) > UNUSED_BUSY_RATIO:
                seen.busy_s = view.now_s
        connected = {node.address: node.connected for node in view.nodes}
        known = set(connected).union(*(node.claimed for node in view.nodes))  # claimed: moved
        for uuid, seen in list(self._gpus.items()):
            left = known.isdisjoint((seen.address, uuid))
            if uuid in view.gpus or not connected.get(seen.address, True):
                seen.there_s = view.now_s
            elif view.now_s - seen.there_s > (LEFT_S if left else GONE_S):
                del self._gpus[uuid]

    def _limited(
        self,
        policy: Policy,
        view: View,
        held: Mapping[str, Hold],
    ) -> list[LimitedGpu]:
        nodes = {node.address: node for node in view.nodes}
        job_of, caps_w = self._job_of, self._caps_w(policy)
        entries = {job.name: job for job in policy.jobs}
        sums_w = defaultdict[str, float](float)
        for seen in self._gpus.values():
            sums_w[seen.address] += _most_w(seen.limit)
        gpus = []
        self.unused = {
            uuid for uuid, seen in self._gpus.items() if view.now_s - seen.busy_s > IDLE_AFTER_S
        }
        for uuid, seen in self._gpus.items():
            gpu, job, limit = view.gpus.get(uuid), job_of.get(uuid, ""), seen.limit
            part = (policy.node_power_w or math.inf) / max(1.0, sums_w[seen.address])
            board_w = min(1.0, part) * _most_w(limit)
            least_w = min(board_w, gpu.description.power_limit_min_w) if gpu else 0.0
            found_w = min(board_w, limit.found_w)
            entry = entries.get(job)
            found_w = max(least_w, min(found_w, caps_w.get(uuid, found_w)))
            fixed = _unreachable(gpu) or _fixed(gpu, nodes, seen, view)
            fixed = fixed or (f"no controller has job {job}" if self._orphaned(uuid) else "")
            if not fixed and uuid in caps_w and gpu and _held_by_job(gpu, seen):
                # The limit that its lease replaced is not known.
                fixed = f"the fixed power limit of job {job} ends first"
            if not fixed and job in held:
                fixed = held[job].sentence
            if not fixed and job and not (entry and entry.mode == "enforce") and policy.enforces:
                fixed = f"job {job} is in mode {entry.mode if entry else 'off'}"
            gpus.append(
                LimitedGpu(
                    uuid=uuid,
                    least_w=least_w,
                    most_w=found_w,
                    wanted_w=least_w if uuid in self.unused else found_w,
                    in_force_w=min(board_w, limit.bound_w),
                    fixed=fixed,
                    above_w=_above_w(gpu.snapshot) if gpu else 0.0,
                )
            )
        return gpus

    def _caps_w(self, policy: Policy) -> dict[str, float]:
        """The fixed power limits of enforced jobs, by GPU."""
        return {
            uuid: entry.power_limit_w
            for entry in policy.jobs
            if entry.power_limit_w and (demand := self._demands.get(entry.name))
            if demand.mode == "enforce"
            for uuid in demand.uuids
        }

    def _orphaned(self, uuid: str) -> bool:
        """Whether no controller is there to set the limit."""
        return self._shared.orphaned(self._job_of.get(uuid, NO_JOB))

    # -- commands --------------------------------------------------------------------------

    def _send(self, limits_w: Mapping[str, float], view: View, *, keep: bool, reason: str) -> None:
        """One step. What may be in force afterwards is in the store before it is ordered."""
        for uuid, limit_w in limits_w.items():
            seen = self._gpus[uuid]
            bound_w = max(seen.limit.bound_w, limit_w)
            seen.limit = replace(seen.limit, set_w=limit_w, bound_w=bound_w)
            seen.shown_s, seen.awaited = math.inf, False
        self._keep(view)
        self._shared.order(LimitOrder(limits_w, keep, above=False, reason=reason), self._job_of)

    async def set_limits(
        self, order: LimitOrder, gpus: Mapping[str, GpuView], generation: int, ttl_s: float
    ) -> LimitOutcome:
        """Carries out an order, of this controller's leader or its own."""
        limits_w = {uuid: w for uuid, w in order.limits_w.items() if uuid in gpus}
        outcome = await self._leases.limit_power(
            {Place(gpus[uuid].address, uuid): w for uuid, w in limits_w.items()},
            generation=generation,
            ttl_s=ttl_s,
            keep=order.keep,
            above=order.above,
            reason=order.reason,
        )
        text = f"{len(outcome.taken)} of {len(limits_w)} power limits set"
        text += " as long as clocks are held" if order.above else ""
        text += f", {sum(limits_w.values()):.6g} W: {order.reason}"
        if troubles := {**outcome.refused, **outcome.unanswered}:
            text += f"; {next(iter(troubles.values()))}"
        if outcome.taken or (limits_w and text not in self._logged):
            self._audit.post("apply", "", text, generation=generation, limits_w=limits_w)
        if outcome.taken:
            self._logged.clear()
        else:
            self._logged.append(text)
        return outcome

    def take_answers(self) -> None:
        """Takes in answered orders, and orders that an earlier leader left without an answer."""
        for order, outcome in self._shared.answers():
            if not order.above:
                known = [uuid for uuid in order.limits_w if uuid in self._gpus]
                self._answered(outcome, known, keep=order.keep)
        for uuid in self._shared.unsettled & self._gpus.keys():
            self._gpus[uuid].shown_s, self._gpus[uuid].awaited = math.inf, False
        self._shared.unsettled.clear()

    def _answered(self, outcome: LimitOutcome, uuids: Iterable[str], *, keep: bool) -> None:
        """A reading from some time after the answer shows the limit that is in force."""
        shown_s = self._now_s() + SHOWN_S
        for uuid in uuids:
            seen = self._gpus[uuid]
            if uuid in outcome.taken:
                seen.shown_s, seen.awaited, seen.refused = shown_s, True, ""
                if not keep:
                    seen.limit = replace(seen.limit, set_w=0.0)
            elif uuid in outcome.refused:
                seen.shown_s, seen.refused = shown_s, outcome.refused[uuid]
            else:
                seen.refused = outcome.unanswered.get(uuid, "")

    def _give_back(self, policy: Policy, view: View, why: str) -> None:
        """The limits that were set go back to those found before, on a ramp."""
        others = {node.address for node in view.nodes if node.other_term}
        caps_w = self._caps_w(policy)
        ours = [
            LimitedGpu(u, 0.0, back_w, back_w, s.limit.bound_w)
            for u, s in self._gpus.items()
            for back_w in (min(s.limit.found_w, caps_w.get(u, math.inf)),)
            if s.limit.set_w
            and not _unreachable(view.gpus.get(u))
            and not self._orphaned(u)
            and s.address not in others
        ]
        self.shown = None
        if policy.power_budget_w is not None:
            self.shown = self._giving_back(policy.power_budget_w, why)
        self._keep(view)  # what others have given back
        if not ours:
            self._ramp = None
            if policy.power_budget_w is None and not any(
                s.limit.set_w for s in self._gpus.values()
            ):
                self._gpus.clear()
            return
        gap_w = sum(max(0.0, gpu.most_w - gpu.in_force_w) for gpu in ours)
        began_s, gap_w = self._ramp or (view.now_s, gap_w)
        self._ramp = (began_s, gap_w)
        steps, left_w = next_raises(ours, gap_w, view.now_s - began_s)
        if steps and not self._leases.lost:
            self._send(steps, view, keep=False, reason=why)
        self.shown = self._giving_back(
            policy.power_budget_w,
            f"{why}: the power limits of {len(ours)} GPUs go back, {left_w:.6g} W within "
            f"{RAMP_S:g} s",
        )

    def _giving_back(self, budget_w: float | None, text: str) -> PowerLimits:
        in_force_w = sum(seen.limit.bound_w for seen in self._gpus.values())
        return PowerLimits(budget_w, in_force_w, state="lifted", text=text)

    def _keep(self, view: View) -> None:
        """Writes the records that changed. Raises Unavailable."""
        by_address: dict[str, dict[str, object]] = {node.address: {} for node in view.nodes}
        for uuid, seen in sorted(self._gpus.items()):
            if seen.limit.set_w:
                by_address.setdefault(seen.address, {})[uuid] = asdict(seen.limit)
        told = {address: json.dumps(limits) for address, limits in by_address.items()}
        news = {one: text for one, text in told.items() if text != self._kept.get(one, "{}")}
        if news:
            at_unix_s = self._unix_s()
            records = (Record(at_unix_s, TOPIC, *one) for one in news.items())
            self._store.keep_record(*records, per_job=1)
            self._kept |= news

    # -- the board -------------------------------------------------------------------------

    def _show(
        self,
        policy: Policy,
        view: View,
        gpus: list[LimitedGpu],
        found: Allocation,
        *,
        enforced: bool,
    ) -> None:
        sum_w = sum(gpu.in_force_w for gpu in gpus)
        reasons = [found.complaint] if found.complaint else []
        reasons += [
            f"{_place(view, gpu.uuid)}: {gpu.fixed}"
            for gpu in gpus
            if gpu.fixed and not self._gpus[gpu.uuid].limit.set_w
        ]
        reasons += [
            f"agent {node.address} was never reached"
            for node in view.nodes
            if not node.node and node.address not in {s.address for s in self._gpus.values()}
        ]
        best_effort = "; ".join(reasons[:REASONS_SHOWN])
        if len(reasons) > REASONS_SHOWN:
            best_effort += f"; and {len(reasons) - REASONS_SHOWN} more"
        within = sum_w <= found.capacity_w + POWER_SLACK_W
        text = (
            f"power limits of {len(found.limits_w)} of {len(gpus)} GPUs "
            f"{'are' if enforced else 'would be'} set to {sum(self._limits_w.values()):.6g} W "
            f"together; {sum_w:.6g} W of {found.capacity_w:.6g} W may be in force"
        )
        late_s = view.now_s + EXTERNAL_S - EARLIER_S  # by then a reload has shown itself
        raised = [
            one for one in gpus if view.now_s < self._gpus[one.uuid].external_until_s < late_s
        ]
        text += "".join(
            f"; {_place(view, gpu.uuid)}: {gpu.fixed}" for gpu in raised[:REASONS_SHOWN]
        )
        self.shown = PowerLimits(
            budget_w=policy.power_budget_w,
            in_force_w=sum_w,
            capacity_w=found.capacity_w,
            least_w=found.least_w + policy.cost.host_power_w * len(gpus),
            limits_w=dict(self._limits_w),
            state="recommended" if not enforced else "kept" if within else "lowering",
            best_effort=best_effort,
            text=text,
        )


def _held_by_job(gpu: GpuView, seen: _Seen) -> bool:
    """Whether a fixed limit of a job is in force, which ends with its lease."""
    shown = gpu.snapshot
    lease = shown.lease if shown else None
    if shown is None or lease is None or lease.job == BUDGET_JOB:
        return False
    return bool(lease.power_limit_w and not shown.power_limit_kept_w and not seen.limit.set_w)


def _most_w(limit: _Limit) -> float:
    """What a GPU can count with; a node's share of `node_power_w` goes by it."""
    return min(BOARD_W_MAX, max(limit.found_w, limit.bound_w))


def _above_w(shown: GpuSnapshot | None) -> float:
    """The limit of a lease that stands above the one that stays; 0: none."""
    limit_w = shown.lease.power_limit_w if shown is not None and shown.lease else None
    stays_w = shown.power_limit_kept_w if shown is not None else 0.0
    return limit_w if stays_w and limit_w and limit_w > stays_w + POWER_SLACK_W else 0.0


def _read_back(
    seen: _Seen, gpu: GpuView, shown: GpuSnapshot, now_s: float, *, adopts: bool
) -> None:
    """A reading that is newer than the last command."""
    limit, now_w, kept_w = seen.limit, shown.power_limit_enforced_w, shown.power_limit_kept_w
    if now_w is None:
        return
    if (above_w := _above_w(shown)) and abs(now_w - above_w) <= POWER_SLACK_W:
        now_w = kept_w
    seen.awaited = False
    if _held_by_job(gpu, seen):  # the limit that its lease replaced is not shown
        seen.limit = replace(limit, bound_w=now_w)
    elif not limit.set_w and adopts and kept_w:  # of a controller with another store
        seen.limit = _Limit(gpu.description.power_limit_default_w, kept_w, now_w)
    elif not limit.set_w:
        seen.limit = _Limit(now_w, 0.0, now_w)
    elif abs(kept_w - now_w) <= POWER_SLACK_W:  # a refused command changed nothing
        seen.forgotten = seen.forgotten and now_s - seen.reloaded_s <= SHOWN_S
        seen.limit = _Limit(limit.found_w, now_w, now_w)
    else:
        raised = max(limit.set_w, limit.bound_w) < now_w - POWER_SLACK_W and kept_w
        if raised and not seen.forgotten and seen.external_until_s <= now_s:
            seen.external_until_s = now_s + EXTERNAL_S
        seen.limit = replace(limit, bound_w=now_w)


def _over(policy: Policy, hold: Hold | None) -> str:
    """Why no limit is to stay; empty while the budget holds."""
    if policy.power_budget_w is None:
        return "the policy has no power budget"
    if hold is not None and hold.kind == "restore":
        return hold.sentence
    return "" if policy.enforces else "no job of the policy is in mode enforce"


def _unreachable(gpu: GpuView | None) -> str:
    return "its agent cannot be reached" if gpu is None or gpu.snapshot is None else ""


def _fixed(gpu: GpuView | None, nodes: Mapping[str, NodeView], seen: _Seen, view: View) -> str:
    """Why the limit of a reachable GPU cannot be set; empty where it can."""
    assert gpu is not None
    node, about, shown = nodes[gpu.address], gpu.description, gpu.snapshot
    if not node.keeps_power_limits:
        return "its keeper keeps no power limits: power.keep_hours of its configuration"
    if not about.power_controllable or not about.power_limit_max_w:
        return f"its power limit cannot be set: {about.reason or 'the card has none'}"
    if shown is not None and shown.power_limit_enforced_w is None:
        return "the card does not show its power limit"
    if seen.external_until_s > view.now_s:
        return f"another writer has set its power limit to {seen.limit.bound_w:.6g} W"
    lowered = seen.limit.set_w and seen.limit.bound_w < seen.limit.set_w - POWER_SLACK_W
    if lowered:
        return f"another writer has lowered its power limit to {seen.limit.bound_w:.6g} W"
    return node.hindrance or gpu.hindrance


def _place(view: View, uuid: str) -> str:
    gpu = view.gpus.get(uuid)
    return gpu.place if gpu else f"GPU {uuid}"


def _read(content: str) -> dict[str, _Limit]:
    """The limits of one agent; what cannot be read counts as never set."""
    try:
        return {
            uuid: _Limit(*(float(one[key]) for key in ("found_w", "set_w", "bound_w")))
            for uuid, one in json.loads(content, parse_int=float).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
