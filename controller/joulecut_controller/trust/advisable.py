"""Whether enforcing a recommendation is advisable, from what is measured at the clocks that run.

A recommendation is compared with default clocks: the predictor has to explain the time and the
power measured there, and the plan has to fit its deadline. Where hold-out windows of an enforced
time show what plans of this job saved, that counts as well. What happens at clocks that never ran
stays predicted. Pure.
"""

from dataclasses import dataclass

from joulecut_controller.trust.interval import Interval

# What a plan may be off by and still be worth enforcing: half of what makes a graph count as
# unexplained (3 %) in time; in power a usual saving must stay clearly above it.
TIME_ERROR_MAX = 0.02
POWER_ERROR_MAX = 0.05


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


def verdict(
    *,
    planned: bool,
    slack: float | None,
    baseline: bool,
    time_error: float | None,
    power_error: float | None,
    saved: Interval | None = None,
    holdouts: int = 0,
    doubt: str = "",
    ranks: str = "reported by the job",
) -> Verdict:
    """Advisable where nothing speaks against it.

    `slack` is the room that the plan leaves before the deadline, as a share of it; None without a
    plan. Errors are of predictions at the clocks that run, None where nothing was compared. `saved`
    is what plans saved in hold-out windows, over `holdouts` of them. `doubt` is why no command may
    be sent for the job now, `ranks` who says which GPU works which stage.
    """
    if not planned:
        return Verdict(yes=False, text="not yet: nothing was recommended so far")
    words: list[tuple[bool, str]] = []  # whether a thing is right, and its figure
    if doubt:
        words.append((False, doubt))
    if not baseline:
        words.append((False, "baseline not steady"))
    if time_error is None:
        words.append((False, "no prediction was compared with a measurement yet"))
    else:
        said = f"time error {_percent(time_error)} at the clocks that run"
        words.append((time_error <= TIME_ERROR_MAX, said))
    if power_error is not None:
        words.append((power_error <= POWER_ERROR_MAX, f"power error {_percent(power_error)}"))
    if slack is not None:
        words.append((slack >= 0.0, f"SLO slack {_percent(slack)}"))
    if saved is not None:
        said = f"{_percent(saved.mid)} ± {_percent(saved.half_width)}"
        words.append((saved.mid > 0.0, f"{said} saved in {holdouts} hold-outs"))
    if not doubt:
        words.append((True, f"ranks {ranks}"))
    missing = "; ".join(word for good, word in words if not good)
    text = f"{'not yet' if missing else 'advisable'}: {'; '.join(word for _, word in words)}"
    return Verdict(not missing, text, missing, holdouts, time_error, power_error)


def _percent(ratio: float) -> str:
    return f"{100.0 * ratio:.1f} %"
