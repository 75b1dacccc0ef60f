"""What several questions of a self-test observe in its evidence. Pure."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from joulecut_agent.keeper.evidence import BUSY_RATIO, CLOCK_SLACK_MHZ
from joulecut_agent.selftest.evidence import Change, Evidence, Sample
from joulecut_wire.assumed import COUNTER_STEP_S
from joulecut_wire.card_facts import Scope

# The public B300 was mostly within 2.2 % of integrated power.
COUNTER_RATIO = 0.1
EDGES_MIN = 3
SETTLED_S = 1.0  # after a lock or the start of a load
SAMPLES_MIN = 5
CAPS = {"sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"}


def latencies_s(seen: Evidence) -> list[float]:
    """Of every lock that was seen; resets have a rule of their own."""
    return [one.seen_s for one in seen.changes if one.seen_s is not None and one.to_mhz]


def quantile(values: Sequence[float], share: float) -> float:
    """0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _edges(seen: Evidence) -> list[Sample]:
    """The samples at which the counter had moved."""
    return [
        b
        for a, b in pairwise(seen.samples)
        if a.energy_j is not None and b.energy_j is not None and b.energy_j > a.energy_j
    ]


def step_s(seen: Evidence) -> float | None:
    """Median time between two moves of the counter while it was looked at without a pause."""
    gaps_s = [b.at_s - a.at_s for a, b in pairwise(seen.samples)]
    if not gaps_s:
        return None
    close_s = max(2.0 * median(gaps_s), 0.5 * COUNTER_STEP_S)
    steps_s, since_s = list[float](), None
    for a, b in pairwise(seen.samples):
        if b.at_s - a.at_s > close_s or a.energy_j is None or b.energy_j is None:
            since_s = None
        elif b.energy_j > a.energy_j:
            if since_s is not None:
                steps_s.append(b.at_s - since_s)
            since_s = b.at_s
    return median(steps_s) if len(steps_s) >= EDGES_MIN - 1 else None


def scope_of(seen: Evidence) -> tuple[Scope, str]:
    """What the counter counts, by integrated power between two of its moves."""
    edges = _edges(seen)
    if len(edges) < EDGES_MIN:
        return "", "too few steps were seen"
    first, last = edges[0], edges[-1]
    span = [one for one in seen.samples if first.at_s <= one.at_s <= last.at_s]
    span_s = last.at_s - first.at_s
    counted_w = ((last.energy_j or 0.0) - (first.energy_j or 0.0)) / span_s
    gpu_w = _mean_w(span, lambda one: one.power_w)
    module_w = _mean_w(span, lambda one: one.module_w)
    if gpu_w is None:
        return "", "no power to compare with"
    found = f"counter {counted_w:.1f} W, integrated {gpu_w:.1f} W"
    # A step more or less at either end.
    slack_w = COUNTER_RATIO * gpu_w + gpu_w * 2.0 * (step_s(seen) or 0.0) / span_s
    if abs(counted_w - gpu_w) <= slack_w:
        return "gpu", found
    if module_w is not None and abs(counted_w - module_w) <= COUNTER_RATIO * module_w:
        return "module", f"{found}, module {module_w:.1f} W"
    return "other", found


def _mean_w(span: Sequence[Sample], of: Callable[[Sample], float | None]) -> float | None:
    """Mean over time; None where a sample lacks it."""
    joules = 0.0
    for a, b in pairwise(span):
        before_w, after_w = of(a), of(b)
        if before_w is None or after_w is None:
            return None
        joules += 0.5 * (before_w + after_w) * (b.at_s - a.at_s)
    return joules / (span[-1].at_s - span[0].at_s) if len(span) > 1 else None


def holes_mhz(seen: Evidence) -> list[int]:
    """Clocks that were not reached though a higher one was."""
    reached = [mhz for mhz, one in seen.grid.items() if one.seen_s is not None]
    highest = max(reached, default=0)
    return [
        mhz
        for mhz, one in seen.grid.items()
        if one.seen_s is None and mhz < highest and not is_capped(one)
    ]


def is_steady(one: Sample, seen: Evidence) -> bool:
    """Busy, and long after our last lock or reset and the start of the load."""
    busy = (one.busy_ratio or 0.0) >= BUSY_RATIO and one.phase != "load starts"
    return busy and one.at_s - one.lock_s >= SETTLED_S and bool(seen.clocks_mhz)


def wanted_mhz(one: Sample, seen: Evidence) -> int:
    return one.lock[1] if one.lock is not None else seen.clocks_mhz[-1]


def is_explained(one: Sample) -> bool:
    """Application clocks, display or another reason than idle."""
    return bool({*one.reasons} - {"idle"})


def capped_mhz(seen: Evidence) -> int:
    """The clock that the power limit held under load at default clocks; 0 without a cap."""
    held = [
        one.clock_mhz
        for one in seen.samples
        if is_steady(one, seen) and "sw_power_cap" in one.reasons and one.clock_mhz
    ]
    return int(median(held)) if len(held) >= SAMPLES_MIN else 0


def is_capped(one: Change) -> bool:
    """Whether a limit explains a clock below the wanted one; none explains a higher clock."""
    return one.clock_mhz < one.to_mhz and bool(CAPS & {*one.reasons})


def is_at_lock(one: Sample) -> bool:
    return one.lock is not None and abs((one.clock_mhz or 0) - one.lock[1]) <= CLOCK_SLACK_MHZ


def was_locked(reset: Change, seen: Evidence) -> bool:
    """Whether the clock before a reset was one that we had asked for and seen."""
    asked = {one.to_mhz for one in seen.changes if one.seen_s is not None and one.to_mhz}
    return any(abs(reset.from_mhz - mhz) <= CLOCK_SLACK_MHZ for mhz in asked)
