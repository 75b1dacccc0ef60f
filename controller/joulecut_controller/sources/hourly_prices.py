"""Prices by the hour: from a CSV file with the columns time and value, whose times have a zone and
ascend, or from a Prometheus, asked for each expression every ASK_S, in a thread.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from joulecut_controller.policy.hourly import Points
from joulecut_controller.policy.policy import CO2_G_PER_KWH_MAX, PRICE_MAX, Policy
from joulecut_controller.sources.csv_file import rows, table
from joulecut_controller.sources.prometheus_rates import RateServer
from joulecut_wire.errors import BadInput, JoulecutError
from joulecut_wire.quantity import Fault, shown
from joulecut_wire.section import key

FILE_BYTES_MAX = 4 << 20  # ten years of hours
VALUE_MAX = max(PRICE_MAX, CO2_G_PER_KWH_MAX)
ASK_S = 60.0  # a price of an hour is late by a minute at most


def _moment(value: object) -> float:
    try:
        found = datetime.fromisoformat(str(value))
        if found.tzinfo is not None:
            return found.timestamp()
    except (ValueError, OverflowError):
        pass
    raise Fault(f"{shown(value)} is not a time with its zone", "2026-11-29T14:00+01:00, or ...Z")


def _value(value: object) -> float:
    """Prices of electricity may be below zero."""
    try:
        found = float(str(value))
        if abs(found) <= VALUE_MAX:
            return found
    except ValueError:
        pass
    raise Fault(f"{shown(value)} is not a value", f"a number up to {VALUE_MAX:g}")


@dataclass(frozen=True, slots=True)
class _Row:
    time: float = key(_moment)
    value: float = key(_value)


def parse(raw: bytes, name: str) -> Points:
    """The series of a file. Raises BadInput with line and column."""
    found: list[tuple[float, float]] = []
    for line, row in table(rows(raw, name), name, _Row):
        if found and row.time <= found[-1][0]:
            raise BadInput(f"{name}:{line}", "a time that does not ascend", "times in their order")
        found.append((row.time, row.value))
    if not found:
        raise BadInput(name, "no values", "lines like 2026-11-29T14:00Z,0.08")
    return tuple(found)


@dataclass(slots=True)
class PrometheusPrices:
    """The newest value of each expression while `run` runs."""

    server: RateServer | None
    unix_s: Callable[[], float]
    asked: dict[str, Points] = field(default_factory=dict)

    async def run(self, policy: Callable[[], Policy]) -> None:
        while True:
            await self.ask(policy())
            await asyncio.sleep(ASK_S if any(_expressions(policy())) else 1.0)

    async def ask(self, policy: Policy) -> None:
        """Each expression of the policy once; those of an earlier one are forgotten."""
        wanted = set(_expressions(policy))
        for promql in [one for one in self.asked if one not in wanted]:
            del self.asked[promql]
        for promql in sorted(wanted):
            value = await asyncio.to_thread(self._ask, promql)
            if value is not None:
                self.asked[promql] = ((self.unix_s(), value),)

    def _ask(self, promql: str) -> float | None:
        if self.server is None:
            return None
        try:
            values = self.server.connect().now(promql)
        except JoulecutError:
            return None
        known = len(values) == 1 and math.isfinite(values[0]) and abs(values[0]) <= VALUE_MAX
        return values[0] if known else None


def _expressions(policy: Policy) -> Iterable[str]:
    series = (policy.cost.kwh_series, policy.cost.co2_series)
    return (one.promql for one in series if one is not None and one.promql)
