"""What a trace says, in words and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joulecut_cli import figures
from joulecut_lab.model.system import System
from joulecut_lab.trace.kernels import CLASSES, KernelClass, Recording
from joulecut_lab.trace.rates import Measured
from joulecut_lab.trace.replay import Occupancy, Played

UNKNOWN_SHOWN, NAME_SHOWN = 12, 100


@dataclass(frozen=True, slots=True)
class AtClock:
    """All ranks played at one clock, per step and rank."""

    clock_mhz: int | None
    played: tuple[Played, ...]
    seconds: dict[KernelClass, float]
    joules: dict[KernelClass, float] | None
    span_s: float
    used: Occupancy
    energy_j: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """The recorded clock first, then the replayed ones. `shares` do not follow the clock; those of
    `measured` classes come from recordings at two clocks.
    """

    recordings: Sequence[Recording]
    found: Sequence[AtClock]
    system: System | None
    shares: Mapping[KernelClass, float]
    measured: frozenset[KernelClass]
    card: Measured | None
    unknown: tuple[tuple[str, float], ...] = ()  # names and shares, where they are too much

    def as_json(self) -> dict[str, Any]:
        return {
            "ranks": len(self.recordings),
            "kernels": self._kernels,
            "steps": self.recordings[0].steps,
            "timed": all(r.timed for r in self.recordings),
            "without_time_stamp": self._dropped,
            "unknown": [{"name": name, "share": share} for name, share in self.unknown],
            "clocks": [
                {
                    "clock_mhz": one.clock_mhz,
                    "iteration_time_s": one.span_s,
                    "busy_s": one.used.busy_s,
                    "exposed_communication_s": one.used.exposed_s,
                    "energy_j": one.energy_j,
                    "class_s": one.seconds,
                    "class_j": one.joules,
                }
                for one in self.found
            ],
            "clock_independent_share": {
                kind: {"share": self.shares[kind], "basis": self._basis(kind)}
                for kind in self.found[0].seconds
            },
            "system_measured": self.card.values if self.card else None,
        }

    def as_text(self) -> list[str]:
        ranks, steps = len(self.recordings), self.recordings[0].steps
        counts = f"{ranks} rank{'s' * (ranks > 1)}, {self._kernels} kernels, "
        counts += f"{steps} step{'s' * (steps > 1)}"
        lines = [f"{counts}; figures are per step and rank"]
        if not all(r.timed for r in self.recordings):
            lines.append("This trace has no times: it describes work and its order alone.")
        if self._dropped:
            lines.append(f"{self._dropped} kernels with a time stamp of zero are left out.")
        lines += ["", *self._classes(), "", *self._clocks()]
        if self.unknown:
            share = sum(share for _, share in self.unknown)
            lines.append(
                f"{figures.percent(share)} of the time is of kernels without a class: no energy "
                "and no other clock is predicted"
            )
            lines += [
                f"  {figures.percent(share)} {name[:NAME_SHOWN]}"
                for name, share in self.unknown[:UNKNOWN_SHOWN]
            ]
        if self.system is not None:
            name = self.system.name
            lines.append(f"energy: predicted from power by class on {name}, not measured")
        if len(self.found) > 1:
            told = ", ".join(sorted(self.measured)) or "no class"
            lines.append(f"clock dependence: measured for {told}, assumed for the rest")
        if self.card is not None and self.card.values:
            values = ", ".join(
                f"{key} {value:.3g} ({self.card.kernels[key]} kernels)"
                for key, value in self.card.values.items()
            )
            lines.append(f"measured by the trace: {values}")
        return lines

    @property
    def _dropped(self) -> int:
        return sum(r.dropped for r in self.recordings)

    @property
    def _kernels(self) -> int:
        return sum(len(r.kernels) for r in self.recordings)

    def _basis(self, kind: KernelClass) -> str:
        return "measured" if kind in self.measured else "assumed"

    def _clocks(self) -> list[str]:
        head = ["", "step", "busy", "exposed network", "idle", "energy"]
        rows = []
        for place, one in enumerate(self.found):
            clock = "" if one.clock_mhz is None else f"{one.clock_mhz} MHz"
            name = ", ".join(filter(None, ["" if place else "as recorded", clock]))
            idle_s = max(0.0, one.span_s - one.used.busy_s)
            times = (one.span_s, one.used.busy_s, one.used.exposed_s, idle_s)
            rows.append([name, *map(figures.seconds, times), figures.joules(one.energy_j)])
        return figures.table(head, rows, frozenset(head[1:]))

    def _classes(self) -> list[str]:
        first, later = self.found[0], self.found[1:]
        total_s = sum(first.seconds.values())
        counts = dict.fromkeys(first.seconds, 0)
        for recording in self.recordings:
            for kernel in recording.kernels:
                counts[kernel.kind] += 1
        each = self.recordings[0].steps * len(self.recordings)
        energy = ["energy"] if first.joules is not None else []
        clocks = [f"at {one.clock_mhz} MHz" for one in later]
        fixed = ["clock-free"] if later else []
        head = ["class", "kernels", "time", "share", *energy, *clocks, *fixed]
        rows = []
        for kind in sorted(first.seconds, key=lambda k: (-first.seconds[k], CLASSES.index(k))):
            share = first.seconds[kind] / total_s if total_s else None
            row = [kind, f"{counts[kind] / each:.4g}", figures.seconds(first.seconds[kind])]
            row.append(figures.percent(share))
            if first.joules is not None:
                row.append(figures.joules(first.joules[kind]))
            row += [figures.seconds(one.seconds[kind]) for one in later]
            if later:
                row.append(f"{self.shares[kind] * 100:.0f} %, {self._basis(kind)}")
            rows.append(row)
        return figures.table(head, rows, frozenset(head[1:]))
