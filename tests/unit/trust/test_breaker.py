"""The breaker on numbers alone: it trips for what is late, and for nothing else."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.policy.policy import JobPolicy, Slo
from joulecut_controller.trust.breaker import (
    REFERENCE_MIN,
    WINDOWS,
    Breaker,
    EndedIteration,
    Limit,
    Phase,
    limit_of,
)
from joulecut_controller.view import Window

BASE_S = 2.0
P = ("shape", "")


def took(duration_s: float, peer_s: float | None = None, phase: Phase = ("", "")) -> EndedIteration:
    """An iteration of so long."""
    return EndedIteration(0.0, duration_s, peer_s, phase)


def policy(slo: Slo) -> JobPolicy:
    return JobPolicy(name="job", mode="enforce", slo=slo)


def baseline(noise: float = 0.01, iterations: int = 512, mean_s: float = BASE_S) -> Window:
    return Window(iterations, mean_s, mean_s * noise, None, None)


def limit(noise: float = 0.01, budget: float = 0.02) -> Limit:
    return limit_of(policy(Slo(max_slowdown=budget)), baseline(noise))


def run(breaker: Breaker, times_s: list[float], within: Limit) -> int:
    """How many iterations it took to trip; 0 where it did not."""
    for count, time_s in enumerate(times_s, 1):
        if breaker.controlled([took(time_s)], within, peers_ours=False) == "trip":
            return count
    return 0


def test_two_windows_above_the_budget_trip_and_one_does_not() -> None:
    slow, fine, size = BASE_S * 1.10, BASE_S * 1.015, WINDOWS[0]
    assert run(Breaker(), [slow] * size + [fine] * size * 20, limit()) == 0
    assert run(Breaker(), [slow] * size * 2, limit()) == 2 * size
    assert run(Breaker(), ([slow] * size + [BASE_S] * (2 * size)) * 10, limit()) == 0


def test_the_windows_are_disjoint() -> None:
    """A stretch no longer than one window, wherever it begins, is not two windows."""
    size = WINDOWS[0]
    for begins in range(size):
        times = [BASE_S] * begins + [BASE_S * 1.2] * (size - 1) + [BASE_S] * size
        assert run(Breaker(), times, limit()) == 0, begins


def test_a_small_lateness_is_seen_by_the_long_windows() -> None:
    chance = random.Random(3)
    times = [BASE_S * 1.035 * chance.gauss(1.0, 0.01) for _ in range(40 * WINDOWS[0])]
    took = run(Breaker(), times, limit())
    assert 2 * WINDOWS[0] < took <= 2 * WINDOWS[-1]


@given(
    seed=st.integers(0, 2**32 - 1),
    noise=st.floats(0.001, 0.05),
    budget=st.floats(0.0, 0.1),
    excess=st.floats(0.0, 1.0),
)
def test_what_is_late_beyond_doubt_always_trips(
    seed: int, noise: float, budget: float, excess: float
) -> None:
    """However noisy: what lies seven standard errors of a short window, and 3 %, above."""
    chance = random.Random(seed)
    within = limit(noise, budget)
    late_s = within.limit_s * (1.03 + 7.0 * 1.26 * noise / WINDOWS[0] ** 0.5 + excess)
    times = [max(1e-3, chance.gauss(late_s, noise * BASE_S)) for _ in range(4 * WINDOWS[-1])]
    assert run(Breaker(), times, within) > 0


@given(
    times=st.lists(st.floats(0.01, 1.0), max_size=600),
    noise=st.floats(0.0, 0.2),
    budget=st.floats(0.0, 0.1),
)
def test_what_stays_within_the_budget_never_trips(
    times: list[float], noise: float, budget: float
) -> None:
    within = limit(noise, budget)
    assert run(Breaker(), [within.limit_s * ratio for ratio in times], within) == 0


@pytest.mark.parametrize("jobs", [10, pytest.param(40, marks=pytest.mark.nightly)])
def test_honest_noisy_jobs_do_not_trip(jobs: int) -> None:
    """Many iterations at the very edge of the budget, at night a million, in jobs of every noise.

    Their baselines are off by their own standard error, means wander by 0.2 % (one standard
    deviation, over hundreds of iterations), and one iteration in fifty is a checkpoint.
    """
    tripped = 0
    for seed in range(jobs):
        chance = random.Random(seed)
        noise = chance.choice((0.002, 0.005, 0.01, 0.03))
        seen_s = BASE_S * (1.0 + chance.gauss(0.0, noise / 512**0.5))
        within = limit_of(policy(Slo(max_slowdown=0.02)), baseline(noise, mean_s=seen_s))
        breaker, wander = Breaker(), 0.0
        for _ in range(25_000):
            wander = 0.995 * wander + 0.1 * 0.002 * chance.gauss(0.0, 1.0)
            time_s = BASE_S * (1.0 + wander) * chance.gauss(1.0, noise)
            if chance.random() < 0.02:
                time_s *= 3.0
            ended = [took(time_s * 1.02)]
            tripped += breaker.controlled(ended, within, peers_ours=False) == "trip"
    assert tripped <= jobs // 40, f"{tripped} false trips in {jobs} jobs of 25,000 iterations"


def test_waiting_for_a_straggler_is_not_an_own_slowdown() -> None:
    breaker = Breaker()
    waits = [took(BASE_S * 1.5, BASE_S * 1.5)] * WINDOWS[0] * 8
    assert breaker.controlled(waits, limit(), peers_ours=False) == ""
    slower = [took(BASE_S * 1.8, BASE_S * 1.5)] * WINDOWS[0] * 8
    assert breaker.controlled(slower, limit(), peers_ours=False) == "trip"


def test_a_sibling_under_our_own_clocks_excuses_only_what_it_took_without_them() -> None:
    """Else a plan that slows one pipeline would be excused for slowing the other."""
    within, waits = limit(), [took(BASE_S * 1.5, BASE_S * 1.5)] * WINDOWS[0] * 8
    assert Breaker().controlled(waits, within, peers_ours=True) == "trip"
    known = Breaker()
    known.at_default(waits, within)
    assert known.controlled(waits, within, peers_ours=True) == ""
    known.controlled([took(BASE_S)], within, peers_ours=True)  # the straggler recovered
    assert known.controlled(waits, within, peers_ours=True) == "trip"


@pytest.mark.parametrize(("after", "finding"), [(1.0, "ours"), (1.1, "not-ours")])
def test_default_clocks_tell_whose_fault_a_trip_was(after: float, finding: str) -> None:
    breaker = Breaker()
    assert run(breaker, [BASE_S * 1.1] * WINDOWS[0] * 2, limit()) > 0
    some = [took(BASE_S * after)] * (WINDOWS[0] - 1)
    assert breaker.at_default(some, limit()) == ""
    assert breaker.at_default(some, limit()) == finding
    assert breaker.at_default(some * 4, limit()) == "", "a trip is judged once"


@pytest.mark.parametrize(("after", "finding"), [(1.01, "ours"), (1.04, "not-ours")])
def test_a_job_that_became_slower_itself_is_not_held(after: float, finding: str) -> None:
    """Within 5 % of what default clocks give by now, but not of what they gave before."""
    breaker, within = Breaker(), limit(budget=0.05)
    assert run(breaker, [BASE_S * 1.08] * WINDOWS[0] * 2, within) > 0
    assert breaker.at_default([took(BASE_S * after)] * WINDOWS[0], within) == finding


def test_an_absolute_limit_holds_whatever_default_clocks_give() -> None:
    breaker = Breaker()
    within = limit_of(policy(Slo(max_iteration_time_s=BASE_S * 1.05)), baseline())
    assert run(breaker, [BASE_S * 1.08] * WINDOWS[0] * 2, within) > 0
    after = [took(BASE_S * 1.04)] * WINDOWS[0]
    assert breaker.at_default(after, within) == "ours"


def test_absolute_targets_are_judged_by_what_is_worse() -> None:
    absolute = policy(Slo(max_iteration_time_s=2.5, given_as="min_rate"))
    within = limit_of(absolute, baseline())
    assert within.limit_s == 2.5
    assert run(Breaker(), [2.4] * 400, within) == 0
    assert run(Breaker(), [2.6] * 400, within) > 0
    missed = limit_of(replace(absolute, slo=Slo(max_iteration_time_s=1.5)), baseline())
    assert missed.limit_s == BASE_S, "what default clocks miss is not our doing"
    assert run(Breaker(), [BASE_S] * 400, missed) == 0


def test_a_power_budget_may_ask_for_more_time() -> None:
    within = limit_of(policy(Slo(max_slowdown=0.02)), baseline(), allotted_s=2.4)
    assert run(Breaker(), [2.39] * 400, within) == 0
    assert run(Breaker(), [2.5] * 400, within) > 0


def at_default(breaker: Breaker, time_s: float, count: int, phase: tuple[str, str] = P) -> None:
    breaker.see_default([took(time_s, phase=phase)] * count)


def test_its_reference_is_what_it_saw_itself_at_default_clocks_of_that_phase() -> None:
    breaker, other = Breaker(), ("shape", "evaluate")
    assert breaker.reference(P) is None
    at_default(breaker, BASE_S, REFERENCE_MIN - 1)
    assert breaker.reference(P) is None
    at_default(breaker, BASE_S, 1)
    at_default(breaker, BASE_S / 4.0, REFERENCE_MIN, other)
    breaker.see_default([took(BASE_S * 2.0, BASE_S * 2.0, P)] * 50)  # it waits
    first, second = breaker.reference(P), breaker.reference(other)
    assert (first.time_mean_s, second.time_mean_s) == (BASE_S, BASE_S / 4.0)


@given(st.lists(st.floats(1.02, 3.0), min_size=1, max_size=6), st.integers(0, 99))
def test_default_windows_that_agree_join_and_others_take_their_place(
    paces: list[float], seed: int
) -> None:
    chance, breaker, time_s = random.Random(seed), Breaker(), BASE_S
    for _ in range(4):
        at_default(breaker, BASE_S * chance.gauss(1.0, 0.0005), 12)
        breaker.controlled([], limit(), peers_ours=False)
    joined = breaker.reference(P)
    assert joined.iterations == 48
    for pace in paces:
        time_s *= pace
        at_default(breaker, time_s, 12)
        breaker.controlled([], limit(), peers_ours=False)
        moved = breaker.reference(P)
        assert moved.time_mean_s == pytest.approx(time_s)


def test_a_first_window_above_asks_for_default_clocks() -> None:
    breaker = Breaker()
    assert run(breaker, [BASE_S * 1.1] * WINDOWS[0], limit()) == 0
    assert "s an iteration" in breaker.suspected
    at_default(breaker, BASE_S, 12)
    assert run(breaker, [BASE_S * 1.1] * WINDOWS[0], limit()) == WINDOWS[0], "it was us"


def test_a_window_above_that_was_the_jobs_own_doing_does_not_count() -> None:
    """Default clocks between two windows show a slower job: within the limit as it is now."""
    breaker = Breaker()
    at_default(breaker, BASE_S, 30)
    assert run(breaker, [BASE_S * 1.1] * WINDOWS[0], limit()) == 0
    at_default(breaker, BASE_S * 1.09, 12)
    slower = breaker.reference(P)
    assert slower is not None
    now = limit_of(policy(Slo(max_slowdown=0.02)), slower)
    assert run(breaker, [BASE_S * 1.1] * WINDOWS[-1] * 3, now) == 0
    assert not breaker.suspected


@given(st.integers(1, 20), st.integers(2, 5), st.floats(1.05, 1.5))
def test_a_job_that_flaps_between_phases_fills_its_windows_all_the_same(
    stay: int, phases: int, late: float
) -> None:
    """Each phase is judged against its own reference, and all of them together."""
    breaker, names = Breaker(), [("shape", f"{n}") for n in range(phases)]
    seen: dict[tuple[str, str], Limit] = {}
    for number, name in enumerate(names, 1):
        at_default(breaker, BASE_S * number, 30, name)
        known = breaker.reference(name)
        assert known is not None
        seen[name] = limit_of(policy(Slo(max_slowdown=0.02)), known)
    for turn in range(600):
        name = names[turn // stay % phases]
        one = took(late * seen[name].baseline_s, phase=name)
        if breaker.controlled([one], seen[name], peers_ours=False) == "trip":
            return
        assert turn < 4 * WINDOWS[0] + stay * phases, "it never trips"


@given(st.integers(1, 20), st.integers(2, 5))
def test_phases_within_their_budgets_never_trip_together(stay: int, phases: int) -> None:
    breaker, names = Breaker(), [("shape", f"{n}") for n in range(phases)]
    for turn in range(600):
        number = turn // stay % phases
        within = limit_of(policy(Slo(max_slowdown=0.02)), baseline(mean_s=BASE_S * (number + 1)))
        one = took(1.015 * within.baseline_s, phase=names[number])
        assert not breaker.controlled([one], within, peers_ours=False)
