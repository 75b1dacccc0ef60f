"""When a model no longer describes its GPU, and how wide its band must be until it does.

A bias follows a GPU that became evenly slower. What it cannot follow (a card that throttles,
a job that changed its mix) shows as times outside the band, again and again: then the band
is widened to what is really seen, old evidence is dropped, and the GPU asks to be probed.
"""

from collections import OrderedDict, deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from joulecut_engine.estimate.estimator import NOMINAL

WATCHED = 20  # comparisons: two in a hundred thousand have ten outside by chance (90 % band)
OUTSIDE_MAX = 0.5  # share of them outside that no 90 % band has by chance
SETTLED_MAX = 0.2  # share outside at which the model holds again
CLOCKS_SEEN_MIN = 2  # a slope needs two
TRACKED_MAX = 16_384  # GPUs and workloads, as many as there are biases


@dataclass(frozen=True, slots=True)
class Drift:
    """One GPU whose model stopped describing it. `text` is one line for people."""

    workload: str
    uuid: str
    since: int  # number of the first reading that counts
    text: str
    off: float = 0.0  # relative error of time when it was noticed


@dataclass(slots=True)
class _Track:
    """Relative errors (logarithms) and whether each was outside its band."""

    errors: deque[float] = field(default_factory=lambda: deque(maxlen=WATCHED))
    outside: deque[bool] = field(default_factory=lambda: deque(maxlen=WATCHED))
    clocks_mhz: set[int] = field(default_factory=set)  # seen since it drifted
    since: int = 0  # zero: it does not drift
    off: float = 0.0  # median error when it was found to drift


class Watch:
    """Holds every comparison of what was predicted with what was seen, and draws the line."""

    def __init__(self, tracked_max: int = TRACKED_MAX) -> None:
        self._tracked_max = tracked_max
        self._tracks: OrderedDict[tuple[str, str], _Track] = OrderedDict()

    def saw(
        self, workload: str, uuid: str, *, error: float, outside: bool, clock_mhz: int, number: int
    ) -> bool:
        """Takes one comparison; true where it is the one that makes it a drift."""
        track = self._tracks.setdefault((workload, uuid), _Track())
        self._tracks.move_to_end((workload, uuid))
        while len(self._tracks) > self._tracked_max:
            self._tracks.popitem(last=False)
        track.errors.append(error)
        track.outside.append(outside)
        if track.since:
            track.clocks_mhz.add(clock_mhz)
            return False
        if len(track.outside) < WATCHED or sum(track.outside) <= OUTSIDE_MAX * WATCHED:
            return False
        first = next(i for i, was in enumerate(track.outside) if was)
        track.since = max(1, number - (len(track.outside) - 1 - first))
        track.clocks_mhz = {clock_mhz}
        track.off = float(
            np.median([e for e, was in zip(track.errors, track.outside, strict=True) if was])
        )
        return True

    def refitted(self, profiled: Container[str] = ()) -> None:
        """A new model is in force: who was seen at two clocks and holds to it has settled.

        Of `profiled` workloads somebody else measured the slope, and one clock will do.
        """
        for (workload, _), track in self._tracks.items():
            settled = track.outside and np.mean(track.outside) <= SETTLED_MAX
            wanted = 1 if workload in profiled else CLOCKS_SEEN_MIN
            if track.since and settled and len(track.clocks_mhz) >= wanted:
                track.since, track.clocks_mhz = 0, set()

    def since(self, workload: str, uuid: str) -> int:
        """Number of the first reading that counts; zero where nothing drifts."""
        track = self._tracks.get((workload, uuid))
        return track.since if track else 0

    def half(self, workload: str, uuid: str) -> float:
        """Half width (a logarithm) that holds nine tenths of what was seen; zero: no drift.

        At least what it was off by: where it was not looked at, it may be off as much.
        """
        track = self._tracks.get((workload, uuid))
        if track is None or not track.since:
            return 0.0
        seen = float(np.quantile(np.abs(track.errors), NOMINAL, method="higher"))
        return max(seen, abs(track.off))

    def drifts(self) -> tuple[Drift, ...]:
        """All there are, in a fixed order."""
        return tuple(
            Drift(
                workload,
                uuid,
                track.since,
                f"{workload} on {uuid}: the model no longer describes it (times "
                f"{100.0 * (np.exp(track.off) - 1.0):+.1f} % off when noticed); band "
                f"widened, to be probed again at {max(0, CLOCKS_SEEN_MIN - len(track.clocks_mhz))}"
                " more clocks",
                float(np.exp(track.off) - 1.0),
            )
            for (workload, uuid), track in sorted(self._tracks.items())
            if track.since
        )

    def forget(self, workload: str) -> None:
        for key in [key for key in self._tracks if key[0] == workload]:
            del self._tracks[key]

    def state(self) -> list[list[Any]]:
        return [
            [*key, list(t.errors), list(t.outside), sorted(t.clocks_mhz), t.since, t.off]
            for key, t in self._tracks.items()
        ]

    def restore(self, rows: Iterable[Iterable[Any]]) -> None:
        for workload, uuid, errors, outside, clocks, since, off in rows:
            self._tracks[workload, uuid] = _Track(
                deque(errors, WATCHED), deque(outside, WATCHED), set(clocks), since, off
            )
