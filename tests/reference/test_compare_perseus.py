"""The published emulation, reproduced: what Perseus claims for GPT-3 175B, and ours beside it.

SOSP'24 artefact: 8 stages x 96 microbatches, 16 pipelines; energy saved without a straggler
and with one that takes 1.2 times as long. The published figures are in its own reckoning
(floored times, fitted costs); ours are in real ones.
"""

from typing import Any

import pipelines
import pytest

from joulecut_engine.optimize.schedule import baseline
from joulecut_lab.compare import contest
from joulecut_lab.compare.rules import Entry, Priced, Setting, cluster_baseline_j

# Unit times as published: 1 ms and about 0.1 ms.
PUBLISHED = {"a100": (1e-3, 0.133, 0.270), "a40": (1e-4, 0.089, 0.236)}
POINTS = 0.004  # of tolerance: their fit and ours differ by so much


def entries(name: str, unit_s: float) -> tuple[Setting, Priced, dict[str, Entry]]:
    problem = pipelines.profiled(name, 96)
    fastest = baseline(problem)
    setting = Setting(problem, fastest.iteration_time_s, stragglers=(1.2,), pipelines=16)
    found = contest.entries(setting, ("computation",), unit_s)
    start = Priced(fastest.iteration_time_s, fastest.energy_j)
    return setting, start, {entry.name: entry for entry in found}


@pytest.mark.long
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_emulation_is_reproduced_and_ours_is_not_lower(name: str) -> None:
    unit_s, intrinsic, extrinsic = PUBLISHED[name]
    setting, start, found = entries(name, unit_s)
    perseus, ours = found["Perseus"], found["Joulecut computation"]
    assert perseus.claimed is not None
    assert ours.plan is not None
    short_s = start.time_s - perseus.claimed_fastest_s
    price_w = setting.problem.time_price_w
    floored = Priced(perseus.claimed_fastest_s, start.energy_j - price_w * short_s)
    claimed = 1 - perseus.claimed.energy_j / floored.energy_j
    assert claimed == pytest.approx(intrinsic, abs=POINTS)
    (floored_j,) = cluster_baseline_j(setting, floored)
    assert 1 - perseus.claimed_cluster_j[0] / floored_j == pytest.approx(extrinsic, abs=POINTS)
    saved = 1 - ours.plan.energy_j / start.energy_j
    (start_j,) = cluster_baseline_j(setting, start)
    saved_late = 1 - ours.cluster_j[0] / start_j
    print(f"{name}: Perseus claims {claimed:.1%}, ours {saved:.1%} and {saved_late:.1%} with x1.2")
    assert ours.plan.time_s <= start.time_s * (1 + 1e-9)
    assert saved >= intrinsic, "on time in real numbers, where the claim is not"
    assert saved_late >= extrinsic
    # Executed, its plan takes longer than it claims.
    assert perseus.plan is not None
    assert perseus.plan.time_s > perseus.claimed.time_s


@pytest.mark.long
@pytest.mark.parametrize("name", PUBLISHED)
def test_an_eighth_less_power_costs_hardly_any_throughput(name: str) -> None:
    problem = pipelines.profiled(name, 96)
    fastest = baseline(problem)
    power_w = 0.88 * fastest.energy_j / fastest.iteration_time_s
    setting = Setting(problem, fastest.iteration_time_s, power_w=power_w)
    found = {e.name: e for e in contest.entries(setting, ("computation",), 1e-3)}
    lost: dict[str, Any] = {}
    for rule in ("Joulecut computation", "one power cap for all", "one clock for all"):
        limited = found[rule].limited
        assert limited is not None
        assert limited.energy_j / limited.time_s <= power_w * (1 + 1e-6)
        lost[rule] = 1 - fastest.iteration_time_s / limited.time_s
    print(name, lost)
    assert lost["Joulecut computation"] <= 0.01
    assert min(lost["one power cap for all"], lost["one clock for all"]) >= 0.03
