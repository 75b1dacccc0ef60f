"""Accumulates frames of readings into findings; memory grows with GPUs and jobs, not with time.

Pure: frames in, an `Audit` out. Savings are predicted by `first_saving` from the facts kept here,
and joined at the end. An energy counter falls back to zero when the driver is reloaded, and is
silent while its exporter is down. Its value after a silence still counts the energy used; only the
owner of that energy may be lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from joulecut_lab.audit.finding import Audit, FirstSaving, JobFinding, Remainder
from joulecut_lab.audit.reading import (
    NO_OWNER,
    POWER_W_MAX,
    SHARED,
    UNSEEN,
    Frame,
    GpuReading,
    Means,
    believed,
)

# Two readings so many steps apart: something was missed.
GAP_STEPS = 1.5
# Counter and power of one board: averages over a step differ, an hour of them does not.
AGREE_S, AGREE_RATIO = 3_600.0, 0.1
APART = "energy counter and power differ by over 10 %"
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
            apart_j = abs(self.counted_j - self.integrated_j)
            self.contradiction = APART if apart_j > AGREE_RATIO * self.integrated_j else ""
            self.compared_s = self.counted_j = self.integrated_j = 0.0


IDLE_RATIO = 0.05  # below this share of a step nothing but housekeeping ran
BUSY_RATIO = 0.5  # "at work" in a step

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
        if reading.busy_ratio < BUSY_RATIO:
            return
        self.busy_s += spent.seconds
        if not reading.on_purpose:
            for name in COUNTERS:
                self.counters.add(name, getattr(reading, name), spent.seconds)


class Auditor:
    """Takes frames in the order of time."""

    def __init__(self) -> None:
        self._meters: dict[str, Meter] = {}
        self._facts: dict[str, OwnerTotals] = {}
        self._impossible: dict[str, int] = {}  # readings that cannot be, by figure
        self._contradictions: dict[str, tuple[set[str], float]] = {}  # GPUs and seconds, by line
        self._gap_s = self._untold_s = self._energy_j = 0.0
        self._first_s: float | None = None
        self._last_s = 0.0

    def take(self, frame: Frame) -> None:
        """One step. A GPU's first reading only starts its count."""
        if self._first_s is None:
            self._first_s = frame.at_s
        self._last_s = frame.at_s
        for shown in frame.readings:
            reading, impossible, contradiction = believed(shown)
            for name in impossible:
                self._impossible[name] = self._impossible.get(name, 0) + 1
            meter = self._meters.setdefault(reading.uuid, Meter())
            for part in meter.step(reading, frame.at_s, frame.span_s):
                self._count(part, reading)
                self._doubt(part, reading, contradiction, meter.contradiction)

    def jobs(self) -> tuple[OwnerTotals, ...]:
        """Measured totals of each job so far, the largest first."""
        known = (f for name, f in self._facts.items() if name not in {NO_OWNER, SHARED, UNSEEN})
        return tuple(sorted(known, key=lambda f: (-f.energy_j, f.name)))

    def finish(
        self,
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
            uuids, seconds = self._contradictions.get(line, (set(), 0.0))
            self._contradictions[line] = ({*uuids, reading.uuid}, seconds + spent.seconds)
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
    unknown = facts.doubt or ("" if judged else "no series has the utilisation of its GPUs")
    return JobFinding(
        name=facts.name,
        gpus=len(facts.uuids),
        gpu_s=facts.gpu_s,
        energy_known_s=facts.energy_known_s,
        busy_s=facts.busy_s if judged else None,
        energy_j=facts.energy_j,
        idle_j=None if unknown else facts.idle_j,
        idle_text=unknown or f"busy for less than {100.0 * IDLE_RATIO:.0f} % of a step",
        savings=savings,
    )
