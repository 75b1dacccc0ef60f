"""Mechanisms of the controller's core that `job_life.py --without` switches off, one a process.

Each is a name with what would stand in its place without it. The product has no switch for any.
"""

import statistics

from joulecut_controller.plan import goal, pace, planner
from joulecut_controller.plan.jitter import STILL
from joulecut_controller.plan.planning_input import Lateness, PlannerState
from joulecut_controller.reconcile import online_profiler, training_samples
from joulecut_controller.reconcile.online_profiler import OnlineProfiler

Replaced = tuple[object, str, object]

# With a profile.
PLANNER: dict[str, tuple[Replaced, ...]] = {
    # Clocks from before a veto come back after it.
    "suspension": ((PlannerState, "after", lambda state, *_: state.at_default()),),
    # The inferred work of a baseline explains what it takes.
    "work": ((planner, "work_of", lambda *_: None),),
    # Plans keep the deadline under the job's jitter.
    "jitter": ((planner, "jitter_of", lambda *_: STILL),),
    # Iterations whose operations were timed one by one judge plans.
    "traces": ((planner, "measured_graph", lambda *_: None),),
    # Better clocks wait until the held ones are measured, and keep the deadline with certainty.
    "early": ((planner, "_early", lambda *_: False),),
    "dares": ((planner, "_dares", lambda *_: False),),
    # Clocks that were late are not tried again for a while.
    "lateness": ((planner, "lateness", lambda *_, late: Lateness(count=int(late))),),
    # First clocks leave half a standard error of what predictions are off by.
    "careful": ((pace, "CAREFUL_SDS", 0.0),),
    # A goal stands while it moves by a twentieth.
    "slack": ((goal, "GOAL_SLACK", 0.0),),
    # What all operations have in common is work, and no effect of a clock.
    "common-work": (
        (
            training_samples,
            "_common_work",
            lambda _, __, ratios, ___: statistics.median(ratios or [1.0]),
        ),
    ),
}
# Without one.
LEARNING: dict[str, tuple[Replaced, ...]] = {
    # After a window at default clocks learning goes on from the clocks before.
    "resumed-trial": (
        (OnlineProfiler, "_advised", lambda one, _, facts, ask: ask(facts, one._log.measurements)),
    ),
    # Room for what default clocks may move until their next window.
    "margin": ((online_profiler, "_margin", lambda *_: 0.0),),
    # No lower clocks where one standard error of the slowdown would make them late.
    "late-within": ((online_profiler, "_late_within", lambda *_: 0.0),),
    # After a second late step default clocks are measured first.
    "late-steps": (
        (online_profiler, "remembered", lambda *_: Lateness()),
        (online_profiler, "late_again", lambda *_: Lateness()),
    ),
    # No baseline of a throttled GPU.
    "throttled": ((online_profiler, "_throttled", lambda *_: ""),),
}
MECHANISMS = PLANNER | LEARNING


def switch_off(names: str) -> None:
    """In this process; several names are joined by +."""
    for name in filter(None, names.split("+")):
        for owner, attribute, value in MECHANISMS[name]:
            setattr(owner, attribute, value)
