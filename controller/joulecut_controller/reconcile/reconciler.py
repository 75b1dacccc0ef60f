"""One pass: observe, predict, plan, guard, apply, verify, publish. It has no input.

Start-up, recovery and a quiet Tuesday are the same pass: it looks, compares what is with
what should be, and does the difference. With nothing new it does nothing. Whatever it
cannot see or explain ends in default clocks, and every plan stands in the audit trail
before it is carried out.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from joulecut_controller.board import Board
from joulecut_controller.observe.observer import Observer
from joulecut_controller.policy.policy import Policy
from joulecut_controller.ports import Fleet, FleetState, Store
from joulecut_controller.reconcile.audit import Audit
from joulecut_controller.reconcile.commands import Commands
from joulecut_controller.reconcile.context import ReconcileContext
from joulecut_controller.reconcile.display import Display
from joulecut_controller.reconcile.job_controller import JobController
from joulecut_controller.reconcile.job_services import job_services
from joulecut_controller.reconcile.learning import Learner
from joulecut_controller.reconcile.leases import Leases
from joulecut_controller.reconcile.meters import LoopMetrics
from joulecut_controller.reconcile.pacing import Pacing
from joulecut_controller.reconcile.passes import Passes, profiles
from joulecut_controller.reconcile.planning_step import PlanningStep
from joulecut_controller.reconcile.policy_watcher import PolicySource, PolicyWatcher
from joulecut_controller.reconcile.solving import SolverFunctions
from joulecut_wire.errors import JoulecutError


class Reconciler:
    """Runs passes and heartbeats of one leadership term."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        store: Store,
        source: PolicySource,
        policy: Policy,
        learner: Learner,
        solving: SolverFunctions,
        epoch: int,
        pacing: Pacing,
        now_s: Callable[[], float],
        unix_s: Callable[[], float],
        unready: Callable[[], str] = lambda: "",
    ) -> None:
        """`unready` says why no plan can be made yet. Raises Unavailable."""
        self._fleet, self._pacing = fleet, pacing
        self._now_s, self._unix_s = now_s, unix_s
        self._unrenewed: set[str] = set()
        self._pass_number = 0
        self._passed_s = now_s()
        self.meters = LoopMetrics()
        self.board: Board | None = None
        learner.set_profiles(profiles(policy))
        self._job_controllers: dict[str, JobController] = {}
        self._context = ReconcileContext(
            store=store,
            audit=Audit(store, unix_s),
            leases=Leases(fleet, epoch),
            observer=Observer(lag_s=pacing.lag_s, stale_s=pacing.stale_s),
            check=solving.check,
            epoch=epoch,
            interval_s=pacing.interval_s,
            stale_s=pacing.stale_s,
            now_s=now_s,
            unix_s=unix_s,
        )
        self._policy_watcher = PolicyWatcher(source, policy, self._context.audit)
        self._job_services = job_services(self._context, learner, solving, lag_s=pacing.lag_s)
        self._display = Display(self._context, self._policy_watcher, self._job_services)
        self.commands = self._commands()
        self._passes = self._new_passes(learner, solving, unready)

    def _commands(self) -> Commands:
        return Commands(
            fleet=self._fleet,
            leases=self._context.leases,
            holds=self._job_services.holds,
            audit=self._context.audit,
            job_controllers=self._job_controllers,
            view=lambda: self.board.view if self.board else None,
            now_s=self._now_s,
            unix_s=self._unix_s,
        )

    def _new_passes(
        self, learner: Learner, solving: SolverFunctions, unready: Callable[[], str]
    ) -> Passes:
        stragglers = self._job_services.stragglers
        return Passes(
            fleet=self._fleet,
            context=self._context,
            policy_watcher=self._policy_watcher,
            job_services=self._job_services,
            learner=learner,
            planning_step=PlanningStep(
                solving, stragglers, learner, meters=self.meters, now_s=self._now_s
            ),
            display=self._display,
            job_controllers=self._job_controllers,
            acting=self.commands.acting,
            ttl_s=self.ttl_s,
            unready=unready,
        )

    @property
    def epoch(self) -> int:
        return self._context.epoch

    @property
    def leads(self) -> bool:
        return not self._context.leases.lost

    @property
    def policy(self) -> Policy:
        """The one in force."""
        return self._policy_watcher.policy

    def ask_reload(self) -> None:
        """The next pass reads the policy again, changed or not."""
        self._policy_watcher.ask()

    def ttl_s(self) -> float:
        return self._pacing.ttl_within_s(_ttl_max_s(self._fleet.observe(self._now_s())))

    async def run_pass(self) -> Board:
        """One pass; a JoulecutError in it (a store that is full) ends it with a word on the
        board, and with heartbeats that stop if it lasts.
        """
        begun_s = self._now_s()
        self._pass_number += 1
        try:
            board = await self._passes.run(self._pass_number)
        except JoulecutError as error:
            self.meters.results["failed"] += 1
            board = self._display.failed(self.board, self._pass_number, f"failed: {error}")
        else:
            self._passed_s = self._now_s()
            self.meters.last_success_unix_s = self._unix_s()
            acted = any(
                job_controller.rollout.did for job_controller in self._job_controllers.values()
            )
            self.meters.results["changed" if acted else "unchanged"] += 1
        self.meters.passes.add(self._now_s() - begun_s)
        self.board = board
        return board

    async def beat(self) -> None:
        """One heartbeat for all leases, unless no pass has ended for too long."""
        if self._context.leases.lost or self._now_s() - self._passed_s > self._pacing.dead_s:
            return
        outcomes = await self._context.leases.renew(self.ttl_s())
        self._unrenewed.intersection_update(self._job_controllers)
        for job, outcome in outcomes.items():
            if not outcome.refused:
                self._unrenewed.discard(job)
            elif job not in self._unrenewed:
                self._unrenewed.add(job)
                self._context.audit.tell("renew", job, f"not renewed: {outcome.first_refusal}")

    def stand_down(self, why: str) -> None:
        """This term is over: nothing more is commanded, and what was held runs out."""
        self._context.leases.end(why)

    async def stop(self, reason: str) -> None:
        """Gives everything back; what does not answer runs out."""
        await self._job_services.studies.stop()
        if self._context.leases.lost:
            return
        await asyncio.gather(*(s.release_all(reason) for s in self._job_controllers.values()))
        with suppress(
            JoulecutError
        ):  # a store that fails now has failed in a pass, and it was said
            await self._job_services.learning.keep()


def _ttl_max_s(state: FleetState) -> float:
    """The shortest of what the agents allow; 0 while none has said."""
    return min((node.ttl_max_s for node in state.nodes if node.ttl_max_s > 0), default=0.0)
