"""A job that sends nothing, known by the rate that a Prometheus has of it."""

from rated import RANGE_S, RatedWorld
from worlds import Controller

from joulecut_controller.cluster.job_faults import job_faults
from joulecut_controller.observe.placement import SILENCE_SPANS
from joulecut_controller.ports import RateSample
from joulecut_controller.store.database import DatabaseStore
from joulecut_sim.plant import Noise

BUDGET = 0.05
SCRAPE_S, MINUTE_S = 15.0, 60.0


def test_a_rate_alone_is_learnt_held_to_its_budget_and_given_back_in_silence(
    store: DatabaseStore,
) -> None:
    world = RatedWorld(stages=2, timed=True)
    controller = Controller(world, store, world.rated(BUDGET), rates=world, interval_s=2.0)
    controller.run(600, until=lambda: not world.at_default())
    assert controller.job.choice.name == "gpu", "nothing says when an operation is"
    before, usual_s = controller.job.view.measured.baseline, world.history[0][1]
    assert not world.at_default(), controller.job.sentence
    assert abs(before.time_mean_s / usual_s - 1.0) < 0.01
    controller.run(150)
    now = controller.job.view.measured.current
    assert world.recent_s() <= usual_s * (1.0 + BUDGET + 0.005)
    assert (now.energy_j or 0.0) < (before.energy_j or 0.0)

    world.answers = False
    passes = controller.run(100, until=world.at_default)
    assert world.at_default()
    assert passes * controller.interval_s <= (SILENCE_SPANS + 1) * RANGE_S
    board = controller.boards[-1]
    assert [one.source for one in job_faults(board.jobs[0].view, board.view)] == ["promql"]


class WholeSteps(RatedWorld):
    """A counter of whole steps, scraped every 15 s, as its rate over a minute."""

    def take(self) -> tuple[RateSample, ...]:
        if self.now_s < self._asked_s + SCRAPE_S:
            return ()
        self._asked_s = self.now_s
        steps = sum(self.now_s - MINUTE_S < ended_s <= self.now_s for ended_s, _, _ in self.history)
        if not steps:
            return ()
        self._number += 1
        mean_s = MINUTE_S / steps
        return (RateSample(self.job, self._number, mean_s, MINUTE_S, self.now_s, "promql"),)


def test_a_counter_of_whole_steps_saves_within_a_quarter_of_an_hour(store: DatabaseStore) -> None:
    world = WholeSteps(stages=2, microbatches=35, scale=0.18, noise=Noise(0.01, 0.005))
    controller = Controller(world, store, world.rated(BUDGET), rates=world, interval_s=5.0)
    default_s = world.plant.iterate([world.sku.clock_max_mhz] * world.stages).own_s
    passes = controller.run(180, until=lambda: not world.at_default())
    assert not world.at_default(), controller.job.sentence
    assert passes * controller.interval_s <= 15.0 * MINUTE_S
    controller.run(180)
    assert not world.at_default(), controller.job.sentence
    assert world.recent_s(200) <= default_s * (1.0 + BUDGET + 0.005)
