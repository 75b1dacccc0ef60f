"""Everything one estimator has learnt, as one: forgotten, fitted and written down together.

Evidence, biases, watches and curves belong to each other: a workload forgotten in one and
kept in another would be predicted from work that no longer exists. So there is one place
that holds them all, and one that a state is read back into: all of it, or nothing.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joulecut_engine.estimate.admission import Admission
from joulecut_engine.estimate.bias import LOG_MAX, Biases, GpuBias
from joulecut_engine.estimate.drift import Watch
from joulecut_engine.estimate.evidence import fingerprint
from joulecut_engine.estimate.forest import Fitted
from joulecut_engine.estimate.in_force import InForce
from joulecut_engine.estimate.memory import NOT_A_STATE, dump_snapshot, load_snapshot
from joulecut_engine.estimate.metadata import Told
from joulecut_engine.estimate.plausible import Plausibility
from joulecut_engine.estimate.pooled import Snapshot, refit
from joulecut_engine.estimate.window import Cell, Reading, Window
from joulecut_engine.graph.pipeline import Profile

STATE_VERSION = 2
REFIT_EVERY = 25  # accepted samples: the public stream experiment's


class Learnt:
    """`cells_max` bounds the evidence; every other part has a bound of its own."""

    def __init__(self, cells_max: int) -> None:
        self.admission = Admission()
        self.window = Window(cells_max)
        self.biases = Biases()
        self.watch = Watch()
        self.told = Told()
        self.plausibility = Plausibility()
        self.in_force = InForce(cells_max)
        self.profiles: dict[str, Profile] = {}
        self.refused: Counter[str] = Counter()
        self.separated: Counter[str] = Counter()
        self._number = 0
        self._since_snapshot = 0
        self._new_clock = False

    # -- one reading ---------------------------------------------------------------------

    def number(self) -> int:
        """Of the reading that is learnt next."""
        self._number += 1
        return self._number

    def add(self, cell: Cell, reading: Reading) -> None:
        """Holds a reading against what was expected, and only then learns from it."""
        drifted = self._compare(cell, reading)
        self._new_clock |= self.window.add(cell, reading)
        self._since_snapshot += 1
        self._move(cell, reading)
        if drifted:
            since = self.watch.since(cell.workload, cell.uuid)
            self.window.forget_before(cell.workload, cell.uuid, since)
            self._replay(cell.workload, cell.uuid)
            self._new_clock = True

    # -- one workload --------------------------------------------------------------------

    def set_profiles(self, profiles: Mapping[str, Profile]) -> None:
        """Sweeps that count beside what running work shows, by workload.

        Work whose profile is another now, or gone, begins anew.
        """
        for workload in sorted(self.profiles.keys() | profiles.keys()):
            old, new = self.profiles.get(workload), profiles.get(workload)
            if old is not None and new is not None and old.options == new.options:
                continue
            self.forget(workload)
            self.profiles.pop(workload, None)
            if new is not None:
                self.profiles[workload] = new

    def forget(self, workload: str) -> None:
        """The next sample of this workload is the first."""
        self.window.forget(workload)
        self.biases.forget(workload)
        self.watch.forget(workload)
        self.admission.forget(workload)
        self.told.forget(workload)
        self.plausibility.forget(workload)
        self.in_force.forget(workload)
        self._new_clock = True  # curves of other work learnt from this one

    # -- fitting -------------------------------------------------------------------------

    def due(self) -> bool:
        """Whether a new fit would know more: a clock never seen, or enough samples."""
        return self._new_clock or self._since_snapshot >= REFIT_EVERY

    def snapshot(self) -> Snapshot:
        """Everything a fit may know, immutable."""
        self._since_snapshot, self._new_clock = 0, False
        return Snapshot(
            number=self._number,
            cells=tuple(self.window.cells()),
            cards=dict(self.told.cards),
            shapes=dict(self.told.shapes),
            profiles=dict(self.profiles),
        )

    def adopt(self, taken: Snapshot, fitted: Fitted) -> None:
        """Puts a fit in force and takes every bias anew against it."""
        alive = {(c.workload, c.stage, c.kind) for c, _ in self.window.cells()}
        curves = {
            work: curve
            for work, curve in fitted.curves.items()
            if (work.workload, work.stage, work.kind) in alive
            or taken.profiles.get(work.workload) is not None
        }
        for workload in self._outdated(taken):
            curves = {work: curve for work, curve in curves.items() if work.workload != workload}
        self.in_force.put(taken, replace(fitted, curves=curves))
        self.watch.refitted(self.profiles)
        for key, _ in self.biases.items():  # noqa: PERF102 -- its own class, no mapping
            self._replay(*key)

    # -- remembering ---------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything learnt, as JSON-able values."""
        return {
            "version": STATE_VERSION,
            "number": self._number,
            "since_snapshot": self._since_snapshot,
            "new_clock": self._new_clock,
            "admission": self.admission.state(),
            "window": self.window.state(),
            "biases": self.biases.state(),
            "watch": self.watch.state(),
            "strange": self.plausibility.state(),
            "refused": dict(sorted(self.refused.items())),
            "separated": dict(sorted(self.separated.items())),
            "now": dump_snapshot(Snapshot(0, (), self.told.cards, self.told.shapes)),
            "taken": dump_snapshot(self.in_force.taken),
            "profiles": {name: fingerprint(p) for name, p in self.profiles.items()},
            "outdated": sorted(self._outdated(self.in_force.taken)),
            "curves": sorted([w.workload, w.stage, w.kind] for w in self.in_force.fitted.curves),
        }

    @classmethod
    def restored(
        cls, state: Mapping[str, Any], profiles: Mapping[str, Profile], cells_max: int
    ) -> "Learnt":
        """What `state` wrote down, and one fit. Raises ValueError where it is no state.

        Profiles are not part of it: what was learnt beside a profile that is no longer the
        same is left out.
        """
        made = cls(cells_max)
        made.profiles = dict(profiles)
        try:
            made._take(state)
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise ValueError(f"{NOT_A_STATE}: {error}") from None
        return made

    def _take(self, state: Mapping[str, Any]) -> None:
        if state["version"] != STATE_VERSION:
            raise ValueError(f"version {state['version']!r}, not {STATE_VERSION}")
        self._number, self._since_snapshot = int(state["number"]), int(state["since_snapshot"])
        self._new_clock = bool(state["new_clock"])
        self.admission.restore(state["admission"]["newest"], state["admission"]["seen"])
        self.window.restore(state["window"])
        self.biases.restore(state["biases"])
        self.watch.restore(state["watch"])
        self.plausibility.restore(state["strange"])
        self.refused.update({str(k): int(v) for k, v in state["refused"].items()})
        self.separated.update({str(k): int(v) for k, v in state["separated"].items()})
        self.told.restore(load_snapshot(state["now"]))
        same = {
            name: profile
            for name, profile in self.profiles.items()
            if state["profiles"].get(name) == fingerprint(profile)
        }
        outdated = {str(name) for name in state["outdated"]}
        taken = replace(
            load_snapshot(state["taken"]),
            profiles={name: p for name, p in same.items() if name not in outdated},
        )
        kept = {(str(w), int(s), str(k)) for w, s, k in state["curves"]}
        fitted = refit(taken)
        curves = {w: c for w, c in fitted.curves.items() if (w.workload, w.stage, w.kind) in kept}
        self.in_force.put(taken, replace(fitted, curves=curves))
        for name in sorted((state["profiles"].keys() | self.profiles.keys()) - same.keys()):
            self.forget(name)

    def _outdated(self, taken: Snapshot) -> set[str]:
        """Workloads whose profile came, went or changed since a snapshot was taken."""
        names = self.profiles.keys() | taken.profiles.keys()
        return {name for name in names if self.profiles.get(name) is not taken.profiles.get(name)}

    # -- inside --------------------------------------------------------------------------

    def _compare(self, cell: Cell, reading: Reading) -> bool:
        """Whether this reading is the one that makes it a drift."""
        expected = self.in_force.expect(cell)
        if expected is None:
            return False
        if cell.workload in self.profiles and not self.in_force.fitted_to(cell):
            return False  # a profile that is off there is corrected by the next fit
        error = math.log(reading.time_s) - expected.time
        error -= self.biases.get(cell.workload, cell.uuid).time.mean
        return self.watch.saw(
            cell.workload,
            cell.uuid,
            error=error,
            outside=not expected.low <= error <= expected.high,
            clock_mhz=cell.clock_mhz,
            number=reading.number,
        )

    def _move(self, cell: Cell, reading: Reading) -> None:
        """Moves the bias of a GPU by one reading; without a curve it stays where it is."""
        expected = self.in_force.expect(cell)
        old = self.biases.get(cell.workload, cell.uuid)
        if expected is None:
            self.biases.put(cell.workload, cell.uuid, old)  # so that a fit finds whom to replay
            return
        off = math.log(reading.time_s) - expected.time
        time = old.time.after(max(-LOG_MAX, min(LOG_MAX, off)), reading.weight)
        power = old.power
        if reading.power_w is not None:
            off = math.log(reading.power_w) - expected.power
            power = power.after(max(-LOG_MAX, min(LOG_MAX, off)), reading.weight)
        self.biases.put(cell.workload, cell.uuid, GpuBias(time, power))

    def _replay(self, workload: str, uuid: str) -> None:
        """Takes a bias anew from the readings at hand, against the curves in force."""
        self.biases.put(workload, uuid, GpuBias())
        for cell, reading in self.window.of_gpu(workload, uuid):
            self._move(cell, reading)
