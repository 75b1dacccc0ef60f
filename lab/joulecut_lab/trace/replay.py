"""Replay of recorded ranks while kernels take other times.

A kernel starts when its stream, the kernels it waits for and its launch allow, after the lag that
the recording shows. Launches follow each other as the host made them; where the host waited for the
GPU, it waits again. A collective of several recorded ranks starts to move data when the last of
them is there. With every factor 1 the replay is the recording.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from joulecut_lab.trace.kernels import NETWORK, Kernel, Recording, Sync

Factor = Callable[[Kernel], float]
Key = tuple[str, str, int]  # group, class, how manieth

AWAITED_MAX = 256  # kernels that may still run when the host returns from a wait
_LAUNCH, _SYNC, _START = 0, 1, 2  # of equal times the launch comes first


@dataclass(frozen=True, slots=True)
class Played:
    """Starts and durations of one rank's kernels, in the order of its recording."""

    start_s: tuple[float, ...]
    duration_s: tuple[float, ...]

    @property
    def span_s(self) -> float:
        ends = (s + d for s, d in zip(self.start_s, self.duration_s, strict=True))
        return max(ends) - min(self.start_s)


def aligned(recordings: Sequence[Recording]) -> list[Recording]:
    """The same with the ranks' clocks set by their collectives: members end together."""
    shared = _shared(recordings)
    found = [recordings[0]]
    first = {key: recordings[0].kernels[i] for i, key in enumerate(shared[0]) if key}
    for recording, keys in zip(recordings[1:], shared[1:], strict=True):
        late_s = [
            kernel.end_s - first[key].end_s
            for kernel, key in zip(recording.kernels, keys, strict=True)
            if key is not None and key in first
        ]
        found.append(_shifted(recording, median(late_s)) if late_s else recording)
    return found


def _shifted(recording: Recording, by_s: float) -> Recording:
    kernels = tuple(
        replace(
            kernel,
            start_s=kernel.start_s - by_s,
            launch_s=None if kernel.launch_s is None else kernel.launch_s - by_s,
        )
        for kernel in recording.kernels
    )
    syncs = tuple(replace(s, at_s=s.at_s - by_s, end_s=s.end_s - by_s) for s in recording.syncs)
    return replace(recording, kernels=kernels, syncs=syncs)


def replay(recordings: Sequence[Recording], factor: Factor) -> list[Played]:
    """All ranks together; `factor` multiplies a kernel's own time."""
    shared = _shared(recordings)
    members: dict[Key, list[int]] = {}
    for rank, keys in enumerate(shared):
        for key in keys:
            if key is not None:
                members.setdefault(key, []).append(rank)
    moving_s = _moving_s(recordings, shared)
    players = [
        _Player(recording, keys, moving_s, factor)
        for recording, keys in zip(recordings, shared, strict=True)
    ]
    running = [player.play() for player in players]
    arrived: dict[Key, dict[int, float]] = {}
    blocked: dict[int, Key] = {}
    for rank, run in enumerate(running):
        _advance(rank, run, None, arrived, blocked)
    while blocked:
        ready = [k for k in set(blocked.values()) if len(arrived[k]) == len(members[k])]
        # Two groups that their members joined in different order: the first goes without the rest.
        for key in ready or [min(blocked.values(), key=lambda k: max(arrived[k].values()))]:
            together_s = max(arrived[key].values())
            for rank in [rank for rank, wanted in blocked.items() if wanted == key]:
                del blocked[rank]
                _advance(rank, running[rank], together_s, arrived, blocked)
    return [Played(tuple(p.start_s), tuple(p.duration_s)) for p in players]


_Run = Generator[tuple[Key, float], float, None]


def _advance(
    rank: int,
    run: _Run,
    together_s: float | None,
    arrived: dict[Key, dict[int, float]],
    blocked: dict[int, Key],
) -> None:
    """Runs a rank until it waits for others again."""
    try:
        key, at_s = next(run) if together_s is None else run.send(together_s)
    except StopIteration:
        return
    arrived.setdefault(key, {})[rank] = at_s
    blocked[rank] = key


class _Player:
    """One rank: recorded events in time order, each at its new time."""

    def __init__(
        self,
        recording: Recording,
        keys: Sequence[Key | None],
        moving_s: dict[Key, float],
        factor: Factor,
    ) -> None:
        count = len(recording.kernels)
        self._recording, self._keys, self._moving_s = recording, keys, moving_s
        self._factor = factor
        self.start_s = [0.0] * count
        self.duration_s = [0.0] * count
        self._launched_s = [0.0] * count

    def play(self) -> _Run:
        kernels, syncs = self._recording.kernels, self._recording.syncs
        events = [(k.start_s, _START, i) for i, k in enumerate(kernels)]
        events += [
            (k.launch_s, _LAUNCH, i) for i, k in enumerate(kernels) if k.launch_s is not None
        ]
        events += [(s.end_s, _SYNC, i) for i, s in enumerate(syncs)]
        events.sort()
        last: dict[tuple[int, int], int] = {}
        host_s = recorded_host_s = events[0][0]
        for at_s, what, i in events:
            if what == _LAUNCH:
                host_s += at_s - recorded_host_s
                recorded_host_s = at_s
                self._launched_s[i] = host_s
            elif what == _SYNC:
                host_s, recorded_host_s = self._waited(i, host_s, recorded_host_s), at_s
            else:
                yield from self._start(i, last)

    def _waited(self, i: int, host_s: float, recorded_host_s: float) -> float:
        """The host's time after a wait: for all kernels that had ended when it returned."""
        sync, kernels = self._recording.syncs[i], self._recording.kernels
        arrival_s = host_s + max(0.0, sync.at_s - recorded_host_s)
        awaited = [k for k in self._before(sync.end_s) if _awaited(kernels[k], sync)]
        recorded_s = max((kernels[k].end_s for k in awaited), default=sync.at_s)
        tail_s = sync.end_s - max(sync.at_s, recorded_s)
        ends_s = (self.start_s[k] + self.duration_s[k] for k in awaited)
        return max(arrival_s, max(ends_s, default=arrival_s)) + tail_s

    def _before(self, at_s: float) -> range:
        """Places of the kernels that started last before a time; older ones have long ended."""
        stop = bisect_right(self._recording.kernels, at_s, key=lambda kernel: kernel.start_s)
        return range(max(0, stop - AWAITED_MAX), stop)

    def _start(self, i: int, last: dict[tuple[int, int], int]) -> _Run:
        kernels = self._recording.kernels
        kernel = kernels[i]
        lane = (kernel.device, kernel.stream)
        before = [*kernel.waits_for, *([last[lane]] if lane in last else [])]
        last[lane] = i
        recorded = [kernels[k].end_s for k in before]
        now = [self.start_s[k] + self.duration_s[k] for k in before]
        if kernel.launch_s is not None:
            recorded.append(kernel.launch_s)
            now.append(self._launched_s[i])
        lag_s = max(0.0, kernel.start_s - max(recorded)) if recorded else 0.0
        start_s = max(now) + lag_s if now else kernel.start_s
        self.start_s[i] = start_s
        key = self._keys[i]
        if key is None:
            self.duration_s[i] = kernel.duration_s * self._factor(kernel)
            return
        together_s = yield key, start_s
        moving_s = self._moving_s[key] * self._factor(kernel)
        self.duration_s[i] = max(together_s - start_s, 0.0) + moving_s


def _awaited(kernel: Kernel, sync: Sync) -> bool:
    launched = kernel.launch_s is not None and kernel.launch_s <= sync.at_s
    return launched and kernel.end_s <= sync.end_s


def _shared(recordings: Sequence[Recording]) -> list[list[Key | None]]:
    """By kernel: the collective it belongs to, where all recorded members have as many."""
    keys: list[list[Key | None]] = []
    for recording in recordings:
        counts: dict[tuple[str, str], int] = {}
        mine: list[Key | None] = []
        for kernel in recording.kernels:
            if kernel.kind not in NETWORK or kernel.kind == "send-recv":
                mine.append(None)
                continue
            group = kernel.collective.group if kernel.collective else ""
            at = counts.get((group, kernel.kind), 0)
            counts[group, kernel.kind] = at + 1
            mine.append((group, kernel.kind, at))
        keys.append(mine)
    members: dict[Key, int] = {}
    for mine in keys:
        for key in mine:
            if key is not None:
                members[key] = members.get(key, 0) + 1
    return [[k if k is not None and members[k] > 1 else None for k in mine] for mine in keys]


def _moving_s(
    recordings: Sequence[Recording], shared: Sequence[Sequence[Key | None]]
) -> dict[Key, float]:
    """By collective: its time without waiting, that of the member that came last."""
    found: dict[Key, float] = {}
    for recording, keys in zip(recordings, shared, strict=True):
        for kernel, key in zip(recording.kernels, keys, strict=True):
            if key is not None:
                found[key] = min(found.get(key, kernel.duration_s), kernel.duration_s)
    return found


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How a rank's span is used. `exposed_s` is communication with no computation beside it."""

    span_s: float
    busy_s: float
    exposed_s: float


def occupancy(recording: Recording, played: Played) -> Occupancy:
    every, computing = [], []
    for kernel, start_s, duration_s in zip(
        recording.kernels, played.start_s, played.duration_s, strict=True
    ):
        every.append((start_s, start_s + duration_s))
        if kernel.kind not in NETWORK:
            computing.append(every[-1])
    busy_s = _union_s(every)
    return Occupancy(played.span_s, busy_s, busy_s - _union_s(computing))


def _union_s(intervals: list[tuple[float, float]]) -> float:
    total_s, until_s = 0.0, float("-inf")
    for start_s, end_s in sorted(intervals):
        total_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return total_s
