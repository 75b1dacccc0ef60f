"""Hold-out windows and the saving they measured, as JSON.

Measured only: the one predicted figure beside them says so in its key.
"""

from joulecut_controller.board import Holdout
from joulecut_controller.verify.interval import Interval
from joulecut_controller.verify.saving import Saving
from joulecut_controller.web.answer import Json, number


def holdout_json(holdout: Holdout | None) -> Json | None:
    """What runs, what comes next, and what became of the windows so far."""
    if holdout is None:
        return None
    return {
        "share_ratio": number(holdout.share),
        "window_s": number(holdout.window_s),
        "text": holdout.text,
        "held_out": holdout.held_out,
        "measuring": holdout.measuring or None,
        "next_unix_s": number(holdout.next_unix_s),
        "windows": [
            {"arm": arm, "outcome": outcome, "count": count}
            for arm, outcome, count in holdout.outcomes
        ],
    }


def saving_json(saving: Saving | None) -> Json | None:
    """The saving of the last week's windows; its intervals hold the truth 95 times in 100."""
    if saving is None:
        return None
    return {
        "saved_ratio": _interval(saving.saved_ratio),
        "slowdown_ratio": _interval(saving.slowdown_ratio),
        "predicted_saved_ratio": number(saving.predicted_saved_ratio),
        "cooler_celsius": number(saving.cooler_celsius),
        "holdouts": saving.holdouts,
        "windows_default": saving.windows_default,
        "windows_plan": saving.windows_plan,
        "days": number(saving.days),
        "reason": saving.reason,
    }


def _interval(interval: Interval | None) -> Json | None:
    if interval is None:
        return None
    return {
        "mid": number(interval.mid),
        "low": number(interval.low),
        "high": number(interval.high),
    }
