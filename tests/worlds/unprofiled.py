"""A world whose job nobody profiled: it tells its rate alone (L1), or its busy times too (L2)."""

from dataclasses import replace

from worlds import Agent, World

from joulecut_controller.policy.policy import JobPolicy, Mode, Policy
from joulecut_controller.ports import ArrivedReport
from joulecut_wire.messages import GpuSnapshot


class UnprofiledWorld(World):
    """Clocks shown are those that a power cap leaves, as a driver shows them."""

    detailed = False

    def unprofiled(self, mode: Mode = "enforce", budget: float = 0.05, digest: str = "1") -> Policy:
        made = self.policy(mode, digest=digest, profile=None)
        job: JobPolicy = made.jobs[0]
        slo = replace(job.slo, max_slowdown=budget)
        return replace(made, jobs=(replace(job, slo=slo),))

    def _snapshot(self, agent: Agent, uuid: str) -> GpuSnapshot:
        shown: GpuSnapshot = super()._snapshot(agent, uuid)
        cap_mhz = self.plant.cap_mhz(self.stage_of[uuid])
        return replace(shown, clock_sm_mhz=min(shown.clock_sm_mhz or cap_mhz, cap_mhz))

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        taken: tuple[ArrivedReport, ...] = super().take_reports()
        if self.detailed:
            return taken
        return tuple(replace(one, report=replace(one.report, operations=())) for one in taken)
