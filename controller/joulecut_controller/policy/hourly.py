"""Prices and carbon by the hour: the values of a series in the place of the constants.

A series is a file of times and values, or an expression that a Prometheus answers. A value holds
until the next one, for an hour at most. A series without a value is stale: the constant is in force
and the text says so. Pure.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from joulecut_controller.policy.policy import Cost, Policy, Series

PRICES = "price"  # records: kWh, grams of CO2 and whether stale, as they came into force
HOLDS_S = 3600.0  # markets and grids publish by the hour or finer
NAMES = {"kwh_series": ("kwh", "a kWh"), "co2_series": ("co2_g_per_kwh", "g CO2 a kWh")}

Points = Sequence[tuple[float, float]]  # unix seconds, ascending, and values


def value_at(points: Points, unix_s: float) -> float | None:
    """None where no value holds."""
    place = bisect_right(points, unix_s, key=lambda point: point[0]) - 1
    if place < 0 or unix_s - points[place][0] >= HOLDS_S:
        return None
    return points[place][1]


def at_hour(policy: Policy, unix_s: float, asked: Mapping[str, Points]) -> Policy:
    """The policy with the prices of now; `asked` are the answers of a Prometheus, by expression."""
    cost, texts, stale = policy.cost, list[str](), False
    for key, (name, unit) in NAMES.items():
        series: Series | None = getattr(cost, key)
        if series is None:
            continue
        file = policy.hourly.get(series.csv, ())
        value: Any = value_at(file if series.csv else asked.get(series.promql, ()), unix_s)
        stale |= value is None
        if value is None:
            constant = f"{getattr(cost, name):g} {_of(cost, unit)}"
            texts.append(f"{series} is stale, so the constant {constant} is in force")
            continue
        cost = replace(cost, **{name: max(0.0, value)})  # a price below zero: energy is free
        texts.append(f"{value:g} {_of(cost, unit)} by {series}")
    if not texts:
        return policy
    cost = replace(cost, hour="; ".join(texts), stale=stale)
    return replace(policy, cost=cost, written=policy.cost)


def _of(cost: Cost, unit: str) -> str:
    return f"{cost.currency} {unit}" if cost.currency and unit.startswith("a ") else unit


def mean_of(cost: Cost, hours: Sequence[tuple[float, Cost]], until_unix_s: float) -> Cost:
    """The prices of a period: means over the time that each was in force (`hours`, ascending)."""
    if not hours:
        return cost
    ends = [*(begun_s for begun_s, _ in hours[1:]), until_unix_s]
    spans = [
        (min(HOLDS_S, end_s - begun_s), one)
        for (begun_s, one), end_s in zip(hours, ends, strict=True)
    ]
    whole_s = sum(span_s for span_s, _ in spans)
    if whole_s <= 0.0:
        return cost
    texts = []
    for name, unit in NAMES.values():
        each = [(span_s, getattr(hour, name)) for span_s, hour in spans]
        if getattr(cost, name) is None or any(one is None for _, one in each):
            continue
        mean = sum(span_s * one for span_s, one in each) / whole_s
        cost = replace(cost, **{name: mean})
        low, high = (pick(one for _, one in each) for pick in (min, max))
        texts.append(f"{mean:.3g} {_of(cost, unit)} on average, {low:g} to {high:g}")
    stale_s = sum(span_s for span_s, hour in spans if hour.stale)
    if stale_s:
        texts.append(f"stale for {stale_s / 3600.0:.1f} h")
    return replace(cost, hour=f"{whole_s / 3600.0:.1f} h by the hour: " + "; ".join(texts))
