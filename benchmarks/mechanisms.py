"""Mechanisms of the controller's core that `job_life.py --without` switches off, one a process.

Each is a name with what would stand in its place without it. The product has no switch for any.
"""

from joulecut_controller.plan import pace, planner
from joulecut_controller.plan.jitter import STILL
from joulecut_controller.plan.planning_input import PlannerState
from joulecut_controller.reconcile import online_profiler
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
    # Clocks that were late are not tried again for a while.
    "lateness": ((planner, "lateness", lambda *_: None),),
    # Better clocks wait until the held ones are measured.
    "early": ((planner, "_early", lambda *_: False),),
    # First clocks leave half a standard error of what predictions are off by.
    "careful": ((pace, "CAREFUL_SDS", 0.0),),
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
    # No baseline of a throttled GPU.
    "throttled": ((online_profiler, "_throttled", lambda *_: ""),),
}
MECHANISMS = PLANNER | LEARNING


def switch_off(names: str) -> None:
    """In this process; several names are joined by +."""
    for name in filter(None, names.split("+")):
        for owner, attribute, value in MECHANISMS[name]:
            setattr(owner, attribute, value)
