"""When a layer's time and power may be believed: windows on the energy counter's own edges.

The counter moves in steps (every 100 ms), so a window runs from one step to another and is
many steps long. A card warms up for a minute, and leakage with it: a measurement is done
when several windows in a row agree, or is marked as not stable.
"""

from dataclasses import dataclass, field

from joulecut_lab.study.bench import Bench, Done, Reading
from joulecut_wire.assumed import COUNTER_STEP_S
from joulecut_wire.errors import Unavailable

POLL_S = 0.01  # around an edge the counter is looked at so often: a tenth of a step
SAMPLE_S = 0.25  # between edges clock and temperature are sampled so often
PASSES_MIN = 3  # in a window, however long one takes
STILL_S = 5.0  # a counter that has not moved for fifty of its steps does not count


@dataclass(frozen=True, slots=True)
class Rule:
    """Stable: the last `windows` windows lie within `tolerance` of their mean, in time and in
    power. A window is at least `steps` counter steps long; `windows_max` end the attempt."""

    steps: int = 50  # 5 s: an edge known to 10 ms at either end is then 0.2 % at worst
    windows: int = 5  # 25 s: a card that still warms up by 1.5 % (in 17 s) is not taken for settled
    tolerance: float = 0.005
    windows_max: int = 36  # three minutes: three times what a heat sink takes to warm up

    @property
    def window_s(self) -> float:
        return self.steps * COUNTER_STEP_S


# For trying things out and for tests: two windows of one second, within 2 %.
QUICK = Rule(steps=10, windows=2, tolerance=0.02, windows_max=8)


@dataclass(frozen=True, slots=True)
class Window:
    """One stretch between two edges of the counter. `pass_s` seconds of one pass."""

    pass_s: float
    power_w: float
    clock_mhz: float
    temperature_celsius: float | None
    capped: bool


@dataclass(frozen=True, slots=True)
class Measurement:
    """Means over the last windows; spreads are the farthest of them from the mean, relative."""

    time_s: float
    power_w: float
    clock_mhz: float
    temperature_celsius: float | None
    capped: bool
    windows: int
    time_spread: float
    power_spread: float
    stable: bool

    @property
    def energy_j(self) -> float:
        return self.time_s * self.power_w


def measure(bench: Bench, rule: Rule) -> Measurement:
    """Runs the prepared layer until it is stable. Raises Unavailable where nothing counts."""
    meter = _Meter(bench)
    windows: list[Window] = []
    while True:
        windows.append(meter.window(rule.window_s))
        last = windows[-rule.windows :]
        times, powers = [w.pass_s for w in last], [w.power_w for w in last]
        worst = max(_spread(times), _spread(powers))
        stable = len(last) == rule.windows and worst <= rule.tolerance
        if stable or len(windows) >= rule.windows_max:
            warm = [w.temperature_celsius for w in last if w.temperature_celsius is not None]
            return Measurement(
                time_s=_mean(times),
                power_w=_mean(powers),
                clock_mhz=_mean([w.clock_mhz for w in last]),
                temperature_celsius=_mean(warm) if warm else None,
                capped=any(w.capped for w in last),
                windows=len(windows),
                time_spread=_spread(times),
                power_spread=_spread(powers),
                stable=stable,
            )


@dataclass(frozen=True, slots=True)
class _Edge:
    at_s: float
    done: Done
    energy_j: float


@dataclass(slots=True)
class _Meter:
    """Keeps the bench at work and finds the edges of its counter."""

    bench: Bench
    seen: list[Reading] = field(default_factory=list)
    edge: _Edge | None = None

    def window(self, length_s: float) -> Window:
        first = self.edge or self._next_edge(self.bench.now_s())
        self.seen.clear()
        last = self._next_edge(first.at_s + length_s)
        while last.done.passes - first.done.passes < PASSES_MIN:
            last = self._next_edge(last.at_s + length_s)
        self.edge = last
        warm = [r.temperature_celsius for r in self.seen if r.temperature_celsius is not None]
        passes = last.done.passes - first.done.passes
        return Window(
            pass_s=(last.done.at_s - first.done.at_s) / passes,
            power_w=(last.energy_j - first.energy_j) / (last.at_s - first.at_s),
            clock_mhz=_mean([reading.clock_mhz for reading in self.seen]),
            temperature_celsius=_mean(warm) if warm else None,
            capped=2 * sum(reading.capped for reading in self.seen) > len(self.seen),
        )

    def _next_edge(self, not_before_s: float) -> _Edge:
        """The first step of the counter from a time on. Raises Unavailable."""
        while (left_s := not_before_s - self.bench.now_s()) > 0.0:
            self.bench.work(min(SAMPLE_S, left_s))
            self.seen.append(self.bench.read())
        before = self._read()
        since_s = self.bench.now_s()
        while True:
            done = self.bench.work(POLL_S)
            reading, now_s = self._read(), self.bench.now_s()
            if reading.energy_j < before.energy_j:
                raise Unavailable("the energy counter fell: was the driver reloaded?")
            if reading.energy_j > before.energy_j:
                return _Edge(now_s, done, reading.energy_j)
            if now_s - since_s > STILL_S:
                raise Unavailable(f"the energy counter stood still for {STILL_S:g} s under load")

    def _read(self) -> Reading:
        reading = self.bench.read()
        self.seen.append(reading)
        return reading


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _spread(values: list[float]) -> float:
    mean = _mean(values)
    return max(abs(value - mean) for value in values) / mean
