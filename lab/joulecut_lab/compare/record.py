"""A comparison for programs."""

from typing import Any

from joulecut_lab.compare.outcome import Outcome
from joulecut_lab.compare.setting import Entry, Priced


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The comparison for programs; ratios and gaps are fractions, units are in the names."""
    setting = outcome.setting
    against_j = outcome.baseline_cluster_j()
    return {
        "deadline_s": setting.deadline_s,
        "pipelines": setting.pipelines,
        "perseus_unit_s": outcome.perseus_unit_s,
        "sync": setting.sync,
        "left_out": outcome.left_out(),
        "baseline": _priced(outcome.fastest),
        "rules": [_rule(outcome, entry, against_j) for entry in outcome.entries],
    }


def _priced(priced: Priced) -> dict[str, float]:
    return {"iteration_time_s": priced.time_s, "energy_j": priced.energy_j}


def _rule(outcome: Outcome, entry: Entry, against_j: tuple[float, ...]) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": entry.name, "seconds": entry.seconds}
    if entry.remark:
        shown["remark"] = entry.remark
    if entry.plan is not None:
        shown |= _priced(entry.plan) | {
            "saving_ratio": outcome.saving(entry.plan.energy_j),
            "slowdown_ratio": outcome.slowdown(entry.plan),
            "late_ratio": outcome.late(entry.plan),
            "lower_bound_j": entry.lower_bound_j,
            "gap": entry.gap,
        }
    if entry.claimed is not None:
        shown["claimed"] = _priced(entry.claimed) | {"saving_ratio": outcome.claimed_saving(entry)}
    shown["stragglers"] = [
        {"factor": factor, "energy_j": joules, "saving_ratio": outcome.saving(joules, base_j)}
        for factor, joules, base_j in zip(
            outcome.setting.stragglers, entry.cluster_j, against_j, strict=False
        )
    ]
    if entry.claimed_cluster_j:
        for row, saving in zip(shown["stragglers"], outcome.claimed_stragglers(entry), strict=True):
            row["claimed_saving_ratio"] = saving
    for row, late in zip(shown["stragglers"], entry.late, strict=True):
        row["late_ratio"] = late
    if outcome.setting.power_w is not None:
        limited = entry.limited
        shown["budget"] = limited and _priced(limited) | {
            "slowdown_ratio": outcome.slowdown(limited),
            "power_w": outcome.setting.pipelines * limited.energy_j / limited.time_s,
        }
    return shown
