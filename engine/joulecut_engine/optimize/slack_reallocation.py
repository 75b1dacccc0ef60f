"""Seconds moved to where they delay least: the last of a margin's saving, regained.

Taking back all slowing evenly, or planning for an earlier deadline, treats an operation that is
late in every second iteration like one that never is. Here slowing is taken back where it buys
most of the deadline per joule and given where it costs least, as long as that saves energy:
the price of an operation's second is its criticality, the share of jittering iterations whose
longest path it lies on.
"""

from collections.abc import Callable

import numpy as np

from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.curves import curves_of
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.problem import Problem, Solution

SHARE_FIRST = 0.2  # of the decisions that change at once; halved where that saves nothing
DRAWS = 48  # for the criticality of one round; more rounds see more than more draws do
HALVINGS = 6  # then changes are single ones up to 8 x 48, and too small to see beyond
ROUNDS = 48  # of exchange; later ones gain a hundredth of what the first did
WINDS = 2  # starts with large changes: the second one gains half as much again at slowdown 0
MEMORY = 0.75  # of the criticality seen in earlier rounds: plans differ little, draws are few
STEPS = 6  # halvings of the number taken back: to a sixty-fourth of the decisions
# Criticality of what was never critical: as if it had been once in three times the draws
# (the "rule of three" bounds an event not seen in n trials by 3 / n; less is as likely).
UNSEEN = 1.0 / 3.0

Priced = Callable[[tuple[ClockOption, ...]], Solution]
Keeps = Callable[[Solution], bool]
Critical = Callable[[Solution, int, int], Floats]  # plan, round, draws -> by operation


class Exchange:
    """One problem, a clock for every operation."""

    def __init__(self, problem: Problem) -> None:
        self._options = problem.options
        curves = curves_of(problem)
        width = max(len(c.time_s) for c in curves.distinct)
        seconds = np.full((len(curves.distinct), width), np.inf)
        cost_j = np.full_like(seconds, np.inf)
        for k, curve in enumerate(curves.distinct):
            seconds[k, : len(curve.time_s)] = curve.time_s
            cost_j[k, : len(curve.time_s)] = curve.cost_j
        self._seconds = seconds[curves.curve]
        self._cost_j = cost_j[curves.curve]

    def improved(
        self, plan: Solution, *, priced: Priced, keeps: Keeps, critical: Critical
    ) -> Solution:
        """The plan, or a cheaper one that keeps the target too. `plan` has to keep it."""
        choice = self._choice(plan.clocks)
        if choice is None:
            return plan
        share, halvings, winds = SHARE_FIRST, 0, WINDS
        weight = critical(plan, 0, DRAWS)
        for number in range(1, ROUNDS + 1):
            found = self._exchanged(
                choice, weight + UNSEEN / DRAWS, share, priced=priced, keeps=keeps
            )
            if found is None or found[0].energy_j >= plan.energy_j:
                share, halvings = share / 2, halvings + 1
                if halvings == HALVINGS or share * len(choice) < 0.5:
                    # What is left is small, or the criticality seen so far is worn out.
                    share, halvings, winds = SHARE_FIRST, 0, winds - 1
                    if not winds:
                        return plan
            else:
                plan, choice = found
            weight = MEMORY * weight + (1 - MEMORY) * critical(plan, number, DRAWS)
        return plan

    def _exchanged(
        self, choice: Ints, weight: Floats, share: float, *, priced: Priced, keeps: Keeps
    ) -> tuple[Solution, Ints] | None:
        """Some decisions slowed, and the fewest others taken back that the target asks for."""
        slower, gain, faster, loss = self._moves(choice, weight)
        count = max(1, int(share * len(choice)))
        giving = np.argsort(-gain, kind="stable")[:count]
        giving = giving[gain[giving] > 0.0]
        slowed = choice.copy()
        slowed[giving] = slower[giving]
        taking = np.argsort(loss, kind="stable")
        taking = taking[np.isfinite(loss[taking]) & ~np.isin(taking, giving)]

        def tried(taken: int) -> tuple[Solution, Ints]:
            moved = slowed.copy()
            moved[taking[:taken]] = faster[taking[:taken]]
            return priced(self._clocks(moved)), moved

        best = tried(0)
        if keeps(best[0]):
            return best
        low, high = 0, min(len(taking), 4 * count)
        best = tried(high)
        if not keeps(best[0]):
            return None
        for _ in range(STEPS):
            if high - low < 2:
                break
            middle = (low + high) // 2
            found = tried(middle)
            if keeps(found[0]):
                high, best = middle, found
            else:
                low = middle
        return best

    def _moves(self, choice: Ints, weight: Floats) -> tuple[Ints, Floats, Ints, Floats]:
        """By decision: the best slower choice and the joules it saves per second of delay, the
        best faster one and the joules that costs; 0 and infinity where there is none."""
        every = np.arange(len(choice))
        cost_j, length_s = self._cost_j, weight[:, None] * self._seconds
        real = np.isfinite(cost_j)
        now_j, now_s = cost_j[every, choice][:, None], length_s[every, choice][:, None]
        saved_j = np.where(real, now_j - np.where(real, cost_j, 0.0), 0.0)
        later_s = np.where(real, np.where(real, length_s, 0.0) - now_s, 0.0)
        slow = real & (later_s > 0) & (saved_j > 0)
        fast = real & (later_s < 0)
        rate = np.divide(saved_j, later_s, out=np.zeros_like(cost_j), where=slow | fast)
        gain = np.where(slow, rate, 0.0)
        loss = np.where(fast, rate, np.inf)
        slower, faster = gain.argmax(axis=1), loss.argmin(axis=1)
        return slower, gain[every, slower], faster, loss[every, faster]

    def _clocks(self, choice: Ints) -> tuple[ClockOption, ...]:
        menus = self._options
        return tuple(menu[k] for menu, k in zip(menus, choice.tolist(), strict=True))

    def _choice(self, clocks: tuple[ClockOption, ...]) -> Ints | None:
        try:
            found = [menu.index(o) for menu, o in zip(self._options, clocks, strict=True)]
        except ValueError:
            return None
        return np.array(found, dtype=np.int64)
