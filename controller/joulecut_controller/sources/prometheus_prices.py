"""Prices by the hour from a Prometheus: each expression is asked for every ASK_S, in a thread. Its
last value holds for an hour.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from joulecut_controller.policy.hourly import Points
from joulecut_controller.policy.policy import Policy
from joulecut_controller.sources.hourly_prices import VALUE_MAX
from joulecut_controller.sources.prometheus_rates import RateServer
from joulecut_wire.errors import JoulecutError

ASK_S = 60.0  # a price of an hour is late by a minute at most


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
