"""The phases of the demo: recommend, enforce, a straggler, and a reset of every GPU.

Each phase says what it shows before it begins, and what was measured when it ends.
"""

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from joulecut_controller.policy.policy import TOLERANCE_RATIO
from joulecut_engine.money import Iteration, Prices, worth
from joulecut_sim.card import now_s
from joulecut_sim.demo import layout, summary
from joulecut_sim.demo.cluster import Cluster, Say, check_port
from joulecut_sim.demo.layout import TTL_S, Folder
from joulecut_sim.demo.settings import (
    JOB,
    MICROBATCHES,
    NODES,
    SLOWDOWN,
    STAGES,
    Phases,
    Settings,
)
from joulecut_sim.demo.summary import Possible, Tally
from joulecut_sim.demo.watch import Follower, Stopped, Watch, get_json, pulse
from joulecut_sim.results import Window
from joulecut_wire.command import FINE, INTERRUPTED
from joulecut_wire.errors import Unavailable

PATIENCE_S = 90.0  # beyond a phase's time, for a busy machine to get there
PLAN_WAIT_S = 180.0  # for the plan of a phase: solving takes a minute on a busy processor
COMPILE_S = 1200.0  # of the solver, once after an install: half a minute on an idle processor
DEFAULT = "default clocks"
POLL_S = 0.3  # between two looks at the job's page, which cost a busy machine more than waiting
DEADLINE_RATIO = 0.003  # a plan is of a target whose deadline it has, but for the baseline's drift
WARM_S = 1.0  # the first iterations, while processes still start, are not judged
STRAGGLER_RATIO = 1.15  # of the job's own iteration: a sibling with one throttled GPU
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def holds(job: dict[str, Any], slowdown: float) -> bool:
    """Whether the policy in force allows this slowdown, and the applied plan is one for it, not one
    for the target before or for a straggler. `job` is the controller's answer.
    """
    asked, applied = job.get("slo") or {}, job.get("applied") or {}
    if job.get("mode") != "enforce" or not asked.get("deadline_s"):
        return False
    promised_s = applied.get("deadline_s") or 0.0
    near = abs(promised_s / asked["deadline_s"] - 1.0) <= DEADLINE_RATIO
    return bool(asked.get("max_slowdown_ratio") == slowdown and near)


def play(settings: Settings, say: Say, show: Callable[[str], None], possible: Possible) -> int:
    """Runs one demo; its exit status. Leaves no process, no file and no lock behind.

    `show` opens the page for a person; `possible` says what a plan could have saved at most.
    Raises BadInput, and Unavailable with one sentence for whatever did not go as it should.
    """
    check_port(settings.port)
    course = Course(settings, Folder.make(), say=say, show=show, possible=possible)
    with _signals(course.watch):
        try:
            failure = course.run()
        finally:
            left = course.end()
    course.conclude()
    if left or failure:
        raise Unavailable(left or failure)
    cut_short = settings.duration_s is not None and not course.finished
    return INTERRUPTED if cut_short else FINE


@contextmanager
def _signals(watch: Watch) -> Iterator[None]:
    """Asking to end sets a flag, so that nothing is left half done; asking twice as well."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        watch.stopping = True

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Course:
    """The phases and their measurements."""

    def __init__(
        self, settings: Settings, folder: Folder, *,
        say: Say, show: Callable[[str], None], possible: Possible,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._possible = possible
        self._folder = folder
        self._say = say
        self._show = show
        self._phases = Phases.within(settings.duration_s)
        self._tally = Tally(gpus_total=STAGES)
        self._cluster: Cluster | None = None
        self._seen: dict[str, Any] = {}
        self._seen_s = -math.inf
        self._began_s = now_s()
        self.watch = Watch(say, Follower(folder.results))
        self.finished = False

    def run(self) -> str:
        """All phases; what went wrong, or nothing."""
        try:
            self._start()
            self._recommend()
            self._enforce_at_zero()
            self._enforce()
            self._straggle()
            self._recover()
            self._hold_out()
            if self._settings.duration_s is None:
                self.watch.run(math.inf)
            self.finished = True
            self._give_back()
        except Stopped:
            self._say("ending: every GPU is reset")
        except Unavailable as error:
            return str(error)
        return ""

    def end(self) -> str:
        """Ends all processes and checks the state they left; the fault, or empty."""
        cluster = self._cluster
        if cluster is None:
            self._folder.remove()
            return ""
        self._tally.gpus_restored = cluster.stop()
        self._folder.remove()
        if self._tally.gpus_restored < STAGES:
            return f"{STAGES - self._tally.gpus_restored} GPUs are not back at default clocks"
        return ""

    # -- the phases ----------------------------------------------------------------------

    def _start(self) -> None:
        settings = self._settings
        self._say(
            f"Joulecut demo: {len(NODES)} simulated nodes, {STAGES} x {settings.sku.model}, "
            f"one GPT-3 175B job of {STAGES} stages x {MICROBATCHES} microbatches"
        )
        layout.write_job(self._folder, settings)
        layout.write_control(self._folder, None)
        # The plan that is applied first is computed while the baseline is measured.
        layout.write_policy(self._folder, settings, "recommend", 0.0)
        self._cluster = Cluster(self._folder, settings, self._say, self.watch.pause)
        self.watch.cluster = self._cluster
        self._cluster.start()
        self._say(f"  page            http://{self._cluster.page}/")
        self._show(f"http://{self._cluster.page}/")

    def _recommend(self) -> None:
        tally, watch = self._tally, self.watch
        self._say(
            "recommend: the baseline is measured and a plan is shown; no clock is touched "
            f"({self._phases.recommend_s:.0f} s)"
        )
        watch.judge(tally.baseline, now_s() + WARM_S)
        watch.run(self._phases.recommend_s)
        if self._compiles():
            self._say("  the solver is being compiled, once after an install")
            watch.run(COMPILE_S, until=lambda: not self._compiles())
        watch.run(PATIENCE_S, until=self._decided)
        tally.mode = str(self._job().get("mode", "off"))
        tally.commands_while_recommending = watch.count_commands()
        watch.judge(None)
        time_s, energy_j = tally.baseline.time_s, tally.baseline.energy_j
        if time_s is None or energy_j is None:
            raise Unavailable("the job reported no whole iteration: no baseline was measured")
        self._say(
            f"  measured at default clocks: {time_s:.4f} s and {energy_j:.1f} J an iteration; "
            f"{tally.commands_while_recommending} commands"
        )
        forecast = (self._job().get("decision") or {}).get("forecast")
        if forecast:
            self._say(
                f"  recommended, not applied: {forecast['saved_ratio']:.1%} less energy at "
                f"{forecast['slowdown_ratio']:+.2%} iteration time (predicted)"
            )
        else:
            self._say(f"  controller: {self._sentence()}")

    def _compiles(self) -> bool:
        """Whether no plan can be made yet."""
        return any(veto["kind"] == "unready" for veto in self._job().get("vetoes", ()))

    def _decided(self) -> bool:
        """Whether there is a baseline, and an answer of the planner to it."""
        job = self._job()
        decision = job.get("decision") or {}
        answered = decision.get("forecast") or job.get("sentence") == decision.get("reason")
        return job.get("baseline") is not None and bool(answered)

    def _enforce_at_zero(self) -> None:
        tally, phases = self._tally, self._phases
        self._say("no slowdown: the policy now says enforce, max_slowdown: 0%")
        layout.write_policy(self._folder, self._settings, "enforce", 0.0)
        self._await_plan(0.0)
        tally.granularity_zero = self._measure(tally.zero, phases.settle_s, phases.zero_s)
        self._say(f"  {self._measured(tally.zero)}; {self._granularity()}")

    def _await_plan(self, slowdown: float) -> bool:
        """Waits until the clocks of a plan for this target are held; whether they are."""
        began_s = now_s()
        if held := self.watch.run(PLAN_WAIT_S, until=lambda: holds(self._job(), slowdown)):
            self._say(f"  a plan for it is held after {now_s() - began_s:.0f} s")
        else:
            self._say(f"  no plan for it is held after {PLAN_WAIT_S:.0f} s: {self._sentence()}")
        return held

    def _measure(self, window: Window, settle_s: float, phase_s: float) -> str:
        """Measures the phase from `settle_s` on, and reports clocks that were lost meanwhile. The
        granularity that plans had for most of it.
        """
        held: list[str] = []

        def look() -> bool:
            applied = self._job().get("applied") or {}
            held.append(str(applied.get("granularity") or DEFAULT))
            return False

        self.watch.judge(window, now_s() + settle_s)
        self.watch.run(phase_s, until=look)
        self.watch.judge(None)
        shares = {name: held.count(name) / len(held) for name in sorted(set(held))}
        if len(shares) > 1:
            mixed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
            self._say(f"  plans changed while it was measured; granularity over time: {mixed}")
        return max(set(held) - {DEFAULT}, key=held.count, default="gpu")

    def _granularity(self) -> str:
        """The granularity in use, and why it is not a finer one."""
        job = self._job()
        why = job.get("granularity_why")
        return f"granularity {job.get('granularity', 'gpu')}" + (f" ({why})" if why else "")

    def _enforce(self) -> None:
        tally, watch, phases = self._tally, self.watch, self._phases
        self._say(f"enforce: the policy now says enforce, max_slowdown: {SLOWDOWN:.0%}")
        layout.write_policy(self._folder, self._settings, "enforce", SLOWDOWN)
        self._await_plan(SLOWDOWN)
        if not watch.count_commands():
            raise Unavailable(f"no clock was changed in mode enforce: {self._sentence()}")
        self._say(f"  clocks are set under leases; {watch.commands.total} commands")
        self._measure(tally.controlled, phases.settle_s, phases.enforce_s)
        tally.mode = str(self._job().get("mode", tally.mode))
        applied = self._job().get("applied") or {}
        forecast = applied.get("forecast") or {}
        tally.granularity = str(applied.get("granularity", "gpu"))
        solution = applied.get("solution") or {}
        tally.changes = int(solution.get("changes_per_iteration") or 0)
        tally.min_dwell_s = float(solution.get("min_dwell_s") or 0.0)
        tally.predicted_saved_ratio = forecast.get("saved_ratio")
        self._say(f"  {self._measured(tally.controlled)}; {watch.commands.total} commands")
        self._say(f"  controller: {self._sentence()}")

    def _straggle(self) -> None:
        assert self._tally.baseline.time_s is not None
        peer_s = STRAGGLER_RATIO * self._tally.baseline.time_s
        self._say(
            f"straggler: a sibling pipeline now takes {peer_s:.4f} s an iteration, and this one "
            "waits for it anyway"
        )
        window = Window()
        layout.write_control(self._folder, peer_s)
        settle_s = min(self._phases.settle_s, 0.5 * self._phases.straggle_s)
        self.watch.run(PATIENCE_S, until=lambda: not holds(self._job(), SLOWDOWN))
        self._measure(window, settle_s, self._phases.straggle_s)
        if window.time_s is not None:
            self._say(
                f"  measured: {window.time_s:.4f} s, the sibling's pace, and "
                f"{window.energy_j:.1f} J an iteration"
            )
        self._say(f"  controller: {self._sentence()}")

    def _recover(self) -> None:
        """Counts as controlled once the plan of the job's own target is held again."""
        self._say("recovery: the sibling runs at full speed again")
        layout.write_control(self._folder, None)
        if self._await_plan(SLOWDOWN):
            self._measure(self._tally.controlled, self._phases.settle_s, self._phases.recover_s)
        self._say(f"  now {pulse(self.watch.recent)}")

    def _hold_out(self) -> None:
        """Default clocks in windows at random times, until the saving has an interval. In a demo
        without an end they go on.
        """
        if not self._phases.holdouts_s:
            return
        self._say(
            "hold-outs: default clocks in windows at random times measure the saving, as on a real "
            "cluster; a first interval takes five to ten minutes"
        )
        layout.write_policy(self._folder, self._settings, "enforce", SLOWDOWN, holdouts=True)
        self.watch.run(self._phases.holdouts_s, until=lambda: self._saving() is not None)
        saving = self._saving()
        if saving is None:
            held = self._job().get("holdout") or {}
            self._say(f"  no interval yet: {held.get('text') or 'the controller does not answer'}")
            return
        saved, slower = saving["saved_ratio"], saving["slowdown_ratio"]
        self._say(
            f"  measured by {saving['holdouts']} hold-outs: {saved['mid']:.1%} less energy "
            f"({saved['low']:.1%} to {saved['high']:.1%}) at {slower['mid']:+.2%} iteration time "
            f"({slower['low']:+.2%} to {slower['high']:+.2%}), 95 % intervals"
        )

    def _saving(self) -> dict[str, Any] | None:
        """What hold-outs measured, once it has its interval."""
        saving = self._job().get("saving") or {}
        return saving if saving.get("saved_ratio") and saving.get("slowdown_ratio") else None

    def _give_back(self) -> None:
        assert self._cluster is not None
        cluster = self._cluster
        self._say("the job stops: agents and controller reset every GPU")
        cluster.stop_job()
        self.watch.run(TTL_S + PATIENCE_S, until=lambda: cluster.at_default() == STAGES)
        self.watch.count_commands()
        restored = cluster.at_default()
        self._say(f"  {restored} of {STAGES} GPUs at default clocks")
        if restored < STAGES:
            raise Unavailable(
                f"the job ended, but {STAGES - restored} GPUs were not reset within "
                f"{TTL_S + PATIENCE_S:.0f} s"
            )

    # -- output --------------------------------------------------------------------

    def _job(self) -> dict[str, Any]:
        """The job as the controller shows it; empty while it does not answer."""
        assert self._cluster is not None
        if now_s() >= self._seen_s + POLL_S:
            self._seen = get_json(self._cluster.page, f"/api/v1/jobs/{JOB}")
            self._seen_s = now_s()
        return self._seen

    def _sentence(self) -> str:
        """The controller's reason for the current clocks."""
        job = self._job()
        return str((job.get("applied") or {}).get("reason") or job.get("sentence") or "nothing yet")

    def _measured(self, window: Window) -> str:
        base, time_s, energy_j = self._tally.baseline, window.time_s, window.energy_j
        if time_s is None or energy_j is None or base.time_s is None or base.energy_j is None:
            return "measured: nothing yet"
        begin_s, end_s = window.begin_s - self._began_s, window.end_s - self._began_s
        return (
            f"measured over {window.iterations} iterations, seconds {begin_s:.0f} to {end_s:.0f}: "
            f"{time_s:.4f} s ({time_s / base.time_s - 1.0:+.2%}) and {energy_j:.1f} J "
            f"({energy_j / base.energy_j - 1.0:+.2%}) an iteration"
        )

    def _worth(self, window: Window) -> str:
        """What a phase was worth beside default clocks, at usual prices."""
        base = self._tally.baseline
        default = Iteration(base.time_s or 0.0, base.energy_j or 0.0)
        plan = Iteration(window.time_s or 0.0, window.energy_j or 0.0)
        return f"worth {worth(default, plan, STAGES, Prices())}"

    def conclude(self) -> None:
        """Prints the result, and writes the summary file if one is named."""
        tally = self._tally
        tally.commands_sent = self.watch.commands.total
        if not tally.baseline.iterations:
            return  # it never ran; the caller reports why
        possible, slowdown = None, tally.slowdown_in(tally.controlled)
        if slowdown is not None:
            self._say("computing the best saving with perfect knowledge ...")
            possible = self._possible(
                self._settings.plant(),
                summary.agreed(slowdown, SLOWDOWN),
                tally.granularity,
                tally.changes,
                tally.min_dwell_s,
            )
        zero, possible_zero = tally.slowdown_in(tally.zero), None
        if zero is not None:
            most = summary.agreed(zero, TOLERANCE_RATIO)
            possible_zero = self._possible(self._settings.plant(), most, "computation")
        made = summary.summary(tally, possible, possible_zero)
        if self._settings.summary is not None:
            summary.write(self._settings.summary, made)
        saved_zero, saved = tally.saved_in(tally.zero), tally.saved_in(tally.controlled)
        if saved_zero is not None and zero is not None and possible_zero is not None:
            self._say(
                f"measured, no slowdown allowed: {saved_zero:.1%} less energy at {zero:+.2%} "
                f"iteration time, granularity {tally.granularity_zero} "
                f"(possible with a clock per operation: {possible_zero:.1%}); "
                f"{self._worth(tally.zero)}"
            )
        if saved is not None and slowdown is not None and possible is not None:
            share = f", {saved / possible:.0%} of it" if possible > 0.0 else ""
            self._say(
                f"measured, max_slowdown: {SLOWDOWN:.0%}: {saved:.1%} less energy at "
                f"{slowdown:+.2%} iteration time (possible at that pace: {possible:.1%}{share}); "
                f"{self._worth(tally.controlled)}"
            )
        if saved_zero is not None or saved is not None:
            self._say(f"money at {Prices()}, assumed")
        self._say(
            f"{tally.commands_sent} commands, {tally.commands_while_recommending} of them while "
            f"recommending; {tally.gpus_restored} of {tally.gpus_total} GPUs at default clocks"
        )
