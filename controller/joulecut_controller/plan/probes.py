"""Which stage to lower next beyond what was measured, and where room for it is made.

Two kinds of probe: towards what the fit takes for cheapest, and where the fit itself may be
wrong, because a stage that waits looks like one that is nearly waited for. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from joulecut_controller.plan.evidence import STEP_RATIO, Evidence
from joulecut_controller.plan.search import cheapest

ROOM_STEPS = 4  # clocks by which another stage is raised to make room for a probe
# Making room costs energy for a window. After so many settings a stage, what a noisy fit still
# promises is its own noise.
ROOM_READINGS = 10
# Less than this of the job's energy is under the noise of a window's energy counters.
GAIN_MIN = 0.0015
# A step that promises nothing on the mean, and this much if the guess is one standard
# deviation too gloomy, is worth a window.
HOPE_MIN = 0.004
HOPE_STEPS = 5
# A stage is supposed to have so much less work than the fit takes it to have.
LIGHTER_RATIOS = (0.06, 0.02)
SUPPOSED_MIN = 0.002  # what that has to promise
SUPPOSED_STEPS = 10  # clocks by which others are raised to try it


@dataclass(frozen=True, slots=True)
class Probe:
    """One stage below its evidence. `gain_ratio` is of the present energy, of this step or, of a
    supposed one, of what it leads to."""

    gain_ratio: float
    stage: int
    clocks_mhz: tuple[int, ...]


class Probes:
    """Questions to one state of the evidence."""

    def __init__(self, known: Evidence) -> None:
        self._known = known
        self._young = len(known.readings) < ROOM_READINGS * len(known.lowest)

    def promising(self) -> Probe | None:
        """One stage lowered towards what looks cheapest; else one that might be better than it
        looks. Where the worst case leaves no room, another stage is raised meanwhile.
        """
        known, now = self._known, self._known.facts.now_mhz
        now_j = known.judge_one(now)[1]
        wanted = cheapest(known.facts.grids, now, known.judge, known.deadline_s)
        target = wanted.clocks_mhz if wanted else now  # may lie many steps away
        gain = 1.0 - wanted.cost / now_j if wanted else 0.0
        if gain >= GAIN_MIN and not known.known(target):
            raised = tuple(map(max, zip(now, target, strict=True)))
            steps = self._steps(raised, target)
            if not steps and self._young:
                steps = self._steps_with_room(raised, target)
            if steps:
                return max(steps, key=_order)
        lowest = tuple(grid[0] for grid in known.grids)
        hopes = [(self._hope(p.stage, now_j), _order(p), p) for p in self._steps(now, lowest)]
        if hopes and max(hopes)[0] >= HOPE_MIN:
            return max(hopes)[2]
        last = max(self._steps(now, lowest, hopeful=True), key=_order, default=None)
        return last if last is not None and last.gain_ratio >= GAIN_MIN else None

    def supposed(self) -> Probe | None:
        """A stage lowered because it may have less work than the fit takes it to have: while it
        was never seen to be waited for, readings cannot tell. The worst case is still that of
        the fit as it is; room for it is made elsewhere.
        """
        known, found = self._known, []
        for stage in range(len(known.lowest) if self._young else 0):
            for ratio in LIGHTER_RATIOS:
                model = known.model.lighter(stage, ratio)
                if model is None:
                    continue
                probe = self._if_so(Evidence(known.facts, known.readings, model), stage, ratio)
                if probe is not None:
                    found.append(probe)
                    break
        return max(found, key=_order, default=None)

    def _if_so(self, other: Evidence, stage: int, ratio: float) -> Probe | None:
        """What lowering this stage would promise in the end, and the next step towards it."""
        now = other.facts.now_mhz
        start = (*now[:stage], int(now[stage] * (1.0 - ratio)), *now[stage + 1 :])
        wanted = cheapest(other.facts.grids, start, other.judge, other.deadline_s)
        if wanted is None or wanted.clocks_mhz[stage] >= other.lowest[stage]:
            return None
        gain = 1.0 - wanted.cost / other.judge_one(now)[1]
        if gain < SUPPOSED_MIN:
            return None
        for base in self._roomier(stage):
            for mhz in self._known.grids[stage]:
                step = (*base[:stage], mhz, *base[stage + 1 :])
                if not wanted.clocks_mhz[stage] <= mhz < other.lowest[stage]:
                    continue
                in_time = other.judge_one(step)[0] <= other.deadline_s
                if in_time and self._known.affordable(step):
                    return Probe(gain, stage, step)
        return None

    def _hope(self, stage: int, now_j: float) -> float:
        """What this stage may save at best some steps further down: under a power cap the first
        of them show nothing, and only the far ones tell whether to go on.
        """
        step_mhz = STEP_RATIO * self._known.facts.ground.clock_max_mhz
        hopes = [0.0]
        for steps in range(1, HOPE_STEPS + 1):
            floor_mhz = self._known.lowest[stage] - steps * step_mhz
            aim = next((mhz for mhz in self._known.facts.grids[stage] if mhz >= floor_mhz), None)
            if aim is not None and aim < self._known.lowest[stage]:
                now = self._known.facts.now_mhz
                far = (*now[:stage], aim, *now[stage + 1 :])
                time_s, cost_j = self._known.judge_one(far)
                if time_s <= self._known.deadline_s:
                    hopes.append(1.0 - cost_j / now_j + self._known.gain_doubt(far, now_j))
        return max(hopes)

    def _steps(
        self, base_mhz: tuple[int, ...], aim_mhz: tuple[int, ...], *, hopeful: bool = False
    ) -> list[Probe]:
        """One for every stage that can be lowered beyond its evidence."""
        now_j = self._known.judge_one(self._known.facts.now_mhz)[1]
        made = []
        for stage, low in enumerate(self._known.lowest):
            step = self._lowered(base_mhz, stage, aim_mhz[stage], low, hopeful=hopeful)
            if step is not None:
                made.append(Probe(1.0 - self._known.judge_one(step)[1] / now_j, stage, step))
        return made

    def _steps_with_room(self, base_mhz: tuple[int, ...], aim_mhz: tuple[int, ...]) -> list[Probe]:
        """The same after one stage, or all but one, was raised by as little as needed."""
        for up in range(1, ROOM_STEPS + 1):
            higher = tuple(
                next(iter([mhz for mhz in grid if mhz > base][up - 1 : up]), grid[-1])
                for base, grid in zip(base_mhz, self._known.grids, strict=True)
            )
            stages = range(len(base_mhz))
            one = [tuple(higher[s] if s == o else base_mhz[s] for s in stages) for o in stages]
            most = [tuple(base_mhz[s] if s == o else higher[s] for s in stages) for o in stages]
            for bases in (one, most):
                made = [step for base in bases for step in self._steps(base, aim_mhz)]
                if made:
                    return made
        return []

    def _lowered(
        self,
        base_mhz: tuple[int, ...],
        stage: int,
        aim_mhz: int,
        low_mhz: int,
        *,
        hopeful: bool = False,
    ) -> tuple[int, ...] | None:
        """The stage below its evidence and as near to its aim as the worst case allows."""
        for mhz in self._known.grids[stage]:
            if aim_mhz <= mhz < low_mhz:
                step = (*base_mhz[:stage], mhz, *base_mhz[stage + 1 :])
                if self._known.fits(step, hopeful=hopeful):
                    return step
        return None

    def _roomier(self, stage: int) -> Iterator[tuple[int, ...]]:
        """The present clocks, then others of the stages raised step by step."""
        now = self._known.facts.now_mhz
        yield now
        for up in range(1, SUPPOSED_STEPS + 1):
            higher = [
                next(iter([m for m in grid if m > mhz][up - 1 : up]), grid[-1])
                for mhz, grid in zip(now, self._known.grids, strict=True)
            ]
            for only in range(len(now)):
                if only != stage:
                    yield tuple(higher[s] if s == only else mhz for s, mhz in enumerate(now))
            yield tuple(mhz if s == stage else higher[s] for s, mhz in enumerate(now))


def _order(probe: Probe) -> tuple[float, int, tuple[int, ...]]:
    return probe.gain_ratio, probe.stage, probe.clocks_mhz
