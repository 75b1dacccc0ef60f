"""`joulecut model trace FILE...`: recorded steps by kernel class, replayed and written."""

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from joulecut_lab.model.system import System
from joulecut_lab.run_file import system_of
from joulecut_lab.trace import chakra, kineto, output
from joulecut_lab.trace.energy import between_w, held_mhz, power_w
from joulecut_lab.trace.kernels import Kernel, KernelClass, Recording
from joulecut_lab.trace.rates import (
    assumed_shares,
    class_seconds,
    efficiencies,
    factor,
    measured_shares,
    unknown,
)
from joulecut_lab.trace.replay import Occupancy, occupancy, replay
from joulecut_lab.trace.shown import AtClock, Summary
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput

UNKNOWN_MAX = 0.1  # of the kernels' time; above it no energy and no other clock rests on them
TINY_S = 1e-12  # of a trace without times
SPAN_S_MAX = 86_400.0  # profiles have seconds to minutes; a day apart are two clocks
APART = 2.0  # at its own clock the replay is the recording, but for waits that were not recorded


def run(options: Namespace) -> int:
    """Raises BadInput."""
    system = None if options.system is None else system_of(options.system, "--system")
    clock: int | None = options.clock
    _check(options, clock)
    output.check(options)
    recordings = read(options.files)
    if clock is None and system is not None:
        clock = round(system.clock_max_mhz)
    share, names = unknown(recordings)
    doubtful = share > UNKNOWN_MAX
    known = None if doubtful else system
    shares = assumed_shares()
    others = [(mhz, read([path])) for mhz, path in options.also]
    measured: dict[KernelClass, float] = {}
    if others and clock is not None:
        totals = {float(clock): class_seconds(recordings)}
        totals |= {float(mhz): class_seconds(found) for mhz, found in others}
        measured = measured_shares(totals)
    shares |= measured
    found = [at_clock(recordings, shares, known, clock, clock)]
    for recording, played in zip(recordings, found[0].played, strict=True):
        _must_be_plausible(recording, played.span_s)
    replayed = [] if doubtful else options.replay
    found += [at_clock(recordings, shares, known, clock, mhz) for mhz in replayed]
    card = None
    if system is not None and clock is not None:
        card = efficiencies(recordings, system, clock)
    output.write(options, recordings, found[-1], system, card)
    summary = Summary(
        recordings, found, known, shares, frozenset(measured), card, names if doubtful else ()
    )
    if options.json:
        print(json.dumps(summary.as_json(), allow_nan=False, indent=1))
    else:
        print("\n".join(summary.as_text()))
    return FINE


def read(paths: Sequence[Path]) -> list[Recording]:
    """One recording per file. Raises BadInput."""
    found = [
        chakra.read(path, place) if ".et" in path.suffixes else kineto.read(path)
        for place, path in enumerate(paths)
    ]
    if len({one.rank for one in found}) < len(found):  # files that do not say their rank
        found = [replace(r, rank=i) for i, r in enumerate(found)]
    return found


def _must_be_plausible(recording: Recording, replayed_s: float) -> None:
    """Raises BadInput where times are of several clocks, or a replay is not the recording."""
    recorded_s = recording.span_s
    allowed = "events of one clock, in microseconds"
    if recorded_s > SPAN_S_MAX:
        raise BadInput(recording.source, f"its kernels lie {recorded_s:.6g} s apart", allowed)
    if recording.timed and not recorded_s / APART <= replayed_s <= recorded_s * APART:
        what = f"spans {recorded_s:.6g} s, and {replayed_s:.6g} s when its waits are replayed"
        raise BadInput(recording.source, what, allowed)


def at_clock(
    recordings: Sequence[Recording],
    shares: dict[KernelClass, float],
    system: System | None,
    recorded_mhz: int | None,
    clock_mhz: int | None,
) -> AtClock:
    """The replay at a clock; None where no clock is known: as recorded.

    Where the card is known, both clocks are those that its power limit leaves.
    """
    before_mhz, held = _held(recordings, shares, system, recorded_mhz, clock_mhz)

    def scaled(kernel: Kernel) -> float:
        return factor(shares[kernel.kind], before_mhz, held)

    played = [replay(recording, scaled) for recording in recordings]
    steps, ranks = recordings[0].steps, len(recordings)
    seconds: dict[KernelClass, float] = {}
    for recording, one in zip(recordings, played, strict=True):
        for kernel, duration_s in zip(recording.kernels, one.duration_s, strict=True):
            seconds[kernel.kind] = seconds.get(kernel.kind, 0.0) + duration_s / steps / ranks
    used = [occupancy(r, p) for r, p in zip(recordings, played, strict=True)]
    mean = Occupancy(*(sum(getattr(u, name) for u in used) / steps / ranks
                       for name in ("span_s", "busy_s", "exposed_s")))  # fmt: skip
    span_s = max(one.span_s for one in played) / steps
    joules = energy_j = None
    if system is not None and clock_mhz is not None:
        # Kernels of several streams overlap, but a GPU draws the power of one at a time.
        overlap = mean.busy_s / max(sum(seconds.values()), mean.busy_s, TINY_S)
        joules = {
            kind: power_w(system, kind, held) * time_s * overlap for kind, time_s in seconds.items()
        }
        energy_j = sum(joules.values()) + between_w(system, held) * max(0.0, span_s - mean.busy_s)
    return AtClock(clock_mhz, tuple(played), seconds, joules, span_s, mean, energy_j)


def _held(
    recordings: Sequence[Recording],
    shares: dict[KernelClass, float],
    system: System | None,
    recorded_mhz: int | None,
    clock_mhz: int | None,
) -> tuple[float, float]:
    """Clocks of the recording and of its replay, in MHz; equal where one is not known."""
    if recorded_mhz is None or clock_mhz is None:
        return 1.0, 1.0
    if system is None:
        return recorded_mhz, clock_mhz
    recorded_s = class_seconds(recordings)
    before_mhz = held_mhz(system, lambda _: recorded_s, recorded_mhz)

    def slowed(mhz: float) -> dict[KernelClass, float]:
        return {kind: time_s * factor(shares[kind], before_mhz, mhz)
                for kind, time_s in recorded_s.items()}  # fmt: skip

    return before_mhz, held_mhz(system, slowed, clock_mhz)


def _check(options: Namespace, clock: int | None) -> None:
    if clock is None and options.system is None and (options.replay or options.also):
        flag = "--replay" if options.replay else "--also"
        raise BadInput(flag, "the recorded clock is not known", "--clock MHZ beside it")
    if options.calibrated is not None and options.system is None:
        raise BadInput("--calibrated", "no card to start from", "--system NAME beside it")
