"""Which clocks to try next on a job that reports its rate alone.

A step goes to the cheapest clocks that most guesses of the job keep in time, at most one step of
the table below the measured ones, and even there at most half a point late. Stages that most likely
wait go first; those that are waited for stay, and their power shows how long they wait. Where no
step pays, a trial measures clocks that tell guesses apart: those that would allow cheaper clocks,
and the others. Late clocks are left at once, and risk is taken only from clocks that are surely in
time, so no two windows in a row are late.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulecut_controller.learn.advice import Advice, Verdict
from joulecut_controller.learn.clock_curves import Floats, Ints
from joulecut_controller.learn.evidence import OVER_RATIO, ExplorerInput, measurement_at
from joulecut_controller.learn.measurement_log import Measurement
from joulecut_controller.learn.rate_choices import Price, RateChoices
from joulecut_controller.learn.rate_guesses import FORM_SD


class Share(NamedTuple):
    """Of the guesses: how many keep clocks in time, and how many at most half a point late."""

    in_time: float
    nearly: float


KEPT = Share(0.97, 0.98)  # clocks to stay at; windows of one job err together, so more than a half
HELD = Share(0.94, 0.95)  # clocks to leave below it: each draw of 256 guesses is off by 1 %
TRIED = Share(0.7, 0.95)  # clocks to try once
HOPED = Share(0.25, 0.25)  # clocks that are worth a trial
# Clocks to try where a window has more noise than this: it would not show that they are late.
SURE, NOISE_MAX = Share(0.99, 0.99), 0.006
LATE = 0.5  # share of guesses at which clocks are left as late
# Of the guesses, where the time of a window bounds clocks below it: the bound is a worst case.
PROVEN = 0.7
GAIN_MIN = 0.002  # of the job's energy: the noise of counters over a window
# Price of a ratio of time, as a ratio of the job's energy: waiting stages alone are lowered at 4,
# at 1 also where one stage of a few may be waited for, at 0 all.
PRICES = (4.0, 1.0, 0.0)
LATER_MIN = 0.01  # of the time: steps that cost less are compared by their gain
# Standard deviations of a window by which guesses differ: enough, and more is worth nothing.
CLEAR_MIN, CLEAR = 2.0, 3.0
# A trial may cost as much as this times the gain that it may lead to, in one window.
PAYBACK_WINDOWS = 10
# After so many settings a trial has to promise twice the least gain, so that learning ends.
PROMISE_SETTINGS = 8
TRIAL_WINDOWS = 3  # at the same clocks: more tell nothing new
ANCHORS_PART = 4  # of the stages one in so many keeps its clock
# Of the log work of a stage, as its power at default clocks or a model of the run suggests it:
# GPUs of a kind differ by 8 % (public sweeps). It orders stages, and never keeps clocks in time.
HINT_SD = 0.1
LEAN = 0.02  # price of lowering a loaded stage: 0.005 % of the energy for a step and 5 % more work
VARIANCE_MIN = 1e-9  # of one stage alone, which has no other to differ from


class Ladder:
    """One decision. The first measurement is at default clocks, one of them at the clocks now."""

    def __init__(self, facts: ExplorerInput, measurements: Sequence[Measurement]) -> None:
        self._facts, self._measurements = facts, measurements
        self._choices = RateChoices(facts, measurements)
        self._base_s = measurements[0].time_s
        self._deadline_s = facts.slo.deadline_s(self._base_s)
        self._limit = float(np.log(self._deadline_s / self._base_s))
        self._noise = float(np.hypot(FORM_SD, np.median([m.stderr_ratio for m in measurements])))
        self._share = TRIED if self._noise <= NOISE_MAX else SURE
        self._now = self._choices.at(facts.now_mhz)
        self._default = self._choices.at(facts.constants.default_mhz)
        self._now_j = float(self._choices.joules(self._now[None])[0])
        self._load = self._likely_load()

    def advice(self) -> Advice:
        if self._base_s > self._deadline_s:
            reason = f"target unreachable: default clocks give {self._base_s:.4g} s an iteration"
            changed = not np.array_equal(self._now, self._default)
            return self._answer("raise" if changed else "enough", reason, self._default)
        if (self._choices.slowdowns(self._now[None])[0] > self._limit).mean() > LATE:
            now_s = float(self._choices.time_s(self._now[None])[0])
            reason = f"{now_s:.4g} s an iteration, {self._deadline_s:.4g} s allowed"
            return self._answer("raise", reason, self._kept())
        if not self._allowed(self._now[None], HELD)[0]:
            reason = "in time, but without a margin: returning to clocks that are surely in time"
            return self._answer("settle", reason, self._kept())
        step = max((self._anchored(self._tried(price)) for price in PRICES), key=self._worth)
        gain = self._gain(step)
        pays = gain >= GAIN_MIN
        trial = self._trial(gain if pays else 0.0)
        if trial is not None:
            return self._try(trial)
        return self._step(step, gain) if pays else self._enough(gain)

    # -- steps ---------------------------------------------------------------------------------

    def _allowed(self, rows: Ints, share: Share) -> NDArray[np.bool_]:
        choices = self._choices
        nearly = choices.band(rows, share.nearly)
        if share is not HOPED:  # any job must be nearly in time below what was measured
            proven = choices.proven(rows, PROVEN)
            nearly = np.where(choices.unseen(rows), np.maximum(nearly, proven), nearly)
        in_time = choices.band(rows, share.in_time) <= self._limit
        return np.asarray(in_time & (nearly <= self._limit + OVER_RATIO))

    def _energy(self, of_time: float) -> Price:
        """Energy over that of the clocks now, with a price of time over that at default clocks."""

        def price(rows: Ints) -> Floats:
            slower = self._choices.time_s(rows) / self._base_s
            energy = self._choices.joules(rows) / self._now_j
            return np.asarray(energy + of_time * slower + self._lean(rows))

        return price

    def _kept(self) -> Ints:
        """The cheapest clocks within the measured range that may be stayed at."""

        def allowed(rows: Ints) -> NDArray[np.bool_]:
            return np.asarray(self._allowed(rows, KEPT) & ~self._choices.unseen(rows))

        return self._choices.cheapest(self._now, self._energy(0.0), allowed)

    def _tried(self, of_time: float) -> Ints:
        """The cheapest clocks to step to: below the measured ones for once, else to stay at."""

        def allowed(rows: Ints) -> NDArray[np.bool_]:
            once = self._choices.unseen(rows)
            return np.where(once, self._allowed(rows, self._share), self._allowed(rows, KEPT))

        return self._choices.cheapest(self._now, self._energy(of_time), allowed)

    def _gain(self, at: Ints) -> float:
        return 1.0 - float(self._choices.joules(at[None])[0]) / self._now_j

    def _worth(self, at: Ints) -> float:
        """Gain over what it costs in time; 0 where the gain is noise."""
        gain = self._gain(at)
        times_s = self._choices.time_s(np.array([self._now, at]))
        later = max(0.0, float(times_s[1] / times_s[0]) - 1.0)
        return gain / (LATER_MIN + later) if gain >= GAIN_MIN else 0.0

    def _anchored(self, wanted: Ints) -> Ints:
        """The same with a quarter of the stages at the clocks now, if all would be lowered: those
        that are most likely waited for. How long these wait shows in their power.
        """
        if len(wanted) == 1 or not (wanted < self._now).all():
            return wanted
        held = np.argsort(-self._load, kind="stable")[: -(-len(wanted) // ANCHORS_PART)]
        made = wanted.copy()
        made[held] = self._now[held]
        return made

    def _likely_load(self) -> Floats:
        """log of the time that stages work now, as likely by guesses and hint."""
        logs = self._choices.guesses.log_busy(self._choices.fall(self._now[None])[0])
        sure, hinted = 1.0 / (logs.var(axis=1) + VARIANCE_MIN), HINT_SD**-2.0
        return np.asarray((sure * logs.mean(axis=1) + hinted * self._hint()) / (sure + hinted))

    def _lean(self, rows: Ints) -> Floats:
        """Next to nothing: of alike choices the one that lowers the stages that likely wait."""
        return np.asarray(LEAN * (self._choices.fall(rows) @ self._load))

    def _hint(self) -> Floats:
        """log work of stages by a model of the run, or else by power against GPUs of the kind."""
        predicted = self._facts.constants.predicted_work
        logs = np.log(np.array(predicted or self._measurements[0].energy_j))
        kinds = np.zeros(len(logs)) if predicted else np.array(self._facts.alike)
        for kind in np.unique(kinds):
            logs[kinds == kind] -= logs[kinds == kind].mean()
        return np.asarray(logs)

    # -- trials --------------------------------------------------------------------------------

    def _trial(self, gain: float) -> Ints | None:
        """Clocks that tell guesses apart, where this promises more than the next step.

        The guesses are those that keep the hoped clocks in time, and the others.
        """
        choices = self._choices
        hoped = choices.cheapest(
            self._now, self._energy(0.0), lambda rows: self._allowed(rows, HOPED)
        )
        lucky = choices.slowdowns(hoped[None])[0] <= self._limit
        promise = self._gain(hoped)
        least = GAIN_MIN * (1.0 + len(self._measurements) / PROMISE_SETTINGS)
        if promise * lucky.mean() < max(gain, least) or lucky.all():
            return None

        def price(rows: Ints) -> Floats:
            slow = choices.slowdowns(rows)
            apart = np.abs(slow[:, lucky].mean(axis=1) - slow[:, ~lucky].mean(axis=1))
            dearer = choices.joules(rows) / self._now_j - 1.0
            clear = np.minimum(CLEAR, apart / self._noise)
            return np.asarray(dearer / (PAYBACK_WINDOWS * promise) - clear + self._lean(rows))

        found = choices.cheapest(self._now, price, lambda rows: self._allowed(rows, self._share))
        found = self._anchored(found)
        if price(found[None])[0] > -CLEAR_MIN:
            return None
        held = measurement_at(self._measurements, choices.clocks_mhz(found))
        often = TRIAL_WINDOWS * self._facts.window_iterations
        return None if held is not None and held.iterations >= often else found

    # -- answers -------------------------------------------------------------------------------

    def _try(self, at: Ints) -> Advice:
        lowered = [s for s in range(len(at)) if at[s] < self._now[s]]
        clocks = self._choices.clocks_mhz(at)
        reason = f"{_words(clocks)} MHz: which stage the others wait for there"
        return self._answer("probe", reason, at, tuple(lowered))

    def _step(self, at: Ints, gain: float) -> Advice:
        clocks, lowest = self._choices.clocks_mhz(at), self._choices.lowest_mhz
        below = tuple(s for s, low in enumerate(lowest) if clocks[s] < low)
        if not below:
            reason = f"{gain:.1%} less energy, within the measured range"
            return self._answer("settle", reason, at)
        named = f"stage{'s' if below[1:] else ''} {', '.join(map(str, below))}"
        mhz, low_mhz = (_words([own[s] for s in below]) for own in (clocks, lowest))
        reason = f"{named} to {mhz} MHz: the lowest measured there is {low_mhz} MHz"
        return self._answer("probe", reason, at, below)

    def _enough(self, gain: float) -> Advice:
        share, doubt = self._choices.guesses.clock_share
        return self._answer(
            "enough",
            f"nothing more to learn that pays: the next step is worth {max(gain, 0.0):.2%} of the "
            f"energy, {GAIN_MIN:.2%} is the noise; {share:.2f} ± {doubt:.2f} of the work follows "
            f"the clock; measured down to {_words(self._choices.lowest_mhz)} MHz",
            self._now,
        )

    def _answer(
        self, verdict: Verdict, reason: str, at: Ints, stages: tuple[int, ...] = ()
    ) -> Advice:
        choices = self._choices
        energy_j, default_j = choices.joules(np.array([at, self._default]))
        clocks = self._facts.now_mhz if at is self._now else choices.clocks_mhz(at)
        return Advice(
            verdict,
            reason,
            clocks,
            stages,
            gain_ratio=1.0 - float(energy_j) / self._now_j,
            time_s=float(choices.time_s(at[None])[0]),
            time_high_s=self._base_s * float(np.exp(choices.band(at[None], KEPT.in_time)[0])),
            deadline_s=self._deadline_s,
            energy_j=float(energy_j),
            baseline_energy_j=float(default_j),
            baseline_time_s=self._base_s,
            lowest_mhz=choices.lowest_mhz,
            measurements=len(self._measurements),
        )


def _words(clocks_mhz: Sequence[int]) -> str:
    return "/".join(map(str, clocks_mhz))
