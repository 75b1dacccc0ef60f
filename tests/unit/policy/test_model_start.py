"""A job that starts from a model of its run, nothing of it fitted to the job.

The plant is the simulator's GPT-3 175B on A100 (parameters of the public Perseus sweeps). The
estimator has the run file's predictions and a dozen measured iterations at default clocks; learning
from no profile takes minutes at trial clocks.
"""

import pytest

from joulecut_engine.estimate.estimator import Sample, Subject
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import KINDS, Kind, Pipeline, Profile
from joulecut_engine.optimize.formulation import problem
from joulecut_engine.optimize.problem import Goal, Solution
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import Solver
from joulecut_lab.run_file import predicted, read
from joulecut_sim.profile import rows
from joulecut_sim.skus import find

STAGES, DEFAULT_MHZ, MEASURED = 8, 1410, 12
BLOCKING_POWER_W = 83.64  # of the same measurements
SHAPE = Pipeline("1f1b", STAGES, 24)
RUN = """\
model: gpt3-175b
system: dgx-a100
run: {gpus: 64, tensor: 8, pipeline: 8, microbatch: 1, global_batch: 24, sequence: 2048,
      recompute: selective, sequence_parallel: true, dropout: true, zero: 1}
"""
Costs = dict[tuple[int, Kind], dict[int, ClockOption]]


@pytest.fixture(scope="module")
def truth() -> Costs:
    sku = find("a100-sxm", "test")
    found: Costs = {}
    for stage, kind, mhz, time_s, energy_j in rows(sku, STAGES, scale=1.0, noise=0.0, seed=0):
        found.setdefault((stage, kind), {})[mhz] = ClockOption(mhz, time_s, energy_j)
    return found


@pytest.fixture(scope="module")
def believed(truth: Costs, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """What the estimator says after some iterations at default clocks."""
    path = tmp_path_factory.mktemp("run") / "run.yaml"
    path.write_text(RUN)
    estimator = OnlineEstimator({"job": predicted(read(path)).profile})
    samples = []
    for (stage, kind), options in truth.items():
        now = options[DEFAULT_MHZ]
        subject = Subject("job", f"gpu-{stage}", stage, kind)
        one = Sample(subject, DEFAULT_MHZ, now.time_s, now.energy_j / now.time_s)
        samples += [one] * MEASURED
    assert estimator.learn(tuple(samples)) == ()  # within a factor of two: none is refused
    table = {}
    for (stage, kind), options in truth.items():
        clocks = tuple(sorted(options))
        found = estimator.predict(Subject("job", f"gpu-{stage}", stage, kind), clocks)
        table[stage, kind] = tuple(
            ClockOption(mhz, float(time_s), float(time_s * power_w))
            for mhz, time_s, power_w in zip(clocks, found.time_s, found.power_w, strict=True)
        )
    return Profile(table)


def _planned(costs: Profile, slowdown: float) -> dict[int, int]:
    """One clock per stage."""
    made = problem(SHAPE, costs, BLOCKING_POWER_W)
    goal = Goal(baseline(made).iteration_time_s * (1.0 + slowdown))
    plan = Solver(made, "gpu").solve(goal)
    return {
        operation.stage: option.clock_mhz
        for operation, option in zip(made.graph.operations, plan.clocks, strict=True)
    }


def _true(truth: Costs, clocks: dict[int, int]) -> Solution:
    chosen = {(stage, kind): (truth[stage, kind][clocks[stage]],)
              for stage in range(STAGES) for kind in KINDS}  # fmt: skip
    return baseline(problem(SHAPE, Profile(chosen), BLOCKING_POWER_W))


@pytest.mark.parametrize("slowdown", [0.01, 0.03, 0.05])
def test_the_first_plan_saves_most_of_what_is_possible(
    truth: Costs, believed: Profile, slowdown: float
) -> None:
    default = _true(truth, dict.fromkeys(range(STAGES), DEFAULT_MHZ))
    known = Profile({key: tuple(options.values()) for key, options in truth.items()})
    best = _true(truth, _planned(known, slowdown))
    first = _true(truth, _planned(believed, slowdown))
    possible_j, saved_j = default.energy_j - best.energy_j, default.energy_j - first.energy_j
    print(f"budget {slowdown:.0%}: {saved_j / possible_j:.1%} of the possible saving, "
          f"{first.iteration_time_s / default.iteration_time_s - 1:.2%} slower")  # fmt: skip
    assert saved_j > 0.9 * possible_j
    assert first.iteration_time_s <= default.iteration_time_s * (1.0 + slowdown + 0.005)
