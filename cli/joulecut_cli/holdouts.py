"""Hold-out windows and what they measured, in words: for `status` and `explain`."""

from collections.abc import Iterator

from joulecut_cli.controller_client import Json
from joulecut_cli.figures import percent

MINUTE_S = 60.0


def saving_text(saving: Json | None) -> str:
    """The measured saving with its interval, or why there is none yet; empty without windows."""
    if not saving:
        return ""
    saved = saving["saved_ratio"]
    if saved is None:
        return f"not measured yet: {saving['reason']}"
    text = (
        f"{percent(saved['mid'])} less energy ({percent(saved['low'])} to "
        f"{percent(saved['high'])}) measured in {saving['holdouts']} hold-outs over "
        f"{saving['days']:.1f} days"
    )
    if saving["predicted_saved_ratio"] is not None:
        text += f"; {percent(saving['predicted_saved_ratio'])} predicted"
    return text


def holdout_text(holdout: Json | None) -> str:
    """What runs or comes next, and what became of the windows; empty without hold-outs."""
    if not holdout:
        return ""
    parts = [holdout["text"], *_asked(holdout)]
    kept = {w["arm"]: w["count"] for w in holdout["windows"] if w["outcome"] == "kept"}
    if kept:
        told = (kept.get("default", 0), kept.get("plan", 0))
        parts.append(f"{told[0]} windows kept at default clocks, {told[1]} under a plan")
    dropped: dict[str, int] = {}
    for window in holdout["windows"]:
        if window["outcome"] != "kept":
            dropped[window["outcome"]] = dropped.get(window["outcome"], 0) + window["count"]
    if dropped:
        why = ", ".join(f"{count} ({reason})" for reason, count in sorted(dropped.items()))
        parts.append(f"dropped: {why}")
    return "; ".join(parts)


def _asked(holdout: Json) -> Iterator[str]:
    if holdout["share_ratio"]:
        share = f"{percent(holdout['share_ratio'])} of the time"
        window_s = holdout["window_s"]
        yield f"{share}, windows of {window_s / MINUTE_S:.3g} min" if window_s else share
