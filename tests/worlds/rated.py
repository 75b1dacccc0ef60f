"""A world whose job sends nothing: its rate is known as the mean of the iterations in a range."""

from unprofiled import UnprofiledWorld

from joulecut_controller.policy.policy import GpuRef, Policy
from joulecut_controller.policy.rate_query import RateQuery
from joulecut_controller.ports import ArrivedReport, RateSample
from joulecut_wire.messages import ReportFault

RANGE_S = 10.0


class RatedWorld(UnprofiledWorld):
    """Implements `ports.Rates` as well: one mean per range, in time with the world's clock."""

    def __init__(self, **world: object) -> None:
        super().__init__(**world)
        self.answers, self._asked_s, self._number = True, self.now_s, 0
        self.samples: list[RateSample] = []

    def rated(self, budget: float = 0.05, **changes: object) -> Policy:
        gpus = tuple(
            GpuRef(agent.node, index)
            for agent in self.agents.values()
            for index in range(len(agent.uuids))
        )
        slo = self.unprofiled(budget=budget).jobs[0].slo
        query = RateQuery(f"rate(steps_total[{RANGE_S:g}s])", RANGE_S)
        return self.policy(slo=slo, profile=None, pipeline=None, gpus=gpus, rate=query, **changes)

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        super().take_reports()
        return ()

    def take(self) -> tuple[RateSample, ...]:
        if self.now_s < self._asked_s + RANGE_S or not self.answers:
            return ()
        since_s, self._asked_s = self.now_s - RANGE_S, self.now_s
        ended = [duration_s for end_s, duration_s, _ in self.history if end_s > since_s]
        if not ended:
            return ()
        self._number += 1
        mean_s = sum(ended) / len(ended)
        sample = RateSample(self.job, self._number, mean_s, RANGE_S, self.now_s, "promql")
        self.samples.append(sample)
        return (sample,)

    def faults(self, now_s: float) -> tuple[ReportFault, ...]:
        if self.answers:
            return ()
        return (ReportFault(self.job, (), "promql", "no Prometheus answers", 1, 0.0),)
