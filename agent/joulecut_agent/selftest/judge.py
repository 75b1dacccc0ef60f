"""Evidence of one card against what the code assumes: findings, and the facts that replace them.

Pure. A finding is wrong where two readings contradict each other or a write, or where the measured
value is outside of what the code assumes. What a card is known to do (a power cap, a counter of its
whole module) is a note. What was not measured is not answered, and never passes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from joulecut_agent.keeper.evidence import CLOCK_SLACK_MHZ
from joulecut_agent.selftest.evidence import Evidence, Sample
from joulecut_agent.selftest.observations import (
    CAPS,
    SAMPLES_MIN,
    WINDOW_S,
    capped_mhz,
    holes_mhz,
    is_at_lock,
    is_capped,
    is_explained,
    is_steady,
    latencies_s,
    moves,
    quantile,
    scope_of,
    step_s,
    wanted_mhz,
    was_locked,
)
from joulecut_wire.assumed import COUNTER_STEP_S, SET_LATENCY_S
from joulecut_wire.card_facts import CardFacts

OK, WRONG, NOTE, UNANSWERED = "ok", "wrong", "note", "not answered"
STEP_SLACK = 1.5  # of the assumed step: two readings enclose an edge
LEAD_RATIO = 0.3  # of the move: an average over 1 s lags by more than half of it
SHARE = 0.8  # of the samples, before an observation is the rule
BELOW_RATIO = 0.93  # boost loses up to 5 % to temperature without a reason
GAP_STEPS = 1.6  # lists alternate between 7 and 8 MHz
EXPIRY_SLACK_S = 2.0  # S18
IDLE_COST_W, IDLE_COST_RATIO = 5.0, 0.05
LATE_TIMES, LATE_MIN = 2.0, 2  # of the slowest known change; a busy machine reads late twice
LIMIT_SLACK_W = 1.0  # limits are whole watts on some boards
LOSS_MIN = 2  # one clock that leaves its lock is a late reading


Answer = tuple[str, str, str]  # verdict, what was measured, what follows


@dataclass(frozen=True, slots=True)
class Finding:
    """One assumption: its verdict, what was measured, what is assumed, and what follows."""

    name: str
    verdict: str
    measured: str
    assumed: str
    follows: str = ""


def findings(seen: Evidence) -> tuple[Finding, ...]:
    answers = [(name, assumed, question(seen)) for name, assumed, question in QUESTIONS]
    return tuple(Finding(name, a[0], a[1], assumed, a[2]) for name, assumed, a in answers)


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
        counter_scope=scope_of(seen)[0],
        counter_step_s=step_s(seen) or 0.0,
        unreached_mhz=() if seen.lost or seen.drift else tuple(holes_mhz(seen)),
        capped_mhz=capped_mhz(seen),
    )


# -- who it is -----------------------------------------------------------------------------------


def renumbered(seen: Evidence) -> str:
    """How the names of this card contradict each other, or ""."""
    first, last = seen.first, seen.last
    if first.uuid_index != first.index:
        return f"UUID of index {first.index} leads to index {first.uuid_index}"
    if last is not None and last.uuid != first.uuid:
        return f"{first.bus} was {first.uuid}, and is {last.uuid}"
    return ""


def _identity(seen: Evidence) -> Answer:
    first, last, found = seen.first, seen.last, renumbered(seen)
    if not found:
        name = f"{seen.model}, driver {first.driver}, VBIOS {first.vbios or 'unknown'}"
        verdict = OK if last is not None else UNANSWERED
        return verdict, name, ""
    return WRONG, found, "a command could reach another card"


def _permission(seen: Evidence) -> Answer:
    if seen.mig:
        return NOTE, "MIG is on", "observed, never controlled"
    if seen.uncontrollable:
        return NOTE, seen.uncontrollable, "observed only"
    if not seen.write_tried:
        return UNANSWERED, "nothing was written", ""
    if seen.refused:
        follows = "the keeper needs CAP_SYS_ADMIN; no user namespace gives it"
        return WRONG, f"refused: {seen.refused}", follows
    return OK, "locks are accepted", ""


def _fields(seen: Evidence) -> Answer:
    numbers: dict[str, Callable[[Sample], object]] = {
        "average power": lambda one: one.average_w,
        "instant power": lambda one: one.instant_w,
        "energy": lambda one: one.energy_j,
        "clock": lambda one: one.clock_mhz,
        "utilisation": lambda one: one.busy_ratio,
    }
    there = [name for name, of in numbers.items() if any(of(s) is not None for s in seen.samples)]
    lacking = [name for name in numbers if name not in there]
    needed = {"energy", "clock"} <= set(there) and any("power" in name for name in there)
    found = f"{', '.join(there)}" + (f"; not {', '.join(lacking)}" if lacking else "")
    if seen.errors:
        return WRONG, seen.errors[0], "readings have holes"
    if needed:
        return OK, found, ""
    return NOTE, found, "no energy is measured on this card"


def _calls(seen: Evidence) -> Answer:
    worst = {name: quantile(taken, 0.99) for name, taken in seen.calls_s.items()}
    slowest = max(worst, key=worst.__getitem__, default="")
    if not slowest:
        return UNANSWERED, "no call was timed", ""
    p50 = quantile(seen.calls_s[slowest], 0.5)
    found = f"slowest {slowest}: p50 {p50 * 1e3:.2f} ms, p99 {worst[slowest] * 1e3:.2f} ms"
    verdict = OK if p50 < 0.02 else NOTE
    return verdict, found, "" if p50 < 0.02 else "slow readings"


def _others(seen: Evidence) -> Answer:
    found = ", ".join(seen.others) or "none that this user can see"
    return NOTE, found, ""


# -- power and energy ----------------------------------------------------------------------------


def _counter_step(seen: Evidence) -> Answer:
    every_s = step_s(seen)
    if every_s is None:
        return UNANSWERED, "too few steps were seen", ""
    found = f"{every_s:.3f} s"
    if every_s <= STEP_SLACK * COUNTER_STEP_S:
        return OK, found, ""
    return WRONG, found, "energy of short windows is wrong by a step"


def _counter_scope(seen: Evidence) -> Answer:
    scope, found = scope_of(seen)
    if scope == "gpu":
        return OK, found, ""
    if scope == "module":
        follows = "with the measured file the agent reports no energy for this card"
        return NOTE, found, follows
    if scope == "other":
        return WRONG, found, "joules of this card are not its own"
    return UNANSWERED, found, ""


def _instant(seen: Evidence) -> Answer:
    both = [one for one in seen.samples if one.average_w is not None and one.instant_w is not None]
    if not both:
        return NOTE, "the card has one of the two", ""
    moved = list(moves(both))
    if not moved:
        return UNANSWERED, "power did not move", ""
    leads = max(lead_w / move_w for move_w, lead_w in moved)
    found = f"ahead by {leads:.0%} of a move of {max(moved)[0]:.0f} W within {WINDOW_S:g} s"
    if leads >= LEAD_RATIO:
        return OK, found, ""
    return WRONG, found, "it is an average: swings are hidden"


def _watching(seen: Evidence) -> Answer:
    if seen.quiet_w is None or seen.watched_w is None:
        return UNANSWERED, "the card was not quiet", ""
    more_w = seen.watched_w - seen.quiet_w
    found = f"{seen.quiet_w:.1f} W without a reader, {seen.watched_w:.1f} W with one"
    error_w = seen.watched_w * 2.0 * COUNTER_STEP_S / max(seen.quiet_s, COUNTER_STEP_S)
    if more_w <= max(IDLE_COST_W, IDLE_COST_RATIO * seen.quiet_w) + error_w:
        return OK, found, ""
    return WRONG, found, "a longer sample_interval_s on idle nodes"


def _idle_lock(seen: Evidence) -> Answer:
    if seen.idle_w is None:
        return UNANSWERED, "no lock was held on the idle card", ""
    default_w, locked_w = seen.idle_w
    found = f"{default_w:.1f} W at default clocks, {locked_w:.1f} W under a lock"
    if locked_w - default_w <= max(IDLE_COST_W, IDLE_COST_RATIO * default_w):
        return OK, found, ""
    return WRONG, found, "a lease should end where a job pauses"


# -- clocks --------------------------------------------------------------------------------------


def _list(seen: Evidence) -> Answer:
    clocks, highest = seen.clocks_mhz, seen.first.clock_max_mhz
    if len(clocks) < 2:
        return NOTE, f"{len(clocks)} clocks", "not controllable"
    steps = [b - a for a, b in pairwise(clocks)]
    usual = median(steps)
    gaps = [(a, b) for a, b in pairwise(clocks) if b - a > GAP_STEPS * usual]
    found = f"{len(clocks)} clocks, {clocks[0]} to {clocks[-1]} MHz"
    if gaps:
        found += f"; none between {gaps[0][0]} and {gaps[0][1]}"
        return WRONG, found, "plans lack the clocks in the holes"
    if highest and abs(highest - clocks[-1]) > CLOCK_SLACK_MHZ:
        found += f"; highest by another call: {highest}"
        return WRONG, found, "one of the two is wrong"
    return OK, found, ""


def _second_clock(seen: Evidence) -> Answer:
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
        return UNANSWERED, "no second reading of a steady clock", ""
    if len(off) < SHARE * len(steady):
        return OK, f"in {len(steady)} steady readings", ""
    found = f"{median(off):g} MHz apart in {len(off)} of {len(steady)} readings"
    return WRONG, found, "which clock the card runs at is not known"


def _set_latency(seen: Evidence) -> Answer:
    known = latencies_s(seen)
    if not known:
        return UNANSWERED, "no change was seen", ""
    p50, p95 = quantile(known, 0.5), quantile(known, 0.95)
    up = [one.seen_s for one in seen.changes if one.seen_s and one.to_mhz > one.from_mhz]
    down = [one.seen_s for one in seen.changes if one.seen_s and 0 < one.to_mhz < one.from_mhz]
    found = f"p50 {p50 * 1e3:.0f} ms, p95 {p95 * 1e3:.0f} ms of {len(known)}"
    if up and down:
        found += f" (raising {median(up) * 1e3:.0f} ms, lowering {median(down) * 1e3:.0f} ms)"
    late = [one for one in known if one > LATE_TIMES * SET_LATENCY_S]
    if p50 <= SET_LATENCY_S and len(late) <= max(LATE_MIN, (1.0 - SHARE) * len(known)):
        return OK if p95 <= SET_LATENCY_S else NOTE, found, ""
    follows = "with the measured file clocks are held longer, and short stretches are refused"
    return WRONG, found, follows


def _sets(seen: Evidence) -> Answer:
    tried = [one for one in seen.changes if one.to_mhz and one.loaded and not is_capped(one)]
    if not tried:
        return UNANSWERED, "no lock under a load of our own", ""
    missed = [one for one in tried if one.seen_s is None]
    found = f"{len(tried) - len(missed)} of {len(tried)} followed"
    if len(missed) <= (1.0 - SHARE) * len(tried):
        return OK, found, ""
    return WRONG, found, "a plan may have no effect on this card"


def _resets(seen: Evidence) -> Answer:
    every = [one for one in seen.changes if not one.to_mhz and was_locked(one, seen)]
    # An idle card leaves its clocks when it likes: it answers only where no load was there.
    tried = [one for one in every if one.loaded] or every
    done = [one.seen_s for one in tried if one.seen_s is not None]
    if done and len(done) >= SHARE * len(tried):
        found = f"{median(done) * 1e3:.0f} ms, {len(done)} of {len(tried)}"
        return OK, found, ""
    if not tried or (not any(one.loaded for one in tried) and seen.restored is not False):
        return UNANSWERED, "no reset from a lock that was seen", ""
    found = f"{len(tried) - len(done)} of {len(tried)} resets had no effect"
    return WRONG, found, "a GPU stays locked: never enforce here"


def _grid(seen: Evidence) -> Answer:
    if not seen.grid or seen.lost:
        return UNANSWERED, "not tried, or not visible while idle", ""
    reached = [mhz for mhz, one in seen.grid.items() if one.seen_s is not None]
    holes = holes_mhz(seen)
    found = f"{len(reached)} of {len(seen.clocks_mhz)} clocks"
    if holes:
        shown = ", ".join(map(str, holes[:4])) + (" ..." if len(holes) > 4 else "")
        follows = "with the measured file no plan asks for these clocks"
        return WRONG, f"{found}; not {shown}", follows
    if not reached:
        return UNANSWERED, found, ""
    if len(reached) < len(seen.clocks_mhz):
        return NOTE, f"{found}; up to {reached[-1]} MHz", "a cap: see below"
    return OK, found, ""


def _cap(seen: Evidence) -> Answer:
    busy = [one for one in seen.samples if is_steady(one, seen)]
    if len(busy) < SAMPLES_MIN:
        return UNANSWERED, "the card was not busy", ""
    slow = [one for one in busy if (one.clock_mhz or 0) < BELOW_RATIO * wanted_mhz(one, seen)]
    silent = [one for one in slow if not CAPS & {*one.reasons} and not is_explained(one)]
    watts = [one.limit_w for one in busy if one.limit_w]
    if len(silent) >= max(SAMPLES_MIN, (1.0 - SHARE) * len(busy)):
        mhz = median(one.clock_mhz or 0 for one in silent)
        found = f"{mhz:g} of {wanted_mhz(silent[0], seen)} MHz, and no reason"
        follows = "another's lock (nvidia-smi -rgc ends it), or a driver that hides its throttling"
        return WRONG, found, follows
    if mhz := capped_mhz(seen):
        found = f"{mhz} MHz" + (f" at a limit of {max(watts):.0f} W" if watts else "")
        return NOTE, found, "higher clocks change nothing under such a load"
    return OK, f"{median(one.clock_mhz or 0 for one in busy):g} MHz", ""


def _writers(seen: Evidence) -> Answer:
    held = [one for one in seen.samples if one.phase == "hold" and one.lock is not None]
    if given_up := seen.lost or (seen.drift and f"the agent sees drift: {seen.drift}"):
        follows = "the agent stands back from a card that shows clocks it did not set"
        return WRONG, given_up, follows
    limits_w = [one.limit_w for one in seen.samples if one.limit_w]
    if limits_w and max(limits_w) - min(limits_w) > LIMIT_SLACK_W:
        found = f"the power limit moved between {min(limits_w):.0f} and {max(limits_w):.0f} W"
        return WRONG, found, "end the other writer of limits, or let it be the only one"
    at_lock = [is_at_lock(one) for one in held]
    if not any(at_lock):
        return UNANSWERED, "no lock was seen to hold", ""
    after = held[at_lock.index(True) :]
    left = [one for one in after if not is_at_lock(one) and not CAPS & {*one.reasons}]
    if len(left) < LOSS_MIN:
        span_s = held[-1].at_s - held[0].at_s
        return OK, f"a lock held for {span_s:.0f} s", ""
    found = f"a lock at {held[0].lock and held[0].lock[1]} MHz gave way to {left[0].clock_mhz} MHz"
    return WRONG, found, "end the other writer (nvidia-smi, DCGM policies)"


# -- the end -------------------------------------------------------------------------------------


def _expiry(seen: Evidence) -> Answer:
    if not seen.write_tried or seen.refused or seen.lost:
        return UNANSWERED, "no lease ran out", ""
    if seen.expired_s is not None and seen.expired_s <= seen.ttl_s + EXPIRY_SLACK_S:
        return OK, f"{seen.expired_s:.1f} s of {seen.ttl_s:g} s", ""
    found = f"not seen free {seen.ttl_s + EXPIRY_SLACK_S:g} s after its last sign"
    if not seen.loaded:
        return UNANSWERED, f"{found}, on an idle card", ""
    return WRONG, found, "leases do not protect this card"


def _killed(seen: Evidence) -> Answer:
    if not seen.kill_tried:
        return UNANSWERED, "needs --kill", ""
    if seen.killed_s is None:
        return WRONG, "the clock was not given back", "never enforce here"
    return OK, f"{seen.killed_s:.1f} s", ""


def _skew(seen: Evidence) -> Answer:
    if len(seen.skews_s) < 2:
        return UNANSWERED, "needs --gpu all and two idle cards", ""
    apart_s = max(seen.skews_s) - min(seen.skews_s)
    found = f"{len(seen.skews_s)} cards within {apart_s * 1e3:.0f} ms"
    if seen.parallel_ratio is not None:
        side = "side by side" if seen.parallel_ratio < 0.75 else "in turn"
        found += f"; reads of two cards run {side}"
    return NOTE, found, ""


def _restored(seen: Evidence) -> Answer:
    if not seen.write_tried or seen.refused:
        return UNANSWERED, "nothing was written", ""
    if seen.restored:
        return OK, "the clock is as at the start", ""
    return WRONG, "the clock is not as at the start", "nvidia-smi -rgc"


# Name, what is assumed, and the question.
QUESTIONS: tuple[tuple[str, str, Callable[[Evidence], Answer]], ...] = (
    ("identity", "UUID, index and bus address name one card", _identity),
    ("permission", "what the agent calls controllable can be set", _permission),
    ("fields", "energy, clock and one power answer", _fields),
    ("calls", "20 ms at most", _calls),
    ("NVML clients", "none but the agent writes clocks", _others),
    ("counter step", f"{COUNTER_STEP_S:g} s", _counter_step),
    ("counter scope", "the GPU's energy", _counter_scope),
    ("instant power", "leads its average", _instant),
    ("cost of watching", "none while idle", _watching),
    ("cost of a lock", "none while idle", _idle_lock),
    ("list of clocks", "even steps up to the highest clock", _list),
    ("clock read twice", "two calls agree", _second_clock),
    ("set latency", f"{SET_LATENCY_S:g} s at most", _set_latency),
    ("locks", "a lock that is accepted is followed", _sets),
    ("reset", "gives default clocks back", _resets),
    ("every clock", "each listed clock is reached", _grid),
    ("clock under load", "the highest one, or a reason why not", _cap),
    ("other writers", "none", _writers),
    ("silent tester", f"free within its ttl + {EXPIRY_SLACK_S:g} s", _expiry),
    ("keeper killed", "`joulecut-agent restore` gives the clocks back", _killed),
    ("cards together", "the keeper writes card after card", _skew),
    ("at the end", "as it was at the start", _restored),
)
