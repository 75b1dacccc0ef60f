"""The published emulation, reproduced: what Perseus claims for GPT-3 175B, and ours beside it.

SOSP'24 artefact: 8 stages x 96 microbatches, 16 pipelines; energy saved without a straggler
and with one that takes 1.2 times as long. The published figures are in its own reckoning
(floored times, fitted costs); ours are in real ones.
"""

import pipelines
import pytest

from joulecut_cli.granularity import Asked
from joulecut_engine.money import Iteration
from joulecut_engine.optimize.schedule import baseline
from joulecut_lab.compare import contest
from joulecut_lab.compare.rules import Entry, Published, Setting, cluster_baseline_j

# Unit times as published: 1 ms and about 0.1 ms.
PUBLISHED = {"a100": (1e-3, 0.133, 0.270), "a40": (1e-4, 0.089, 0.236)}
POINTS = 0.004  # of tolerance: their fit and ours differ by so much


def entries(name: str, unit_s: float) -> tuple[Setting, Iteration, dict[str, Entry]]:
    problem = pipelines.profiled(name, 96)
    fastest = baseline(problem)
    setting = Setting(problem, stragglers=(1.2,), pipelines=16)
    found = contest.Judge(setting).entries((Asked("computation"),), unit_s)
    start = Iteration(fastest.iteration_time_s, fastest.energy_j)
    return setting, start, {entry.name: entry for entry in found}


@pytest.mark.long
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_emulation_is_reproduced_and_ours_is_not_lower(name: str) -> None:
    unit_s, intrinsic, extrinsic = PUBLISHED[name]
    setting, start, found = entries(name, unit_s)
    perseus, ours = found["Perseus"], found["Joulecut computation"]
    [theirs], [own] = perseus.points, ours.points
    rule, price_w = Published(setting, unit_s), setting.problem.time_price_w
    alone = rule.claim(start.time_s)
    late_s = 1.2 * rule.solver.fastest_s
    late = rule.claim(start.time_s, late_s)
    # In its own reckoning: floored times, fitted costs.
    alone_j = alone.effective_j + price_w * alone.iteration_time_s
    late_j = late.effective_j + price_w * max(late_s, late.iteration_time_s)
    short_s = start.time_s - rule.solver.fastest_s
    floored = Iteration(rule.solver.fastest_s, start.energy_j - price_w * short_s)
    claimed = 1 - alone_j / floored.energy_j
    assert claimed == pytest.approx(intrinsic, abs=POINTS)
    (floored_j,) = cluster_baseline_j(setting, floored)
    assert 1 - (15 * late_j + 1.2 * alone_j) / floored_j == pytest.approx(extrinsic, abs=POINTS)
    saved = 1 - own.plan.energy_j / start.energy_j
    (start_j,) = cluster_baseline_j(setting, start)
    saved_late = 1 - ours.cluster_j[0] / start_j
    print(f"{name}: Perseus claims {claimed:.1%}, ours {saved:.1%} and {saved_late:.1%} with x1.2")
    assert own.plan.time_s <= start.time_s * (1 + 1e-9)
    assert saved >= intrinsic, "on time in real numbers, where the claim is not"
    assert saved_late >= extrinsic
    # Executed, its plan takes longer than it claims.
    assert theirs.plan.time_s > alone.iteration_time_s
