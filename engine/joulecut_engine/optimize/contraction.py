"""Fewer operations, same question: what has one duration only is part of what it waits for.

A transfer that both sides wait for stands between two stages that meet, and so does a
collective between an operation and all that comes after it. Neither has a choice, and both hide
from the search and from the parts of the bound that two stages meet in one moment. Where all
that some operations lead to has one duration, every one of them lasts so much longer instead,
and what they led to follows them at once: the same plans, in the same time, for the same energy.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from joulecut_engine.graph import Graph
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.problem import Goal, Problem, Solution
from joulecut_engine.optimize.schedule import solution

Options = tuple[ClockOption, ...]
Neighbours = list[set[int]]


@dataclass(frozen=True, slots=True)
class Contracted:
    """`problem` is `whole` with fewer operations; `kept[k]` is the index of its operation k."""

    whole: Problem
    problem: Problem
    kept: Ints

    def inside(self, found: Solution, goal: Goal) -> Solution | None:
        """A plan of the whole as one of the contracted problem; None where its options are not
        ours."""
        if len(found.clocks) != len(self.whole.options):
            return None
        try:
            clocks = tuple(
                menu[self.whole.options[k].index(found.clocks[k])]
                for menu, k in zip(self.problem.options, self.kept.tolist(), strict=True)
            )
        except ValueError:
            return None
        return solution(self.problem, goal, found.granularity, clocks, found.lower_bound_j)

    def outside(self, found: Solution, goal: Goal) -> Solution:
        """A plan of the contracted problem as one of the whole, with the same bound."""
        clocks = [menu[0] for menu in self.whole.options]
        for k, menu, clock in zip(
            self.kept.tolist(), self.problem.options, found.clocks, strict=True
        ):
            clocks[k] = self.whole.options[k][menu.index(clock)]
        return solution(self.whole, goal, found.granularity, tuple(clocks), found.lower_bound_j)


def contracted(problem: Problem) -> Contracted | None:
    """None where nothing can be left out."""
    count = len(problem.graph.operations)
    fixed = [len(menu) == 1 for menu in problem.options]
    if not any(fixed):
        return None
    before, after = _needed(problem.graph.edges, count)
    longer_s, dearer_j = np.zeros(count), np.zeros(count)
    gone = np.zeros(count, dtype=np.bool_)
    for last in range(count):  # in topological order: what is merged may be merged again
        if gone[last] or not fixed[last] or not before[last]:
            continue
        firsts, lasts = before[last], after[min(before[last])]
        if not _meet(firsts, lasts, before, after) or not all(fixed[z] for z in lasts):
            continue
        lasts_s = [problem.options[z][0].time_s + float(longer_s[z]) for z in sorted(lasts)]
        following = [after[z] for z in lasts]
        if min(lasts_s) < max(lasts_s) and any(q != following[0] for q in following):
            continue
        own = min(firsts)
        for z in sorted(lasts):
            power_w = problem.blocking_power_w[problem.graph.operations[z].stage]
            dearer_j[own] += dearer_j[z] + problem.options[z][0].effective_cost_j(power_w)
        nexts = set().union(*following)
        for z in lasts:
            gone[z] = True
        for q in nexts:
            before[q] = (before[q] - lasts) | firsts
        for p in firsts:
            longer_s[p] += max(lasts_s)
            after[p] = set(nexts)
    if not gone.any():
        return None
    return merged(problem, gone, after, longer_s, dearer_j)


def _meet(firsts: set[int], lasts: set[int], before: Neighbours, after: Neighbours) -> bool:
    """Whether each of the first leads to all of the last and to nothing else, and vice versa."""
    return all(after[p] == lasts for p in firsts) and all(before[z] == firsts for z in lasts)


def _needed(edges: tuple[tuple[int, int], ...], count: int) -> tuple[Neighbours, Neighbours]:
    """Neighbours before and after, but for those that are waited for through another."""
    after: Neighbours = [set() for _ in range(count)]
    for first, second in edges:
        after[first].add(second)
    direct = [set(heads) for heads in after]
    for first in range(count):
        for middle in direct[first]:
            after[first] -= direct[middle]
    before: Neighbours = [set() for _ in range(count)]
    for first in range(count):
        for second in after[first]:
            before[second].add(first)
    return before, after


def merged(
    problem: Problem, gone: NDArray[np.bool_], after: Neighbours, longer_s: Floats, dearer_j: Floats
) -> Contracted:
    """Without what is `gone`: the others last so much longer (or shorter) and cost so much more,
    by operation, and `after` says what follows each that stays."""
    graph, kept = problem.graph, np.flatnonzero(~gone)
    here = (np.cumsum(~gone) - 1).tolist()
    edges = sorted((here[p], here[q]) for p in kept.tolist() for q in after[p])
    shared: dict[tuple[int, int, float, float], Options] = {}
    menus = []
    for k in kept.tolist():
        menu, stage = problem.options[k], graph.operations[k].stage
        key = (id(menu), stage, float(longer_s[k]), float(dearer_j[k]))
        if key not in shared:
            more_j = problem.blocking_power_w[stage] * key[2] + key[3]
            shared[key] = menu
            if key[2] != 0.0 or key[3] != 0.0:
                shared[key] = tuple(
                    ClockOption(o.clock_mhz, o.time_s + key[2], o.energy_j + more_j) for o in menu
                )
        menus.append(shared[key])
    order = tuple(tuple(here[k] for k in line if not gone[k]) for line in graph.order)
    small = Graph(tuple(graph.operations[k] for k in kept.tolist()), tuple(edges), order)
    return Contracted(
        problem, replace(problem, graph=small, options=tuple(menus), measured=()), kept
    )
