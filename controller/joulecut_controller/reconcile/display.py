"""The board of a pass: what stewards and instruments have to show, as one immutable picture.

Reads and decides nothing, so that a page can never be the reason for a clock.
"""

from collections.abc import Mapping
from dataclasses import replace

from joulecut_controller.board import Board, JobBoard, Learnt
from joulecut_controller.observe.observer import Sighting
from joulecut_controller.reconcile.context import Desk
from joulecut_controller.reconcile.job_controller import Steward
from joulecut_controller.reconcile.job_services import Instruments
from joulecut_controller.reconcile.policy_watcher import Mandate
from joulecut_controller.view import View


class Display:
    """Makes the boards of one leadership term."""

    def __init__(self, desk: Desk, mandate: Mandate, instruments: Instruments) -> None:
        self._desk, self._mandate, self._instruments = desk, mandate, instruments

    def board(
        self,
        view: View,
        sightings: Mapping[str, Sighting],
        stewards: Mapping[str, Steward],
        *,
        learnt: Mapping[str, Learnt],
        pass_number: int,
    ) -> Board:
        """What a pass saw, decided and did; `learnt` of jobs with a profile."""
        desk, kept, policy = self._desk, self._instruments, self._mandate.policy
        return Board(
            at_unix_s=desk.unix_s(),
            pass_number=pass_number,
            epoch=desk.epoch,
            sentence=self._sentence(stewards),
            view=view,
            jobs=tuple(
                self._job(stewards[name], sighting, view, learnt.get(name))
                for name, sighting in sightings.items()
            ),
            events=desk.audit.newest,
            policy_source=policy.source,
            policy_digest=policy.digest,
            policy_error=self._mandate.error,
            budget=kept.budgets.shares,
            interval_s=desk.interval_s,
            holds=kept.holds.all,
            policy=policy,
        )

    def failed(self, last: Board | None, pass_number: int, why: str) -> Board:
        """The board before, with the word that this pass brought nothing new."""
        desk = self._desk
        board = last or Board(
            at_unix_s=desk.unix_s(),
            pass_number=0,
            epoch=desk.epoch,
            sentence="",
            view=View(now_s=desk.now_s()),
            jobs=(),
            events=(),
            interval_s=desk.interval_s,
        )
        return replace(
            board, at_unix_s=desk.unix_s(), pass_number=pass_number, sentence=f"the pass {why}"
        )

    def _sentence(self, stewards: Mapping[str, Steward]) -> str:
        did = "; ".join(
            f"{name}: {did}" for name, one in stewards.items() if (did := one.enactment.did)
        )
        said = self._desk.leases.lost or did or self._instruments.budgets.complaint
        trouble = self._desk.audit.trouble
        if trouble:
            return "; ".join(filter(None, (said, f"the trail waits for the store: {trouble}")))
        return said or "nothing to do"

    def _job(
        self, steward: Steward, sighting: Sighting, view: View, learnt: Learnt | None
    ) -> JobBoard:
        kept, name = self._instruments, sighting.view.policy.name
        shown = steward.board(sighting, kept.frontier(steward.enactment.standing, sighting))
        return replace(
            shown,
            holds=kept.holds.of(name),
            trips=kept.holds.trips(name),
            holdout=kept.holdouts.shown(name),
            advisable=kept.shadows.verdict(sighting, shown.decision, view),
            learnt=learnt or shown.learnt,
        )
