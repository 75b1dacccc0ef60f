"""Evidence of one card against what the code assumes: findings, and the facts that replace them.

Pure. A finding is wrong where two readings contradict each other or a write, or where the measured
value is outside of what the code assumes. What a card is known to do (a power cap, a counter of its
whole module) is a note. What was not measured is not answered, and never passes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from joulecut_agent.selftest.evidence import Evidence
from joulecut_agent.selftest.observations import (
    CAPS,
    SAMPLES_MIN,
    capped_mhz,
    holes_mhz,
    is_at_lock,
    is_capped,
    is_explained,
    is_steady,
    latencies_s,
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
SHARE = 0.8  # of the samples, before an observation is the rule
BELOW_RATIO = 0.93  # boost loses up to 5 % to temperature without a reason
EXPIRY_SLACK_S = 2.0  # S18
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


# -- clocks --------------------------------------------------------------------------------------


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
    ("counter step", f"{COUNTER_STEP_S:g} s", _counter_step),
    ("counter scope", "the GPU's energy", _counter_scope),
    ("set latency", f"{SET_LATENCY_S:g} s at most", _set_latency),
    ("locks", "a lock that is accepted is followed", _sets),
    ("reset", "gives default clocks back", _resets),
    ("every clock", "each listed clock is reached", _grid),
    ("clock under load", "the highest one, or a reason why not", _cap),
    ("other writers", "none", _writers),
    ("silent tester", f"free within its ttl + {EXPIRY_SLACK_S:g} s", _expiry),
    ("at the end", "as it was at the start", _restored),
)
