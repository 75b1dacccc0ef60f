"""The judge of a walk: reads the log of the fake driver, and says which promises were broken.

A process of its own, on the standard library alone: it shares no code with the product. Of the
product it knows the published contract (ttl, site default, bounds) and the terms of
`docs/safety.md`.

    python tests/walks/checker.py LOG CONTRACT

`LOG` has one JSON object a line, with `at_s` of the monotonic clock: every setter call that the
driver saw, what the driver forgot, what befell driver and processes, and every lease that a
command was promised. One line of JSON for each violation; exit status 1 where there is one.

The bound: a GPU is back at its default within `ttl + 2 s` of the last renewal. Trouble that began
before that moves the bound by its own term, for the GPUs that it concerns and for no other.
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GRACE_S = 2.0  # of the published bound
STEP_S = 1.7  # a lowered step: its stretch in a walk, and a second without its agent
RETRY_S = 4.0  # after trouble of its own GPU has ended, besides as long again as it lasted
RETRY_S_MAX = 60.0
FAILING = {"hang", "slow", "error", "lost", "unloaded", "whole_driver", "permission"}
WRITER_S = 4.5  # a writer process is lost: the deadline of its call, and the retry after it
KEEPER_S_MAX = 40.0  # a keeper that has ended is back after that
CONVERGE_S = 15.0  # a write that is late, or a reset that did nothing: seen in readings, and reset
RACE_S = 0.3  # between what a keeper reads and what it writes
# A process that is started without descriptors ends in the interpreter, before any line of ours.
TRACEBACK = re.compile(r'Traceback \(most recent call last\):\n(?!  File "<frozen getpath>")')
SLACK_MW = 1000  # limits are whole watts on some boards
LOCK, RESET = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"
LIMIT = "nvmlDeviceSetPowerManagementLimit"
EVERY_GPU = -1
Clocks = tuple[int, int]


@dataclass(frozen=True)
class Contract:
    """What the site has configured. `ramp_s`: the published time of its restores, beside grace.

    `safe_mw`: the power limit after a lease; 0: the one found, -1: kept. `others`: pids of other
    writers. `bystanders`: GPUs that no command has named.
    """

    gpus: int
    ttl_s: float
    clock_mhz: Clocks
    clock_lowest_mhz: int
    power_mw: Clocks
    default_mw: int
    site_default: Clocks | None = None
    safe_mw: int = 0
    ramp_s: float = 0.0
    others: tuple[int, ...] = ()
    bystanders: tuple[int, ...] = ()
    step_mhz: tuple[int, ...] = ()  # clocks of timed steps alone
    capped_mhz: Mapping[str, int] = field(default_factory=dict)  # clock by power limit in watts

    @staticmethod
    def of(given: Mapping[str, Any]) -> "Contract":
        pairs = ("clock_mhz", "power_mw", "site_default", "others", "bystanders", "step_mhz")
        return Contract(**{k: tuple(v) if k in pairs and v else v for k, v in given.items()})


@dataclass(frozen=True)
class Interval:
    """Trouble from `begin_s` on; the GPU is free by `free_s`, if nothing else befalls it."""

    begin_s: float
    free_s: float


@dataclass
class Gpu:
    """What is set on one GPU, and by whom."""

    limit_mw: int
    found_mw: int  # the limit that a restore brings back
    kept_mw: list[int] = field(default_factory=list)  # limits that may stay: of unknown writer
    lock: Clocks | None = None
    lock_is_ours: bool = False
    limit_is_ours: bool = False
    set_s: float = -math.inf  # our newest write that limits it
    late: bool = False  # the driver carried it out after its caller had given up
    lock_is_late: bool = False
    limited_s: float = -math.inf  # another writer's newest limit
    mig_s: float = math.inf  # since when
    reported: bool = False
    lowered_s: float = math.inf  # since when a timed step holds it below its lease's clock


@dataclass
class Checker:
    contract: Contract
    violations: list[dict[str, Any]] = field(default_factory=list)

    def judge(self, events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        ordered = sorted(events, key=lambda event: float(event["at_s"]))
        made = range(self.contract.gpus)
        default_mw = self.contract.default_mw
        self._gpus = [Gpu(default_mw, default_mw) for _ in made]
        self._commands: dict[int, str] = {}
        self._damaged, self._damaged_s = False, -math.inf
        self._asked_s: dict[tuple[int, int, int], float] = {}  # by GPU, pid and limit; late ones
        self._gone_s = -math.inf  # a keeper ended, or let the driver go
        self._collect(ordered)
        for event in ordered:
            at_s = float(event["at_s"])
            for index in made:
                self._check_held(index, at_s)
            self._take(event, at_s)
        if not ordered or "found" not in ordered[-1]:
            self._report(math.nan, "the log has no end", -1)
        return self.violations

    # -- what is known before the walk is judged ------------------------------------------------

    def _collect(self, ordered: list[Mapping[str, Any]]) -> None:
        """Leases, trouble and stalls as intervals, by GPU."""
        self._leases: list[list[Interval]] = [[] for _ in self._gpus]
        self._troubles: list[list[Interval]] = [[] for _ in self._gpus]
        self._stalls: list[tuple[float, float]] = []
        begun: dict[int, Mapping[str, Any]] = {}
        ended: list[tuple[Mapping[str, Any], float]] = []
        down_s: float | None = None
        self._epochs: list[tuple[float, int]] = []  # (answered, epoch) of what was accepted
        for event in ordered:
            at_s = float(event["at_s"])
            if "trouble" in event:
                begun[event["trouble"]] = event
            elif "over" in event and event["over"] in begun:
                ended.append((begun.pop(event["over"]), at_s))
            elif event.get("keeper") == "down":
                down_s = at_s if down_s is None else down_s
            elif event.get("keeper") == "up" and down_s is not None:
                self._add_down(down_s, at_s)
                down_s = None
            else:
                self._collect_one(event, at_s)
        self._add_troubles(ended)
        for event in begun.values():
            self._add(event.get("gpu", EVERY_GPU), Interval(float(event["at_s"]), math.inf))
        if down_s is not None:
            self._add_down(down_s, math.inf)

    def _collect_one(self, event: Mapping[str, Any], at_s: float) -> None:
        if lease := event.get("lease"):
            self._leases[lease["gpu"]].append(Interval(lease["asked_s"], lease["until_s"]))
            self._check_epoch(lease, at_s)
        elif "contact" in event:  # of a controller, which may have renewed everything
            for leases in self._leases:
                leases.append(Interval(at_s, at_s + self.contract.ttl_s))
        elif event.get("writer") == "lost":
            self._add(EVERY_GPU, Interval(at_s, at_s + WRITER_S))
        elif "stall_s" in event:
            self._stalls.append((at_s - event["stall_s"], at_s))
        elif event.get("epochs") == "forgotten":
            self._epochs.clear()
        elif (write := event.get("write")) and not write["done"] and not write["code"]:
            self._add(write["gpu"], Interval(at_s, at_s + CONVERGE_S))

    def _add_troubles(self, ended: list[tuple[Mapping[str, Any], float]]) -> None:
        """Calls of a GPU that fail without a break, for several reasons, are one fault of it."""
        for index, troubles in enumerate(self._troubles):
            since_s = failing_s = -math.inf
            for event, over_s in sorted(ended, key=lambda one: float(one[0]["at_s"])):
                if event.get("gpu", EVERY_GPU) not in {EVERY_GPU, index}:
                    continue
                begin_s = float(event["at_s"])
                lasted_s = over_s - begin_s
                if event.get("kind") in FAILING:
                    since_s = since_s if begin_s <= failing_s else begin_s
                    failing_s = max(failing_s, over_s)
                    lasted_s = over_s - since_s
                free_s = over_s + min(lasted_s, RETRY_S_MAX) + RETRY_S
                troubles.append(Interval(begin_s, free_s))

    def _add_down(self, down_s: float, up_s: float) -> None:
        if up_s - down_s > KEEPER_S_MAX + self._stalled_s(down_s, up_s):
            self._report(down_s + KEEPER_S_MAX, "the keeper did not come back", -1)
        self._add(EVERY_GPU, Interval(down_s, up_s))

    def _add(self, gpu: int, interval: Interval) -> None:
        for index in range(len(self._gpus)) if gpu == EVERY_GPU else (gpu,):
            self._troubles[index].append(interval)

    def _check_epoch(self, lease: Mapping[str, Any], at_s: float) -> None:
        """Once an epoch was accepted, no older one is."""
        if not lease["accepted"]:
            return
        epoch, asked_s = lease["epoch"], lease["asked_s"]
        before = (known for answered_s, known in self._epochs if answered_s < asked_s)
        newest = max(before, default=0)
        if epoch < newest:
            self._report(at_s, f"epoch {epoch} was accepted after {newest}", lease["gpu"])
        self._epochs.append((at_s, epoch))

    # -- the bound --------------------------------------------------------------------------------

    def _check_held(self, index: int, now_s: float) -> None:
        gpu = self._gpus[index]
        if now_s > (bound_s := self._step_bound_s(index)):
            gpu.lowered_s = math.inf
            self._report(bound_s, "a timed step was not raised in time", index, str(gpu.lock))
        if gpu.reported or not self._is_held(gpu):
            return
        bound_s = self._bound_s(index)
        if now_s > bound_s:
            gpu.reported = True
            what = f"lock {gpu.lock}" if gpu.lock_is_ours else f"limit {gpu.limit_mw} mW"
            self._report(bound_s, "not restored in time", index, f"{what} set at {gpu.set_s:.3f}")

    def _is_held(self, gpu: Gpu) -> bool:
        return (self._is_locked(gpu) and not self._is_hidden(gpu)) or self._is_limited(gpu)

    def _is_hidden(self, gpu: Gpu) -> bool:
        """Whether no reading shows a late lock: the power limit keeps the clock at or below it."""
        capped_mhz = self.contract.capped_mhz.get(str(gpu.limit_mw // 1000), math.inf)
        return gpu.lock_is_late and gpu.lock is not None and gpu.lock[1] >= capped_mhz

    def _is_locked(self, gpu: Gpu) -> bool:
        return gpu.lock_is_ours and gpu.lock not in {None, self.contract.site_default}

    def _is_limited(self, gpu: Gpu) -> bool:
        safe_mw = self.contract.safe_mw
        allowed_mw = (gpu.found_mw, safe_mw, *gpu.kept_mw)
        free = any(abs(gpu.limit_mw - mw) <= SLACK_MW for mw in allowed_mw)
        return gpu.limit_is_ours and safe_mw >= 0 and not free

    def _bound_s(self, index: int) -> float:
        """When this GPU is at its default at the latest."""
        gpu = self._gpus[index]
        free_s = gpu.set_s + (CONVERGE_S if gpu.late else self.contract.ttl_s)
        known = [*self._leases[index], *self._troubles[index]]
        moved = True
        while moved:
            reach_s = free_s + GRACE_S
            later_s = [
                one.free_s for one in known if one.begin_s <= reach_s and one.free_s > free_s
            ]
            moved = bool(later_s)
            free_s = max([free_s, *later_s])
        bound_s = free_s + GRACE_S + self.contract.ramp_s
        return bound_s + self._stalled_s(gpu.set_s, bound_s)

    def _step_bound_s(self, index: int) -> float:
        """When a timed step is raised at the latest, whatever is renewed."""
        lowered_s = self._gpus[index].lowered_s
        if lowered_s == math.inf:
            return math.inf
        bound_s = lowered_s + STEP_S + GRACE_S
        for one in sorted(self._troubles[index], key=lambda one: one.begin_s):
            if (
                lowered_s - GRACE_S <= one.begin_s <= bound_s
                or one.begin_s <= lowered_s < one.free_s
            ):
                bound_s = max(bound_s, one.free_s + STEP_S + GRACE_S)
        return bound_s + self._stalled_s(lowered_s, bound_s)

    def _stalled_s(self, begin_s: float, end_s: float) -> float:
        """How long the machine stood still in between."""
        found = [min(end_s, to_s) - max(begin_s, from_s) for from_s, to_s in self._stalls]
        return sum(s for s in found if s > 0.0)

    # -- the log, event by event --------------------------------------------------------------

    def _take(self, event: Mapping[str, Any], at_s: float) -> None:
        if write := event.get("write"):
            self._write(write, at_s)
        elif "forgot" in event:
            for index, gpu in enumerate(self._gpus):
                if event["forgot"] in {EVERY_GPU, index}:
                    self._forget(gpu)
        elif "mig" in event:
            self._gpus[event["gpu"]].mig_s = at_s if event["mig"] else math.inf
        elif event.get("keeper") in {"down", "released"}:
            self._gone_s = at_s
        elif event.get("journal") == "damaged":
            self._damaged, self._damaged_s = True, at_s
            for gpu in self._gpus:  # the file alone knew whose limit is set: it may stay
                gpu.kept_mw.append(gpu.limit_mw)
        elif found := event.get("found"):
            self._check_end(found, at_s)

    def _forget(self, gpu: Gpu) -> None:
        gpu.lock, gpu.lock_is_ours, gpu.limit_is_ours = None, False, False
        gpu.lowered_s = math.inf
        gpu.limit_mw = gpu.found_mw = self.contract.default_mw
        gpu.reported = False
        gpu.kept_mw.clear()

    def _write(self, write: Mapping[str, Any], at_s: float) -> None:
        gpu, pid = self._gpus[write["gpu"]], write["pid"]
        ours = pid not in self.contract.others
        late = write["done"] and not write["command"] and ours
        if ours:
            command = write["command"] or self._commands.get(pid, "")
            self._commands[pid] = command
            if not {"keeper", "restore"} & set(command.split()):
                self._report(at_s, f"pid {pid} writes: {command!r}", write["gpu"], str(write))
            self._judge_write(gpu, write, at_s, late)
        if write["done"]:
            self._follow(gpu, write, at_s, ours, late)
        elif write["function"] == LIMIT:
            self._asked_s[write["gpu"], pid, write["arguments"][0]] = at_s

    def _judge_write(self, gpu: Gpu, write: Mapping[str, Any], at_s: float, late: bool) -> None:
        function, (first, second) = write["function"], write["arguments"]
        contract, index = self.contract, write["gpu"]
        lock = (first, second) if function == LOCK else None
        returns = function == RESET or lock == contract.site_default
        safe = function == LIMIT and first in {gpu.found_mw, contract.safe_mw, *gpu.kept_mw}
        if function not in {LOCK, RESET, LIMIT}:
            self._report(at_s, f"{function} is none of the keeper's", index)
        if lock and not returns:
            named = lock if first != contract.clock_lowest_mhz else (second,)
            if not all(_within(clock_mhz, contract.clock_mhz) for clock_mhz in named):
                self._report(at_s, f"lock {lock} is out of bounds", index)
        if function == LIMIT and not safe and not _within(first, contract.power_mw):
            self._report(at_s, f"limit {first} mW is out of bounds", index)
        if late or returns or safe:
            pass
        elif write["begun_s"] > gpu.mig_s + RACE_S:  # it may hang until later
            self._report(at_s, "written in MIG mode", index, str(write))
        if index in contract.bystanders and not (self._damaged and (returns or safe)):
            self._report(at_s, "a GPU that no command has named was written", index, str(write))
        if function == LIMIT and not late:
            self._judge_raise(gpu, write, at_s)

    def _judge_raise(self, gpu: Gpu, write: Mapping[str, Any], at_s: float) -> None:
        """What another writer has set lower stays; a call that hung meanwhile could not know."""
        asked_mw = write["arguments"][0]
        if gpu.limited_s >= write["begun_s"] - RACE_S:
            gpu.kept_mw.append(asked_mw)
            return
        theirs_mw = gpu.found_mw if gpu.limit_is_ours else gpu.limit_mw
        highest_mw = max(theirs_mw, *gpu.kept_mw, 0)
        if asked_mw > highest_mw + SLACK_MW:
            text = f"the limit was raised to {asked_mw} mW above another writer's {highest_mw} mW"
            self._report(at_s, text, write["gpu"])

    def _follow(
        self, gpu: Gpu, write: Mapping[str, Any], at_s: float, ours: bool, late: bool
    ) -> None:
        """What is set now."""
        function, (first, second) = write["function"], write["arguments"]
        if function == LIMIT:
            if ours and not gpu.limit_is_ours:
                gpu.found_mw = gpu.limit_mw
            gpu.limit_mw, gpu.limit_is_ours = first, ours
            if gpu.lock_is_late:  # it may show from now on
                gpu.set_s, gpu.late = at_s, True
            hung = late or write["begun_s"] <= self._damaged_s
            asked_s = self._asked_s.get((write["gpu"], write["pid"], first), math.inf)
            lost = ours and self._damaged and hung  # asked for when the journal was lost
            if lost or (late and asked_s <= self._gone_s):  # or its keeper was
                gpu.kept_mw.append(first)
            if not ours:
                gpu.found_mw, gpu.limited_s = first, at_s
                # A keeper that lost its journal took one of these for the limit found. It may set
                # it again after another writer has raised the limit: that raises nothing.
                gpu.kept_mw = [kept_mw for kept_mw in gpu.kept_mw if kept_mw < first]
        elif function in {LOCK, RESET}:
            gpu.lock = (first, second) if function == LOCK else None
            gpu.lock_is_ours = ours and gpu.lock is not None
            gpu.lock_is_late = late
            lowered = gpu.lock_is_ours and second in self.contract.step_mhz
            gpu.lowered_s = at_s if lowered else math.inf
        limits = self._is_locked(gpu) if function != LIMIT else self._is_limited(gpu)
        if ours and limits:
            gpu.set_s, gpu.late = at_s, late
        if not self._is_held(gpu):
            gpu.reported = False

    def _check_end(self, found: Mapping[str, Any], at_s: float) -> None:
        """All that is left is another writer's; and the log agrees with the driver."""
        for index, gpu in enumerate(self._gpus):
            lock = tuple(found["locks"][index]) if found["locks"][index] else None
            if lock != gpu.lock or found["limits_mw"][index] != gpu.limit_mw:
                shown = f"{lock} {found['limits_mw'][index]}, log {gpu.lock} {gpu.limit_mw}"
                self._report(at_s, f"the log and the driver disagree: driver {shown}", index)
            if self._is_held(gpu) and at_s > self._bound_s(index):
                self._report(at_s, "not at its default at the end", index, str(gpu))

    def _report(self, at_s: float, what: str, gpu: int, detail: str = "") -> None:
        self.violations.append({"at_s": round(at_s, 3), "what": what, "gpu": gpu, "detail": detail})


def _within(value: int, bounds: Clocks) -> bool:
    return bounds[0] <= value <= bounds[1]


def main(argv: list[str]) -> int:
    log, contract = Path(argv[0]), Path(argv[1])
    with log.open() as lines:
        events = [json.loads(line) for line in lines]
    violations = Checker(Contract.of(json.loads(contract.read_text()))).judge(events)
    for violation in violations:
        print(json.dumps(violation))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
