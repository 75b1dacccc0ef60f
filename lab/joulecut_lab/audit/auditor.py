"""Accumulates frames of readings into findings; memory grows with GPUs and jobs, not with time.

Pure: frames in, an `Audit` out. Savings are predicted by `first_saving` from the facts kept here,
and joined at the end. An energy counter falls back to zero when the driver is reloaded, and is
silent while its exporter is down. Its value after a silence still counts the energy used; only the
owner of that energy may be lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from joulecut_lab.audit.finding import Amount, Audit, FirstSaving, JobFinding, Remainder
from joulecut_lab.audit.lockstep import MEMBERS_MIN, compare, working
from joulecut_lab.audit.reading import (
    NO_OWNER,
    POWER_W_MAX,
    SHARED,
    UNSEEN,
    Frame,
    GpuName,
    GpuReading,
    Means,
    believed,
)
from joulecut_lab.audit.slow_gpus import GpuClocks, slow_gpus

# Two readings so many steps apart: something was missed.
GAP_STEPS = 1.5
# Counter and power of one board: averages over a step differ, an hour of them does not.
AGREE_S, AGREE_RATIO = 3_600.0, 0.1
CONTRADICTED_SHARE = 0.05  # of a job's time; then nothing of it is called measured


@dataclass(frozen=True, slots=True)
class Spent:
    """Joules and seconds of one owner. `joules` is None where unknown; `gap` marks time without
    readings.
    """

    owner: str
    seconds: float
    joules: float | None
    gap: bool = False


@dataclass(slots=True)
class Meter:
    """Remembers one GPU's last reading."""

    last: GpuReading | None = None
    last_s: float = 0.0
    resets: int = 0
    compared_s: float = 0.0
    counted_j: float = 0.0
    integrated_j: float = 0.0
    contradiction: str = ""  # of the last whole hour

    def step(self, now: GpuReading, at_s: float, span_s: float) -> tuple[Spent, ...]:
        """Energy and time since the last reading; empty at the first."""
        before, since_s = self.last, at_s - self.last_s
        if before is not None and since_s <= 0.0:
            return ()
        self.last, self.last_s = now, at_s
        if before is None:
            return ()
        gap = since_s > GAP_STEPS * span_s
        joules = self._joules(before, now, since_s, gap=gap)
        if before.owner == now.owner:
            return (Spent(now.owner, since_s, joules, gap),)
        if gap:
            return (Spent(UNSEEN, since_s, joules, gap),)
        half = None if joules is None else joules / 2.0  # reassigned somewhere in the step
        return Spent(before.owner, since_s / 2.0, half), Spent(now.owner, since_s / 2.0, half)

    def _joules(
        self, before: GpuReading, now: GpuReading, since_s: float, *, gap: bool
    ) -> float | None:
        integral_j = None if gap or now.power_w is None else now.power_w * since_s
        if now.energy_j is None or before.energy_j is None:
            return integral_j
        used_j = now.energy_j - before.energy_j
        if used_j < 0.0:
            self.resets += 1
            if integral_j is not None:
                return integral_j
            used_j = now.energy_j  # since the driver was loaded; energy before it is lost
        elif integral_j is not None and used_j <= POWER_W_MAX * since_s:
            self._compare(used_j, integral_j, since_s)
        return used_j if used_j <= POWER_W_MAX * since_s else integral_j

    def _compare(self, counted_j: float, integrated_j: float, since_s: float) -> None:
        """Counter against power, an hour at a time."""
        self.compared_s += since_s
        self.counted_j += counted_j
        self.integrated_j += integrated_j
        if self.compared_s >= AGREE_S:
            apart = abs(self.counted_j - self.integrated_j)
            counted_w, power_w = (
                self.counted_j / self.compared_s,
                self.integrated_j / self.compared_s,
            )
            said = f"energy counter says {counted_w:.0f} W, power {power_w:.0f} W"
            self.contradiction = said if apart > AGREE_RATIO * self.integrated_j else ""
            self.compared_s = self.counted_j = self.integrated_j = 0.0


IDLE_RATIO = 0.05  # below this share of a step nothing but housekeeping ran

# Of `GpuReading`: means over the time at work at clocks that this product does not hold.
COUNTERS = ("power_w", "clock_mhz", "power_limit_w", "busy_ratio", "memory_ratio", "sm_ratio",
            "tensor_ratio", "dram_ratio")  # fmt: skip


@dataclass(slots=True)
class OwnerTotals:
    """Measured totals of one owner."""

    name: str
    uuids: set[str] = field(default_factory=set)
    gpu_s: float = 0.0
    energy_known_s: float = 0.0
    energy_j: float = 0.0
    busy_s: float = 0.0
    idle_j: float = 0.0
    judged_s: float = 0.0  # GPU seconds with a known utilisation
    compared_s: float = 0.0
    slow_s: float = 0.0
    unlike_s: float = 0.0  # slow steps of GPUs that do not do the same work
    above_j: float = 0.0
    clocked_s: float = 0.0  # at work with a known clock, and without one
    untold_clocks_s: float = 0.0
    purpose_s: float = 0.0
    contradicted_s: float = 0.0
    contradiction: str = ""  # the last one
    joined: str = ""  # why it may be several jobs
    counters: Means = field(default_factory=Means)

    @property
    def work_j(self) -> float:
        return self.energy_j - self.idle_j

    @property
    def doubt(self) -> str:
        """Why nothing of it can be called measured, or ""."""
        if self.joined:
            return self.joined
        much = self.contradicted_s > CONTRADICTED_SHARE * self.gpu_s
        return f"readings contradict each other: {self.contradiction}" if much else ""

    def spend(self, spent: Spent, reading: GpuReading) -> None:
        self.uuids.add(reading.uuid)
        self.gpu_s += spent.seconds
        if spent.joules is not None:
            self.energy_known_s += spent.seconds
            self.energy_j += spent.joules
        if spent.gap or reading.busy_ratio is None:
            return
        self.judged_s += spent.seconds
        if reading.busy_ratio < IDLE_RATIO:
            self.idle_j += spent.joules or 0.0
        if not working(reading):
            return
        self.busy_s += spent.seconds
        if not reading.on_purpose:
            for name in COUNTERS:
                self.counters.add(name, getattr(reading, name), spent.seconds)
        if reading.clock_mhz is None:
            self.untold_clocks_s += spent.seconds
            return
        self.clocked_s += spent.seconds
        self.purpose_s += spent.seconds if reading.on_purpose else 0.0


class Auditor:
    """Takes frames in the order of time."""

    def __init__(self) -> None:
        self._meters: dict[str, Meter] = {}
        self._paces: dict[str, GpuClocks] = {}
        self._facts: dict[str, OwnerTotals] = {}
        self._impossible: dict[str, int] = {}  # readings that cannot be, by figure
        self._contradictions: dict[str, tuple[set[str], float]] = {}  # GPUs and seconds, by line
        self._gap_s = self._untold_s = self._energy_j = 0.0
        self._first_s: float | None = None
        self._last_s = 0.0
        self._step_s = 0.0

    def take(self, frame: Frame) -> None:
        """One step. A GPU's first reading only starts its count."""
        if self._first_s is None:
            self._first_s = frame.at_s
        self._last_s, self._step_s = frame.at_s, frame.span_s
        teams: dict[str, list[GpuReading]] = {}
        for shown in frame.readings:
            reading, impossible, contradiction = believed(shown)
            for name in impossible:
                self._impossible[name] = self._impossible.get(name, 0) + 1
            meter = self._meters.setdefault(reading.uuid, Meter())
            spent = meter.step(reading, frame.at_s, frame.span_s)
            for part in spent:
                self._count(part, reading)
                self._doubt(part, reading, contradiction, meter.contradiction)
            if spent and not spent[-1].gap:
                teams.setdefault(reading.owner, []).append(reading)
                if working(reading) and reading.clock_mhz:
                    pace = self._paces.setdefault(reading.uuid, GpuClocks())
                    pace.work(reading, frame.span_s)
        for owner, readings in teams.items():
            if owner not in {NO_OWNER, SHARED, UNSEEN}:
                self._compare(self._facts[owner], readings, frame.span_s)

    def jobs(self) -> tuple[OwnerTotals, ...]:
        """Measured totals of each job so far, the largest first."""
        known = (f for name, f in self._facts.items() if name not in {NO_OWNER, SHARED, UNSEEN})
        return tuple(sorted(known, key=lambda f: (-f.energy_j, f.name)))

    def finish(
        self,
        names: Mapping[str, GpuName],
        savings: Mapping[str, tuple[FirstSaving, ...]],
        doubts: Mapping[str, str] | None = None,
    ) -> Audit:
        """The audit, with the predictions of each job, and why nothing of one can be measured."""
        for facts in self.jobs():
            facts.joined = (doubts or {}).get(facts.name, "")
        return Audit(
            gpus=len(self._meters),
            seconds=self._last_s - (self._first_s or 0.0) if self._first_s is not None else 0.0,
            energy_j=self._energy_j,
            jobs=tuple(_finding(f, savings.get(f.name, ())) for f in self.jobs()),
            rest=self._rest(),
            slow=slow_gpus(self._paces, names, self._step_s),
            resets=sum(meter.resets for meter in self._meters.values()),
            gap_s=self._gap_s,
            energy_unknown_s=self._untold_s,
            impossible=tuple(sorted(self._impossible.items())),
            contradictions=tuple(
                f"{line} ({len(uuids)} GPUs, {seconds / 3600.0:.2g} GPU hours)"
                for line, (uuids, seconds) in sorted(self._contradictions.items())
            ),
        )

    def _doubt(self, spent: Spent, reading: GpuReading, *lines: str) -> None:
        """Counts the time of readings that contradict each other."""
        found = [line for line in lines if line and not spent.gap]
        for line in found:
            kind = line if line in lines[:1] else "energy counter and power differ by over 10 %"
            uuids, seconds = self._contradictions.get(kind, (set(), 0.0))
            self._contradictions[kind] = ({*uuids, reading.uuid}, seconds + spent.seconds)
        if found:
            facts = self._facts[spent.owner]
            facts.contradicted_s += spent.seconds
            facts.contradiction = found[-1]

    def _count(self, spent: Spent, reading: GpuReading) -> None:
        facts = self._facts.setdefault(spent.owner, OwnerTotals(spent.owner))
        facts.spend(spent, reading)
        self._energy_j += spent.joules or 0.0
        self._gap_s += spent.seconds if spent.gap else 0.0
        self._untold_s += spent.seconds if spent.joules is None else 0.0

    def _compare(self, facts: OwnerTotals, readings: list[GpuReading], span_s: float) -> None:
        found = compare(readings)
        if found is None:
            return
        facts.compared_s += found.members * span_s
        for reading, usual_mhz in found.slow:
            self._paces[reading.uuid].lag(reading, usual_mhz, span_s)
        if not found.slow:
            return
        facts.slow_s += span_s
        if found.alike:
            facts.above_j += found.bloat_w * span_s
        else:
            facts.unlike_s += span_s

    def _rest(self) -> Remainder:
        free = self._facts.get(NO_OWNER, OwnerTotals(NO_OWNER))
        judged = free.judged_s >= 0.5 * free.gpu_s
        return Remainder(
            free_j=free.energy_j,
            free_idle_j=free.idle_j if judged else None,
            free_gpu_s=free.gpu_s,
            shared_j=self._facts.get(SHARED, OwnerTotals(SHARED)).energy_j,
            unseen_j=self._facts.get(UNSEEN, OwnerTotals(UNSEEN)).energy_j,
        )


def _finding(facts: OwnerTotals, savings: tuple[FirstSaving, ...]) -> JobFinding:
    judged = facts.judged_s >= 0.5 * facts.gpu_s
    idle = Amount.unknown("no series has the utilisation of its GPUs")
    if facts.doubt:
        idle = Amount.unknown(facts.doubt)
    elif judged:
        idle = Amount(
            facts.idle_j, "measured", f"busy for less than {100.0 * IDLE_RATIO:.0f} % of a step"
        )
    return JobFinding(
        name=facts.name,
        gpus=len(facts.uuids),
        gpu_s=facts.gpu_s,
        energy_known_s=facts.energy_known_s,
        busy_s=facts.busy_s if judged else None,
        energy_j=facts.energy_j,
        idle=idle,
        variability=_variability(facts),
        savings=savings,
    )


def _variability(facts: OwnerTotals) -> Amount:
    if facts.doubt:
        return Amount.unknown(facts.doubt)
    if not facts.compared_s:
        return Amount.unknown(_incomparable(facts))
    if facts.unlike_s > 0.5 * facts.slow_s:
        return Amount.unknown(
            "a GPU was slow, but the others do not do the same work: their waiting time "
            "cannot be measured from outside"
        )
    hours = facts.compared_s / 3600.0
    if not facts.slow_s:
        return Amount(0.0, "measured", f"no GPU slower than the others in {hours:.3g} GPU hours")
    text = f"drawn above the slowest GPU in the same seconds, {hours:.3g} GPU hours compared"
    return Amount(facts.above_j, "measured", text)


def _incomparable(facts: OwnerTotals) -> str:
    if facts.purpose_s:
        return "its clocks are set on purpose, so they are not compared"
    if facts.untold_clocks_s > facts.clocked_s:
        return "no series has the SM clocks of its GPUs"
    if not facts.judged_s:
        return "no series has the utilisation of its GPUs"
    return f"never {MEMBERS_MIN} or more of its GPUs at work at once"
