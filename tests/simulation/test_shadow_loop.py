"""Recommendations are scored when somebody else sets their clocks, and never by setting any."""

from dataclasses import replace
from typing import Any

import boards
import pytest
from worlds import Controller, World

from joulecut_cli import status
from joulecut_controller.policy.policy import Policy
from joulecut_controller.ports import Record, Store
from joulecut_controller.reconcile.shadow_evaluation import PROMISES_KEPT
from joulecut_controller.store.database import DatabaseStore
from joulecut_controller.trust.shadow import Promise, Score, Verdict, from_json
from joulecut_controller.web.board_json import board_json
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Profile
from joulecut_sim.plant import Noise

PASSES_TO_PLAN = 40
SHORT = 500  # characters: a score has 200, a promise to four GPUs over 1,000
PASSES_OF_A_STRETCH = 150  # 64 iterations, and some to settle


class SharedWorld(World):
    """Somebody else locks clocks here too; no lease shows it."""

    def __init__(self) -> None:
        self.foreign: dict[str, int] = {}
        super().__init__(noise=Noise(0.005))

    def clocks_mhz(self) -> dict[str, int]:
        ours = super().clocks_mhz()
        return {uuid: min(mhz, self.foreign.get(uuid, mhz)) for uuid, mhz in ours.items()}


@pytest.fixture
def world() -> SharedWorld:
    return SharedWorld()


def recommending(world: World, store: Store, policy: Policy | None = None) -> Controller:
    controller = Controller(world, store, policy or world.policy("recommend"))
    controller.run(PASSES_TO_PLAN)
    assert controller.job.decision is not None
    assert controller.job.decision.actions
    return controller


def wanted(controller: Controller) -> dict[str, int]:
    """The clocks that are advised."""
    assert controller.job.decision is not None
    actions = controller.job.decision.actions
    return {action.uuid: action.clock_mhz for action in actions if action.clock_mhz}


def told(controller: Controller) -> Verdict:
    assert controller.job.advisable is not None
    return controller.job.advisable


def kept(store: DatabaseStore) -> tuple[list[Promise], list[Score]]:
    both = [from_json(record.content) for record in store.records("shadow")]
    promises = [one for one in both if isinstance(one, Promise)]
    return promises, [one for one in both if isinstance(one, Score)]


def lowered_scores(store: DatabaseStore) -> list[Score]:
    return [score for score in kept(store)[1] if score.lowered]


def test_at_default_clocks_only_the_default_is_checked(
    world: SharedWorld, store: DatabaseStore
) -> None:
    controller = recommending(world, store)
    controller.run(PASSES_OF_A_STRETCH)
    verdict, count = told(controller), len(wanted(controller))
    assert not verdict.yes
    assert f"not yet: predictions checked at 0 of {count} clocks" in verdict.text
    assert "iteration time prediction error" in verdict.text
    assert "baseline steady" in verdict.text
    assert "SLO slack" in verdict.text
    promises, scores = kept(store)
    assert len(promises) == 1
    assert scores
    assert not any(score.lowered for score in scores)
    assert max(abs(score.time_ratio) for score in scores) < 0.01
    assert world.calls == []


class ShortRecords:
    """A store whose records are short, as all are for a promise to hundreds of GPUs."""

    def __init__(self, store: DatabaseStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def keep_record(self, record: Record) -> None:
        if len(record.content) > SHORT:
            raise ValueError(f"{len(record.content)} characters, {SHORT} are kept at most")
        self._store.keep_record(record)


def test_a_promise_too_long_to_keep_does_not_keep_scores_from_the_store(
    world: SharedWorld, store: DatabaseStore
) -> None:
    controller = recommending(world, ShortRecords(store))  # type: ignore[arg-type]
    controller.run(PASSES_OF_A_STRETCH, until=lambda: kept(store)[1])
    promises, scores = kept(store)
    assert not promises
    assert scores
    assert told(controller).time_error is not None, "what fits no record counts all the same"


def test_somebody_elses_locks_are_as_good_as_ours_to_check_by(
    world: SharedWorld, store: DatabaseStore
) -> None:
    controller = recommending(world, store)
    first = wanted(controller)
    world.foreign = first
    controller.run(PASSES_OF_A_STRETCH, until=lambda: lowered_scores(store))
    scores = lowered_scores(store)
    assert {(one.uuid, one.clock_mhz) for one in scores} <= set(first.items())
    assert max(abs(one.time_ratio) for one in scores) < 0.005
    assert max(abs(one.energy_ratio or 1.0) for one in scores) < 0.02
    assert world.calls == [], "nothing was sent to find that out"


def test_after_an_enforced_phase_enforcing_is_advisable(
    world: SharedWorld, store: DatabaseStore
) -> None:
    controller = recommending(world, store, world.policy("enforce"))
    controller.run(PASSES_OF_A_STRETCH)
    controller.source.put(world.policy("recommend", digest="2"))
    controller.run(20)
    verdict = told(controller)
    assert verdict.yes, verdict.text
    assert verdict.text.startswith(f"advisable: {verdict.scores} scores")
    assert "ranks reported by the job" in verdict.text
    assert verdict.time_error is not None
    assert verdict.time_error < 0.02
    assert (verdict.energy_error or 1.0) < 0.05


def test_a_model_that_is_wrong_below_the_default_is_found_out(
    world: SharedWorld, store: DatabaseStore
) -> None:
    """It explains the default perfectly, and promises the lower clocks too cheap."""

    def flattered(menu: tuple[ClockOption, ...]) -> tuple[ClockOption, ...]:
        default_s = max(menu, key=lambda option: option.clock_mhz).time_s
        return tuple(
            replace(option, time_s=default_s + 0.2 * (option.time_s - default_s)) for option in menu
        )

    true = world.profile()
    options = {key: flattered(menu) for key, menu in true.options.items()}
    policy = world.policy("recommend", profile=Profile(options, "flattering"))
    controller = recommending(world, store, policy)
    world.foreign = wanted(controller)
    controller.run(PASSES_OF_A_STRETCH, until=lambda: lowered_scores(store))
    first = [score.time_ratio for score in lowered_scores(store) if score.generation == 1]
    assert first
    assert max(first) < -0.03
    verdict = told(controller)
    assert not verdict.yes
    assert verdict.time_error == pytest.approx(max(map(abs, first)))
    assert "time error P95" in verdict.text


@pytest.mark.long
def test_a_clock_that_does_not_stand_still_scores_nothing(
    world: SharedWorld, store: DatabaseStore
) -> None:
    controller = recommending(world, store)
    asked = wanted(controller)
    for turn in range(12):
        world.foreign = asked if turn % 2 else {uuid: mhz - 60 for uuid, mhz in asked.items()}
        controller.run(5)
    assert not lowered_scores(store)


def test_what_was_written_survives_a_restart(world: SharedWorld, store: DatabaseStore) -> None:
    controller = recommending(world, store, world.policy("enforce"))
    controller.run(PASSES_OF_A_STRETCH)
    controller.source.put(world.policy("recommend", digest="2"))
    controller.run(5)
    controller.stop()
    before = told(controller)
    assert before.scores > 0
    after = Controller(world, store, world.policy("recommend"))
    after.run(5)
    assert told(after).scores == before.scores
    assert told(after).time_error == before.time_error


def test_promises_do_not_pile_up(world: SharedWorld, store: DatabaseStore) -> None:
    """One for a changed recommendation, however many passes go by."""
    controller = recommending(world, store)
    controller.run(200)
    plans = len(controller.plans())
    assert len(kept(store)[0]) <= plans <= PROMISES_KEPT
    _, scores = kept(store)
    assert len(scores) <= 2 * len(world.uuids), "a GPU is scored once a quarter of an hour"


def test_a_gpu_that_cannot_be_set_is_a_reason_against(
    world: SharedWorld, store: DatabaseStore
) -> None:
    controller = recommending(world, store)
    world.agents["n1:1"].stands_back.add(world.uuids[0])
    controller.run(2)
    assert "its agent backs off" in told(controller).text


def test_a_job_that_is_enforced_is_not_asked_about(
    world: SharedWorld, store: DatabaseStore
) -> None:
    """Whoever wrote `enforce` has decided; what hinders it now stands in the job's sentence."""
    controller = recommending(world, store, world.policy("enforce"))
    controller.run(PASSES_OF_A_STRETCH)
    assert controller.job.advisable is None
    world.peer_s = 1.15 * world.recent_s()
    controller.run(20)
    assert controller.job.view.peer_iteration_time_s is not None, "it waits for a straggler"
    assert controller.job.advisable is None
    world.agents["n1:1"].stands_back.add(world.uuids[0])
    controller.run(3)
    assert controller.job.view.reservation, "its clocks may not be set now"
    assert controller.job.advisable is None
    assert "enforcement:" not in status.page(
        board_json(controller.boards[-1]), "http://c:9440", 0.0
    )
    assert lowered_scores(store), "what is learnt meanwhile is written down all the same"


def test_a_job_without_a_profile_has_no_verdict(world: SharedWorld, store: DatabaseStore) -> None:
    controller = Controller(world, store, world.policy("recommend", profile=None))
    controller.run(5)
    assert controller.job.advisable is None


def test_status_says_it_in_one_line() -> None:
    whole = boards.board("recommend")
    [job] = whole.jobs
    verdict = Verdict(yes=False, text="not yet: predictions checked at 0 of 7 clocks", scores=8)
    shown = board_json(replace(whole, jobs=(replace(job, advisable=verdict),)))
    [told_of] = shown["jobs"]
    assert told_of["advisable"]["yes"] is False
    assert told_of["advisable"]["scores"] == 8
    page = status.page(shown, "http://c:9440", boards.NOON_UNIX_S)
    assert "  gpt3-175b: next: Not yet: predictions checked at 0 of 7 clocks.\n" in page


def test_somebody_elses_lock_stays_out_of_the_baseline(
    world: SharedWorld, store: DatabaseStore
) -> None:
    """So what is promised is still held against default clocks, and the page says why it waits."""
    controller = recommending(world, store)
    before = controller.job.view.baseline
    assert before is not None
    world.foreign = dict.fromkeys(world.uuids, 1200)
    controller.run(60)
    during = controller.job.view.baseline
    assert during is not None
    assert during.time_mean_s == pytest.approx(before.time_mean_s, rel=0.005)
    assert "is locked at 1200 MHz by another writer" in controller.job.view.external_lock
    assert "is locked at 1200 MHz" in told(controller).text
    page = status.page(board_json(controller.boards[-1]), "http://c:9440", 0.0)
    held = "GPU n1/0 (and 3 more) is locked at 1200 MHz by another writer"
    assert f"  demo: no baseline is measured: {held}. If the site sets this lock" in page
    assert "in site_default of the agent" in page
    world.foreign = {}
    controller.run(60)
    assert controller.job.view.external_lock == ""
    after = controller.job.view.baseline
    assert after is not None
    assert after.time_mean_s == pytest.approx(before.time_mean_s, rel=0.005)
    assert world.calls == []
