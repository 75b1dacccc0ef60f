"""Phases: every moment rounded down from a zero of its own, so that rounding gives less away.

A moment T counts as floor((T - phase) / tick) whole ticks. An operation of t seconds between two
moments then has at least floor((t + offset) / tick) ticks between them, its offset the phase of
its begin less that of its end. Sums of offsets between two moments are the same on every way, so
stages still mean the same lengths. Where phases fit, options that matter are whole numbers of
ticks. On the longest way of the fastest options every one can be, and flow pressed through
that way (`solve.ascent.pressed`) loses nothing by rounding, however much it is.
"""

from typing import NamedTuple

import numpy as np

from joulecut_engine.optimize.compiled import exact
from joulecut_engine.optimize.events import Events
from joulecut_engine.optimize.levels import Floats, Ints
from joulecut_engine.optimize.network import Network

SURE = 1e-9  # of a time: shorter by so much it is a whole number of ticks whatever the round-off
EVEN = 1e-9  # of a tick: phases so near to each other are one
WHOLE = 1e-7  # of a tick: what is so little short of a whole number was chosen to be one
SWEEPS = 6  # over all moments; more change nothing that shows in a bound
# Arcs at a moment whose phase is chosen by them: two stages meet with four; in a graph from a
# file all may wait for one, and work grows with the square.
ARCS_MAX = 16


class Menu(NamedTuple):
    """Times that matter of row i are first[i] to first[i + 1] of `time_s`; a second of rounding
    there costs `weight_w`."""

    first: Ints
    time_s: Floats
    weight_w: Floats


class Phases(NamedTuple):
    """`offset_s` by row; `short_s` by link, never above 0: what a wait there is rounded by;
    `zero_s` by event."""

    offset_s: Floats
    short_s: Floats
    zero_s: Floats


class Arcs(NamedTuple):
    """Rows and links between moments, with times as in a menu."""

    tail: Ints
    head: Ints
    first: Ints
    time: Floats
    weight: Floats


def none(network: Network) -> Phases:
    """All moments rounded down from the same zero."""
    return Phases(np.zeros(network.size), np.zeros(len(network.tails)), np.zeros(0))


def fitted(network: Network, events: Events, link_w: Floats, menu: Menu, tick_s: float) -> Phases:
    """Phases by which little of what flows is lost; any are valid."""
    start, end = events.count, events.count + 1
    tails = np.append(events.done, start)[network.tails]  # -1 is the start
    heads = np.append(events.begin, end)[network.heads]
    apart = np.flatnonzero(tails != heads)
    arcs = Arcs(
        np.concatenate([events.begin, tails[apart]]),
        np.concatenate([events.done, heads[apart]]),
        np.concatenate([menu.first, menu.first[-1] + 1 + np.arange(len(apart))]),
        np.concatenate([menu.time_s * (1.0 - SURE), np.zeros(len(apart))]),
        np.concatenate([menu.weight_w, link_w[apart]]),
    )
    sides = np.concatenate([arcs.tail, arcs.head])
    order = np.argsort(sides, kind="stable")
    at = np.searchsorted(sides[order], np.arange(end + 2))
    # When the fastest options get there, exact on their longest way; or all from the same zero,
    # which the tick was chosen for.
    early_s = np.zeros(end + 1)
    ends_s = network.ends(network.fastest / network.second * (1.0 - SURE))
    np.maximum.at(early_s, events.done, ends_s)
    np.maximum.at(early_s, events.begin, network.starts(ends_s))
    early_s[end] = ends_s.max()
    early_s -= np.floor(early_s / tick_s) * tick_s
    starts_s = [early_s, np.zeros(end + 1)]
    lost = [placed(arcs, order % len(arcs.tail), at, start, tick_s, one) for one in starts_s]
    phase_s = starts_s[int(np.argmin(lost))]
    wait_s = phase_s[tails] - phase_s[heads]
    short_s = np.floor(wait_s / tick_s + EVEN) * tick_s - wait_s
    return Phases(
        phase_s[events.begin] - phase_s[events.done],
        np.where(tails == heads, 0.0, np.minimum(short_s, 0.0)),
        phase_s[: events.count],
    )


@exact
def placed(arcs: Arcs, near: Ints, at: Ints, start: int, tick: float, phase: Floats) -> float:
    """Each moment in turn goes where the arcs at it lose least, to and fro. Tried are phases at
    which one time of one of them is whole. What all lose then, in ticks times watts."""
    tail, head, first, time, _ = arcs
    for sweep in range(SWEEPS):
        for step in range(len(phase)):
            node = step if sweep % 2 == 0 else len(phase) - 1 - step
            if node == start or at[node + 1] - at[node] > ARCS_MAX:
                continue
            best = phase[node]
            beside = near[at[node] : at[node + 1]]
            least = _lost(arcs, beside, node, best, tick, phase, np.inf)
            for e in range(at[node], at[node + 1]):
                arc = near[e]
                for k in range(first[arc], first[arc + 1]):
                    if head[arc] == node:
                        trial = phase[tail[arc]] + time[k]
                    else:
                        trial = phase[head[arc]] - time[k]
                    trial -= np.floor(trial / tick) * tick
                    lost = _lost(arcs, beside, node, trial, tick, phase, least)
                    if lost < least:
                        best, least = trial, lost
            phase[node] = best
    lost = 0.0
    for arc in range(len(tail)):  # each of them once
        lost += _lost(arcs, np.array([arc]), -1, 0.0, tick, phase, np.inf)
    return lost


@exact
def _lost(
    arcs: Arcs, near: Ints, node: int, here: float, tick: float, phase: Floats, most: float
) -> float:
    """In ticks times watts, by all arcs at a node whose phase is `here`; not counted beyond
    `most`."""
    tail, head, first, time, weight = arcs
    lost = 0.0
    for arc in near:
        begin = here if tail[arc] == node else phase[tail[arc]]
        done = here if head[arc] == node else phase[head[arc]]
        for k in range(first[arc], first[arc + 1]):
            ticks = (time[k] + begin - done) / tick + WHOLE
            lost += weight[k] * (ticks - np.floor(ticks))
        if lost >= most:
            break
    return lost
