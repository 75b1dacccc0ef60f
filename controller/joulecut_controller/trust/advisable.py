"""Whether enforcing a recommendation is advisable, from what is measured at the clocks that run.

A recommendation is compared with default clocks: the predictor has to explain the time and the
power measured there, and the plan has to fit its deadline. Where hold-out windows of an enforced
time show what plans of this job saved, that counts as well. What happens at clocks that never ran
stays predicted. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from joulecut_controller.trust.interval import Interval

# What a plan may be off by and still be worth enforcing: half of what makes a graph count as
# unexplained (3 %) in time; in power a usual saving must stay clearly above it.
TIME_ERROR_MAX = 0.02
POWER_ERROR_MAX = 0.05


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A job in mode recommend. `slack` is the room that its plan leaves before the deadline, as a
    share of it; None without a plan. Errors are of predictions at the clocks that run, None where
    nothing was compared. `saved` is what plans saved in hold-out windows, over `holdouts` of them.
    `doubt` is why no command may be sent for the job now, `ranks` who says which GPU works which
    stage.
    """

    planned: bool
    slack: float | None
    baseline: bool
    time_error: float | None
    power_error: float | None
    saved: Interval | None = None
    holdouts: int = 0
    doubt: str = ""
    ranks: str = "reported by the job"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether enforcing is advisable, in one line; `missing` is the part of `text` that speaks
    against it, `scores` counts the hold-outs that it rests on.
    """

    yes: bool
    text: str
    missing: str = ""
    scores: int = 0
    time_error: float | None = None
    energy_error: float | None = None


def verdict(made: Recommendation) -> Verdict:
    """Advisable where nothing speaks against it."""
    if not made.planned:
        return Verdict(yes=False, text="not yet: nothing was recommended so far")
    words = list(_words(made))
    said = "; ".join(word for _, word in words)
    missing = "; ".join(word for good, word in words if not good)
    text = f"not yet: {said}" if missing else f"advisable: {said}"
    return Verdict(not missing, text, missing, made.holdouts, made.time_error, made.power_error)


def _words(made: Recommendation) -> Iterable[tuple[bool, str]]:
    """Each thing that has to be right, whether it is, and its figure."""
    if made.doubt:
        yield False, made.doubt
    if not made.baseline:
        yield False, "baseline not steady"
    if made.time_error is None:
        yield False, "no prediction was compared with a measurement yet"
    else:
        good = made.time_error <= TIME_ERROR_MAX
        yield good, f"time error {_percent(made.time_error)} at the clocks that run"
    if made.power_error is not None:
        yield made.power_error <= POWER_ERROR_MAX, f"power error {_percent(made.power_error)}"
    if made.slack is not None:
        yield made.slack >= 0.0, f"SLO slack {_percent(made.slack)}"
    if made.saved is not None:
        saved = f"{_percent(made.saved.mid)} ± {_percent(made.saved.half_width)}"
        yield made.saved.mid > 0.0, f"{saved} saved in {made.holdouts} hold-outs"
    if not made.doubt:
        yield True, f"ranks {made.ranks}"


def _percent(ratio: float) -> str:
    return f"{100.0 * ratio:.1f} %"
