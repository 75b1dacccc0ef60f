"""The board of a pass: what stewards and instruments have to show, as one immutable picture.

Reads and decides nothing, so that a page can never be the reason for a clock.
"""

from collections.abc import Mapping
from dataclasses import replace

from joulecut_controller.board import Board, JobBoard, Learnt
from joulecut_controller.observe.observer import JobObservation
from joulecut_controller.reconcile.context import ReconcileContext
from joulecut_controller.reconcile.job_controller import JobController
from joulecut_controller.reconcile.job_services import JobServices
from joulecut_controller.reconcile.policy_watcher import PolicyWatcher
from joulecut_controller.view import View


class Display:
    """Makes the boards of one leadership term."""

    def __init__(
        self, context: ReconcileContext, policy_watcher: PolicyWatcher, job_services: JobServices
    ) -> None:
        self._context, self._policy_watcher, self._job_services = (
            context,
            policy_watcher,
            job_services,
        )

    def board(
        self,
        view: View,
        observations: Mapping[str, JobObservation],
        job_controllers: Mapping[str, JobController],
        *,
        learnt: Mapping[str, Learnt],
        pass_number: int,
    ) -> Board:
        """What a pass saw, decided and did; `learnt` of jobs with a profile."""
        context, kept, policy = self._context, self._job_services, self._policy_watcher.policy
        return Board(
            at_unix_s=context.unix_s(),
            pass_number=pass_number,
            epoch=context.epoch,
            sentence=self._sentence(job_controllers),
            view=view,
            jobs=tuple(
                self._job(job_controllers[name], observation, view, learnt.get(name))
                for name, observation in observations.items()
            ),
            events=context.audit.newest,
            policy_source=policy.source,
            policy_digest=policy.digest,
            policy_error=self._policy_watcher.error,
            budget=kept.budgets.shares,
            interval_s=context.interval_s,
            holds=kept.holds.all,
            policy=policy,
        )

    def failed(self, last: Board | None, pass_number: int, why: str) -> Board:
        """The board before, with the word that this pass brought nothing new."""
        context = self._context
        board = last or Board(
            at_unix_s=context.unix_s(),
            pass_number=0,
            epoch=context.epoch,
            sentence="",
            view=View(now_s=context.now_s()),
            jobs=(),
            events=(),
            interval_s=context.interval_s,
        )
        return replace(
            board, at_unix_s=context.unix_s(), pass_number=pass_number, sentence=f"the pass {why}"
        )

    def _sentence(self, job_controllers: Mapping[str, JobController]) -> str:
        did = "; ".join(
            f"{name}: {did}" for name, one in job_controllers.items() if (did := one.rollout.did)
        )
        said = self._context.leases.lost or did or self._job_services.budgets.complaint
        trouble = self._context.audit.trouble
        if trouble:
            return "; ".join(filter(None, (said, f"the trail waits for the store: {trouble}")))
        return said or "nothing to do"

    def _job(
        self,
        job_controller: JobController,
        observation: JobObservation,
        view: View,
        learnt: Learnt | None,
    ) -> JobBoard:
        kept, name = self._job_services, observation.view.policy.name
        shown = job_controller.board(
            observation, kept.frontier(job_controller.rollout.state, observation)
        )
        return replace(
            shown,
            holds=kept.holds.of(name),
            trips=kept.holds.trips(name),
            holdout=kept.holdouts.shown(name),
            advisable=kept.shadows.verdict(observation, shown.decision, view),
            learnt=learnt or shown.learnt,
        )
