"""Evidence of one card against what the code assumes: findings, and the facts that replace them.

Pure. A finding is wrong where two readings contradict each other or a write, or where the measured
value is outside of what the code assumes. What a card is known to do (a power cap, a counter of its
whole module) is a note. What was not measured is not answered, and never passes.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from joulecut_agent.keeper.evidence import BUSY_RATIO, CLOCK_SLACK_MHZ
from joulecut_cli.selftest.evidence import Change, Evidence, Sample
from joulecut_wire.assumed import COUNTER_STEP_S, SET_LATENCY_S
from joulecut_wire.card_facts import CardFacts, Scope

OK, WRONG, NOTE, UNANSWERED = "ok", "wrong", "note", "not answered"
# The public B300 was mostly within 2.2 % of integrated power.
COUNTER_RATIO = 0.1
STEP_SLACK = 1.5  # of the assumed step: two readings enclose an edge
EDGES_MIN = 3
SWING_W, SWING_RATIO = 10.0, 0.1  # a move of the average that shows whether another reading leads
LEAD_RATIO = 0.3  # of the move: an average over 1 s lags by more than half of it
WINDOW_S = 1.0
SETTLED_S = 1.0  # after a lock or the start of a load
SHARE = 0.8  # of the samples, before an observation is the rule
SAMPLES_MIN = 5
BELOW_RATIO = 0.93  # boost loses up to 5 % to temperature without a reason
GAP_STEPS = 1.6  # lists alternate between 7 and 8 MHz
EXPIRY_SLACK_S = 2.0  # S18
IDLE_COST_W, IDLE_COST_RATIO = 5.0, 0.05
LOSS_MIN = 2  # one clock that leaves its lock is a late reading
CAPS = {"sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One assumption: its verdict, what was measured, what is assumed, and what follows."""

    name: str
    verdict: str
    measured: str
    assumed: str
    follows: str = ""


def findings(seen: Evidence) -> tuple[Finding, ...]:
    return tuple(question(seen) for question in QUESTIONS)


def facts(seen: Evidence, now_unix_s: float) -> CardFacts:
    """What replaces the assumptions, for this card under this driver."""
    known = latencies_s(seen)
    return CardFacts(
        uuid=seen.first.uuid,
        driver=seen.first.driver,
        vbios=seen.first.vbios,
        model=seen.model,
        measured_unix_s=now_unix_s,
        set_latency_p5_s=quantile(known, 0.05),
        set_latency_p95_s=quantile(known, 0.95),
        set_latency_max_s=min(60.0, max(known, default=0.0)),
        counter_scope=_scope(seen)[0],
        counter_step_s=_step_s(seen) or 0.0,
        unreached_mhz=tuple(_holes(seen)),
        capped_mhz=_capped_mhz(seen),
    )


def latencies_s(seen: Evidence) -> list[float]:
    """Of every lock that was seen; resets have a rule of their own."""
    return [one.seen_s for one in seen.changes if one.seen_s is not None and one.to_mhz]


def quantile(values: Sequence[float], share: float) -> float:
    """0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


# -- who it is -----------------------------------------------------------------------------------


def renumbered(seen: Evidence) -> str:
    """How the names of this card contradict each other, or ""."""
    first, last = seen.first, seen.last
    if first.uuid_index != first.index:
        return f"UUID of index {first.index} leads to index {first.uuid_index}"
    if last is not None and last.uuid != first.uuid:
        return f"{first.bus} was {first.uuid}, and is {last.uuid}"
    return ""


def _identity(seen: Evidence) -> Finding:
    first, last, found = seen.first, seen.last, renumbered(seen)
    assumed = "UUID, index and bus address name one card"
    if not found:
        name = f"{seen.model}, driver {first.driver}, VBIOS {first.vbios or 'unknown'}"
        verdict = OK if last is not None else UNANSWERED
        return Finding("identity", verdict, name, assumed)
    return Finding("identity", WRONG, found, assumed, "a command could reach another card")


def _permission(seen: Evidence) -> Finding:
    assumed = "what the agent calls controllable can be set"
    if seen.mig:
        return Finding("permission", NOTE, "MIG is on", assumed, "observed, never controlled")
    if seen.uncontrollable:
        return Finding("permission", NOTE, seen.uncontrollable, assumed, "observed only")
    if not seen.write_tried:
        return Finding("permission", UNANSWERED, "nothing was written", assumed)
    if seen.refused:
        follows = "the keeper needs CAP_SYS_ADMIN; no user namespace gives it"
        return Finding("permission", WRONG, f"refused: {seen.refused}", assumed, follows)
    return Finding("permission", OK, "locks are accepted", assumed)


def _fields(seen: Evidence) -> Finding:
    numbers: dict[str, Callable[[Sample], object]] = {
        "average power": lambda one: one.average_w,
        "instant power": lambda one: one.instant_w,
        "energy": lambda one: one.energy_j,
        "clock": lambda one: one.clock_mhz,
        "utilisation": lambda one: one.busy_ratio,
    }
    there = [name for name, of in numbers.items() if any(of(s) is not None for s in seen.samples)]
    lacking = [name for name in numbers if name not in there]
    assumed = "energy, clock and one power answer"
    needed = {"energy", "clock"} <= set(there) and any("power" in name for name in there)
    found = f"{', '.join(there)}" + (f"; not {', '.join(lacking)}" if lacking else "")
    if seen.errors:
        return Finding("fields", WRONG, seen.errors[0], assumed, "readings have holes")
    if needed:
        return Finding("fields", OK, found, assumed)
    return Finding("fields", NOTE, found, assumed, "no energy is measured on this card")


def _calls(seen: Evidence) -> Finding:
    worst = {name: quantile(taken, 0.99) for name, taken in seen.calls_s.items()}
    slowest = max(worst, key=worst.__getitem__, default="")
    if not slowest:
        return Finding("calls", UNANSWERED, "no call was timed", "20 ms at most")
    p50 = quantile(seen.calls_s[slowest], 0.5)
    found = f"slowest {slowest}: p50 {p50 * 1e3:.2f} ms, p99 {worst[slowest] * 1e3:.2f} ms"
    verdict = OK if p50 < 0.02 else NOTE
    return Finding("calls", verdict, found, "20 ms at most", "" if p50 < 0.02 else "slow readings")


def _others(seen: Evidence) -> Finding:
    found = ", ".join(seen.others) or "none that this user can see"
    return Finding("NVML clients", NOTE, found, "none but the agent writes clocks")


# -- power and energy ----------------------------------------------------------------------------


def _counter_step(seen: Evidence) -> Finding:
    name, assumed = "counter step", f"{COUNTER_STEP_S:g} s"
    step_s = _step_s(seen)
    if step_s is None:
        return Finding(name, UNANSWERED, "too few steps were seen", assumed)
    found = f"{step_s:.3f} s"
    if step_s <= STEP_SLACK * COUNTER_STEP_S:
        return Finding(name, OK, found, assumed)
    return Finding(name, WRONG, found, assumed, "energy of short windows is wrong by a step")


def _counter_scope(seen: Evidence) -> Finding:
    name, assumed = "counter scope", "the GPU's energy"
    scope, found = _scope(seen)
    if scope == "gpu":
        return Finding(name, OK, found, assumed)
    if scope == "module":
        follows = "with the measured file the agent reports no energy for this card"
        return Finding(name, NOTE, found, assumed, follows)
    if scope == "other":
        return Finding(name, WRONG, found, assumed, "joules of this card are not its own")
    return Finding(name, UNANSWERED, found, assumed)


def _instant(seen: Evidence) -> Finding:
    name, assumed = "instant power", "leads its average"
    both = [one for one in seen.samples if one.average_w is not None and one.instant_w is not None]
    if not both:
        return Finding(name, NOTE, "the card has one of the two", assumed)
    moves = list(_moves(both))
    if not moves:
        return Finding(name, UNANSWERED, "power did not move", assumed)
    leads = max(lead_w / move_w for move_w, lead_w in moves)
    found = f"ahead by {leads:.0%} of a move of {max(moves)[0]:.0f} W within {WINDOW_S:g} s"
    if leads >= LEAD_RATIO:
        return Finding(name, OK, found, assumed)
    return Finding(name, WRONG, found, assumed, "it is an average: swings are hidden")


def _watching(seen: Evidence) -> Finding:
    name, assumed = "cost of watching", "none while idle"
    if seen.quiet_w is None or seen.watched_w is None:
        return Finding(name, UNANSWERED, "the card was not quiet", assumed)
    more_w = seen.watched_w - seen.quiet_w
    found = f"{seen.quiet_w:.1f} W without a reader, {seen.watched_w:.1f} W with one"
    error_w = seen.watched_w * 2.0 * COUNTER_STEP_S / max(seen.quiet_s, COUNTER_STEP_S)
    if more_w <= max(IDLE_COST_W, IDLE_COST_RATIO * seen.quiet_w) + error_w:
        return Finding(name, OK, found, assumed)
    return Finding(name, WRONG, found, assumed, "a longer sample_interval_s on idle nodes")


def _idle_lock(seen: Evidence) -> Finding:
    name, assumed = "cost of a lock", "none while idle"
    if seen.idle_w is None:
        return Finding(name, UNANSWERED, "no lock was held on the idle card", assumed)
    default_w, locked_w = seen.idle_w
    found = f"{default_w:.1f} W at default clocks, {locked_w:.1f} W under a lock"
    if locked_w - default_w <= max(IDLE_COST_W, IDLE_COST_RATIO * default_w):
        return Finding(name, OK, found, assumed)
    return Finding(name, WRONG, found, assumed, "a lease should end where a job pauses")


# -- clocks --------------------------------------------------------------------------------------


def _list(seen: Evidence) -> Finding:
    name, assumed = "list of clocks", "even steps up to the highest clock"
    clocks, highest = seen.clocks_mhz, seen.first.clock_max_mhz
    if len(clocks) < 2:
        return Finding(name, NOTE, f"{len(clocks)} clocks", assumed, "not controllable")
    steps = [b - a for a, b in pairwise(clocks)]
    usual = median(steps)
    gaps = [(a, b) for a, b in pairwise(clocks) if b - a > GAP_STEPS * usual]
    found = f"{len(clocks)} clocks, {clocks[0]} to {clocks[-1]} MHz"
    if gaps:
        found += f"; none between {gaps[0][0]} and {gaps[0][1]}"
        return Finding(name, WRONG, found, assumed, "plans lack the clocks in the holes")
    if highest and abs(highest - clocks[-1]) > CLOCK_SLACK_MHZ:
        found += f"; highest by another call: {highest}"
        return Finding(name, WRONG, found, assumed, "one of the two is wrong")
    return Finding(name, OK, found, assumed)


def _second_clock(seen: Evidence) -> Finding:
    name, assumed = "clock read twice", "two calls agree"
    steady = [
        one
        for one in seen.samples
        if one.again_mhz and one.clock_mhz is not None and one.clock_mhz == one.clock_after_mhz
    ]
    off = [
        abs(other - one.clock_mhz)
        for one in steady
        for other in one.again_mhz
        if one.clock_mhz is not None and abs(other - one.clock_mhz) > CLOCK_SLACK_MHZ / 2
    ]
    if len(steady) < SAMPLES_MIN:
        return Finding(name, UNANSWERED, "no second reading of a steady clock", assumed)
    if len(off) < SHARE * len(steady):
        return Finding(name, OK, f"in {len(steady)} steady readings", assumed)
    found = f"{median(off):g} MHz apart in {len(off)} of {len(steady)} readings"
    return Finding(name, WRONG, found, assumed, "which clock the card runs at is not known")


def _set_latency(seen: Evidence) -> Finding:
    name, assumed = "set latency", f"{SET_LATENCY_S:g} s at most"
    known = latencies_s(seen)
    if not known:
        return Finding(name, UNANSWERED, "no change was seen", assumed)
    p50, p95 = quantile(known, 0.5), quantile(known, 0.95)
    up = [one.seen_s for one in seen.changes if one.seen_s and one.to_mhz > one.from_mhz]
    down = [one.seen_s for one in seen.changes if one.seen_s and 0 < one.to_mhz < one.from_mhz]
    found = f"p50 {p50 * 1e3:.0f} ms, p95 {p95 * 1e3:.0f} ms of {len(known)}"
    if up and down:
        found += f" (raising {median(up) * 1e3:.0f} ms, lowering {median(down) * 1e3:.0f} ms)"
    if p50 <= SET_LATENCY_S:
        return Finding(name, OK if p95 <= SET_LATENCY_S else NOTE, found, assumed)
    follows = "with the measured file clocks are held longer, and short stretches are refused"
    return Finding(name, WRONG, found, assumed, follows)


def _sets(seen: Evidence) -> Finding:
    name, assumed = "locks", "a lock that is accepted is followed"
    tried = [one for one in seen.changes if one.to_mhz and one.loaded and not _is_capped(one)]
    if not tried:
        return Finding(name, UNANSWERED, "no lock under a load of our own", assumed)
    missed = [one for one in tried if one.seen_s is None]
    found = f"{len(tried) - len(missed)} of {len(tried)} followed"
    if len(missed) < SHARE * len(tried):
        return Finding(name, OK, found, assumed)
    return Finding(name, WRONG, found, assumed, "control has no effect on this card")


def _resets(seen: Evidence) -> Finding:
    name, assumed = "reset", "gives default clocks back"
    tried = [one for one in seen.changes if not one.to_mhz and _was_locked(one, seen)]
    done = [one.seen_s for one in tried if one.seen_s is not None]
    if done:
        found = f"{median(done) * 1e3:.0f} ms, {len(done)} of {len(tried)}"
        return Finding(name, OK, found, assumed)
    if not tried or (not any(one.loaded for one in tried) and seen.restored is not False):
        return Finding(name, UNANSWERED, "no reset from a lock that was seen", assumed)
    found = f"{len(tried)} resets, none had an effect"
    return Finding(name, WRONG, found, assumed, "a GPU stays locked: never enforce here")


def _grid(seen: Evidence) -> Finding:
    name, assumed = "every clock", "each listed clock is reached"
    if not seen.grid:
        return Finding(name, UNANSWERED, "not tried, or not visible while idle", assumed)
    reached = [mhz for mhz, one in seen.grid.items() if one.seen_s is not None]
    holes = _holes(seen)
    found = f"{len(reached)} of {len(seen.clocks_mhz)} clocks"
    if holes:
        shown = ", ".join(map(str, holes[:4])) + (" ..." if len(holes) > 4 else "")
        follows = "with the measured file no plan asks for these clocks"
        return Finding(name, WRONG, f"{found}; not {shown}", assumed, follows)
    if not reached:
        return Finding(name, UNANSWERED, found, assumed)
    if len(reached) < len(seen.clocks_mhz):
        return Finding(name, NOTE, f"{found}; up to {reached[-1]} MHz", assumed, "a cap: see below")
    return Finding(name, OK, found, assumed)


def _cap(seen: Evidence) -> Finding:
    name, assumed = "clock under load", "the highest one, or a reason why not"
    busy = [one for one in seen.samples if _is_steady(one, seen)]
    if len(busy) < SAMPLES_MIN:
        return Finding(name, UNANSWERED, "the card was not busy", assumed)
    slow = [one for one in busy if (one.clock_mhz or 0) < BELOW_RATIO * _wanted_mhz(one, seen)]
    silent = [one for one in slow if not CAPS & {*one.reasons} and not _explained(one)]
    watts = [one.limit_w for one in busy if one.limit_w]
    if len(silent) >= max(SAMPLES_MIN, (1.0 - SHARE) * len(busy)):
        mhz = median(one.clock_mhz or 0 for one in silent)
        found = f"{mhz:g} of {_wanted_mhz(silent[0], seen)} MHz, and no reason"
        follows = "another's lock (nvidia-smi -rgc ends it), or a driver that hides its throttling"
        return Finding(name, WRONG, found, assumed, follows)
    if mhz := _capped_mhz(seen):
        found = f"{mhz} MHz" + (f" at a limit of {max(watts):.0f} W" if watts else "")
        return Finding(name, NOTE, found, assumed, "higher clocks change nothing under such a load")
    return Finding(name, OK, f"{median(one.clock_mhz or 0 for one in busy):g} MHz", assumed)


def _writers(seen: Evidence) -> Finding:
    name, assumed = "other writers", "none"
    held = [one for one in seen.samples if one.phase == "hold" and one.lock is not None]
    if given_up := seen.lost or (seen.drift and f"the agent sees drift: {seen.drift}"):
        follows = "the agent stands back from a card that shows clocks it did not set"
        return Finding(name, WRONG, given_up, assumed, follows)
    at_lock = [_is_at_lock(one) for one in held]
    if not any(at_lock):
        return Finding(name, UNANSWERED, "no lock was seen to hold", assumed)
    after = held[at_lock.index(True) :]
    left = [one for one in after if not _is_at_lock(one) and not CAPS & {*one.reasons}]
    if len(left) < LOSS_MIN:
        span_s = held[-1].at_s - held[0].at_s
        return Finding(name, OK, f"a lock held for {span_s:.0f} s", assumed)
    found = f"a lock at {held[0].lock and held[0].lock[1]} MHz gave way to {left[0].clock_mhz} MHz"
    return Finding(name, WRONG, found, assumed, "end the other writer (nvidia-smi, DCGM policies)")


# -- the end -------------------------------------------------------------------------------------


def _expiry(seen: Evidence) -> Finding:
    name, assumed = "silent tester", f"free within its ttl + {EXPIRY_SLACK_S:g} s"
    if not seen.write_tried or seen.refused or seen.lost:
        return Finding(name, UNANSWERED, "no lease ran out", assumed)
    if seen.expired_s is None:
        found = f"not seen free {seen.ttl_s + EXPIRY_SLACK_S:g} s after its last sign"
        follows = "leases do not protect this card"
        verdict = WRONG if seen.loaded else UNANSWERED
        return Finding(name, verdict, found, assumed, follows if seen.loaded else "")
    verdict = OK if seen.expired_s <= seen.ttl_s + EXPIRY_SLACK_S else WRONG
    return Finding(name, verdict, f"{seen.expired_s:.1f} s of {seen.ttl_s:g} s", assumed)


def _killed(seen: Evidence) -> Finding:
    name, assumed = "keeper killed", "`joulecut-agent restore` gives the clocks back"
    if not seen.kill_tried:
        return Finding(name, UNANSWERED, "needs --kill", assumed)
    if seen.killed_s is None:
        return Finding(name, WRONG, "the clock was not given back", assumed, "never enforce here")
    return Finding(name, OK, f"{seen.killed_s:.1f} s", assumed)


def _skew(seen: Evidence) -> Finding:
    name, assumed = "cards together", "the keeper writes card after card"
    if len(seen.skews_s) < 2:
        return Finding(name, UNANSWERED, "needs --gpu all and two idle cards", assumed)
    apart_s = max(seen.skews_s) - min(seen.skews_s)
    found = f"{len(seen.skews_s)} cards within {apart_s * 1e3:.0f} ms"
    if seen.parallel_ratio is not None:
        side = "side by side" if seen.parallel_ratio < 0.75 else "in turn"
        found += f"; reads of two cards run {side}"
    return Finding(name, NOTE, found, assumed)


def _restored(seen: Evidence) -> Finding:
    name, assumed = "at the end", "as it was at the start"
    if not seen.write_tried or seen.refused:
        return Finding(name, UNANSWERED, "nothing was written", assumed)
    if seen.restored:
        return Finding(name, OK, "the clock is as at the start", assumed)
    return Finding(name, WRONG, "the clock is not as at the start", assumed, "nvidia-smi -rgc")


QUESTIONS: tuple[Callable[[Evidence], Finding], ...] = (
    _identity, _permission, _fields, _calls, _others, _counter_step, _counter_scope, _instant,
    _watching, _idle_lock, _list, _second_clock, _set_latency, _sets, _resets, _grid, _cap,
    _writers, _expiry, _killed, _skew, _restored,
)  # fmt: skip


# -- observations that several questions share ---------------------------------------------------


def _edges(seen: Evidence) -> list[Sample]:
    """The samples at which the counter had moved."""
    return [
        b
        for a, b in pairwise(seen.samples)
        if a.energy_j is not None and b.energy_j is not None and b.energy_j > a.energy_j
    ]


def _step_s(seen: Evidence) -> float | None:
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


def _scope(seen: Evidence) -> tuple[Scope, str]:
    """What the counter counts, by integrated power between two of its moves."""
    edges = _edges(seen)
    if len(edges) < EDGES_MIN:
        return "", "too few steps were seen"
    first, last = edges[0], edges[-1]
    span = [one for one in seen.samples if first.at_s <= one.at_s <= last.at_s]
    span_s = last.at_s - first.at_s
    counted_w = ((last.energy_j or 0.0) - (first.energy_j or 0.0)) / span_s
    gpu_w = _mean_w(span, lambda one: one.average_w if one.instant_w is None else one.instant_w)
    module_w = _mean_w(span, lambda one: one.module_w)
    if gpu_w is None:
        return "", "no power to compare with"
    found = f"counter {counted_w:.1f} W, integrated {gpu_w:.1f} W"
    # A step more or less at either end.
    slack_w = COUNTER_RATIO * gpu_w + gpu_w * 2.0 * (_step_s(seen) or 0.0) / span_s
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


def _moves(both: Sequence[Sample]) -> Iterator[tuple[float, float]]:
    """(move of the average within a window, largest lead of instant power in it)."""
    times_s = [one.at_s for one in both]
    for start, first in enumerate(both):
        window = both[start : bisect_right(times_s, first.at_s + WINDOW_S)]
        averages = [one.average_w or 0.0 for one in window]
        move_w = max(averages) - min(averages)
        if move_w > max(SWING_W, SWING_RATIO * fmean(averages)):
            leads_w = [abs((one.instant_w or 0.0) - (one.average_w or 0.0)) for one in window]
            yield move_w, max(leads_w)


def _holes(seen: Evidence) -> list[int]:
    """Clocks that were not reached though a higher one was."""
    reached = [mhz for mhz, one in seen.grid.items() if one.seen_s is not None]
    highest = max(reached, default=0)
    return [
        mhz
        for mhz, one in seen.grid.items()
        if one.seen_s is None and mhz < highest and not _is_capped(one)
    ]


def _is_steady(one: Sample, seen: Evidence) -> bool:
    """Busy, and long after our last lock or reset and the start of the load."""
    busy = (one.busy_ratio or 0.0) >= BUSY_RATIO and one.phase != "load starts"
    return busy and one.at_s - one.lock_s >= SETTLED_S and bool(seen.clocks_mhz)


def _wanted_mhz(one: Sample, seen: Evidence) -> int:
    return one.lock[1] if one.lock is not None else seen.clocks_mhz[-1]


def _explained(one: Sample) -> bool:
    """Application clocks, display or another reason than idle."""
    return bool({*one.reasons} - {"idle"})


def _capped_mhz(seen: Evidence) -> int:
    """The clock that the power limit held under load at default clocks; 0 without a cap."""
    held = [
        one.clock_mhz
        for one in seen.samples
        if _is_steady(one, seen) and "sw_power_cap" in one.reasons and one.clock_mhz
    ]
    return int(median(held)) if len(held) >= SAMPLES_MIN else 0


def _is_capped(one: Change) -> bool:
    """Whether a limit explains a clock below the wanted one; none explains a higher clock."""
    return one.clock_mhz < one.to_mhz and bool(CAPS & {*one.reasons})


def _is_at_lock(one: Sample) -> bool:
    return one.lock is not None and abs((one.clock_mhz or 0) - one.lock[1]) <= CLOCK_SLACK_MHZ


def _was_locked(reset: Change, seen: Evidence) -> bool:
    """Whether the clock before a reset was one that we had asked for and seen."""
    asked = {one.to_mhz for one in seen.changes if one.seen_s is not None and one.to_mhz}
    return any(abs(reset.from_mhz - mhz) <= CLOCK_SLACK_MHZ for mhz in asked)
