"""Mechanisms of the controller's core that `job_life.py --without` switches off, one a process.

Each is a name with what would stand in its place without it. The product has no switch for any.
"""

import statistics

from joulecut_controller.observe import measurement_window
from joulecut_controller.observe.gpu_paces import GpuPaces
from joulecut_controller.plan import goal, pace, planner
from joulecut_controller.plan.jitter import STILL
from joulecut_controller.plan.planning_input import Lateness, PlannerState
from joulecut_controller.reconcile import training_samples
from joulecut_controller.reference import reference

Replaced = tuple[object, str, object]

MECHANISMS: dict[str, tuple[Replaced, ...]] = {
    # Clocks from before a veto come back after it.
    "suspension": ((PlannerState, "after", lambda state, *_: state.at_default()),),
    # Plans keep the deadline under the job's jitter.
    "jitter": ((planner, "jitter_of", lambda *_: STILL),),
    # Single operations have a jitter of their own, apart from that of whole iterations.
    "variance": ((measurement_window, "ratios", lambda _: None),),
    # The reference learns how fast default clocks walk, and the noise of a young job again.
    "walk": ((reference.Reference, "_learn_walk", lambda _: None),),
    "begins": ((reference, "BEGINS", (8,)),),
    # GPUs that shift while clocks change are found.
    "since": ((GpuPaces, "_since", lambda *_: None),),
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


def switch_off(names: str) -> None:
    """In this process; several names are joined by +."""
    for name in filter(None, names.split("+")):
        for owner, attribute, value in MECHANISMS[name]:
            setattr(owner, attribute, value)
