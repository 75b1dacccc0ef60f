"""Shares of waits: moments against schedules, tables against all combinations, bounds against
integer programs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import with_sends
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from joulecut_engine.graph.pipeline import Pipeline
from joulecut_engine.optimize.ascent import dual, pressed
from joulecut_engine.optimize.computation import Computation
from joulecut_engine.optimize.convolution import by_begin, by_end, shrunk, stretched
from joulecut_engine.optimize.moments import Moments, moments_of
from joulecut_engine.optimize.problem import Goal, Problem
from joulecut_engine.optimize.shares import Level, Shares

LOSS = st.integers(-3, 9).map(float)
TABLE = st.lists(LOSS, min_size=1, max_size=6)
SHAPES = [
    Pipeline("1f1b", 2, 3, transfers="overlapped"),
    Pipeline("1f1b", 4, 9, transfers="overlapped"),
    Pipeline("1f1b", 3, 5, transfers="overlapped", optimizer=True, data_collective=True),
    Pipeline("1f1b", 3, 4, transfers="synchronous"),
    Pipeline("gpipe", 3, 4, transfers="overlapped"),
    Pipeline("interleaved-1f1b", 2, 4, chunks=2, transfers="overlapped"),
    Pipeline("zb-h1", 3, 5, transfers="overlapped"),
    Pipeline("1f1b", 3, 5),
]


def _moments(computation: Computation) -> Moments:
    order = computation.problem.graph.order
    return moments_of(computation.network, [computation.network.row[list(o)] for o in order])


@pytest.mark.parametrize("pipeline", SHAPES, ids=str)
def test_every_plan_keeps_its_moments_apart(pipeline: Pipeline) -> None:
    """In any schedule each arc is as long as it must be, if all begins as early as it can."""
    computation = Computation(with_sends(pipeline, 3, 1))
    network, moments = computation.network, _moments(computation)
    kept = np.setdiff1d(np.arange(network.size), moments.folded)
    dice, near = np.random.default_rng(2), np.inf
    for _ in range(20):
        lasts = network.fastest.copy()
        lasts[kept] *= dice.uniform(1.0, 2.0, len(kept))
        end = network.ends(lasts)
        start, when_s = network.starts(end), np.zeros(moments.count)
        np.maximum.at(when_s, moments.done[kept], end[kept] / network.second)
        when_s[1] = end.max() / network.second
        when_s[moments.begin[kept]] = start[kept] / network.second
        taken_s = when_s[moments.done[kept]] - when_s[moments.begin[kept]]
        assert (taken_s >= lasts[kept] / network.second + moments.lag_s[kept] - 1e-12).all()
        waits = moments.waits
        over_s = when_s[waits.head] - when_s[waits.tail] - waits.lag_s
        assert (over_s >= -1e-12).all()
        if len(moments.meets.first):
            near = min(near, float(over_s[moments.meets.after].min()))
    sends = pipeline.schedule == "1f1b" and pipeline.transfers == "overlapped"
    assert (len(moments.folded) > 0) == (pipeline.transfers == "overlapped")
    assert not sends or near == pytest.approx(0.0, abs=1e-9)  # no nearer could be asked for


@pytest.mark.parametrize("pipeline", SHAPES, ids=str)
def test_what_flows_into_a_moment_leaves_it(pipeline: Pipeline) -> None:
    computation = Computation(with_sends(pipeline, 3, 3))
    network, moments = computation.network, _moments(computation)
    goal = Goal(computation.fastest_s * 1.03)
    link_w = computation.relax(goal).link_w
    assert link_w is not None
    kept = np.setdiff1d(np.arange(network.size), moments.folded)
    through_w = np.bincount(network.heads, link_w, network.size + 1)[kept]
    more_w = np.zeros(moments.count)
    np.add.at(more_w, moments.done[kept], through_w)
    np.add.at(more_w, moments.begin[kept], -through_w)
    np.add.at(more_w, moments.waits.head, link_w[moments.waits.link])
    np.add.at(more_w, moments.waits.tail, -link_w[moments.waits.link])
    assert more_w[2:] == pytest.approx(0.0, abs=1e-6 * float(link_w.max()))


def test_meetings_are_found_where_stages_hand_over() -> None:
    """Each forward but the last stage's meets the backward before it, between warm-up and end."""
    moments = _moments(
        Computation(with_sends(Pipeline("1f1b", 4, 9, transfers="overlapped"), 2, 1))
    )
    assert len(moments.meets.first) == sum(9 - 4 + stage + 1 for stage in range(3))
    assert sorted(moments.begins[moments.begins >= 0]) == list(range(len(moments.meets.first)))
    assert sorted(moments.ends[moments.ends >= 0]) == list(range(len(moments.meets.first)))


def _at(table: list[float], k: int) -> float:
    return math.inf if k < 0 else table[min(k, len(table) - 1)]


@settings(max_examples=150, deadline=None)
@given(TABLE, TABLE, TABLE)
def test_tables_are_the_least_over_shares(
    own: list[float], end: list[float], begin: list[float]
) -> None:
    """A length of k gives the row k, less what it loses at its begin, and at its end as much more
    as the share there is above its least."""
    longest = len(own) + len(end) + len(begin) + 3
    longer = stretched(np.array(own), np.array(end))
    found = shrunk(longer, np.array(begin))
    for k in range(longest):
        least = min(
            _at(own, k - (len(end) - 1) + t - s) + end[t] + begin[s]
            for t, s in itertools.product(range(len(end)), range(len(begin)))
        )
        assert _at(found.tolist(), k) == pytest.approx(least)


@settings(max_examples=150, deadline=None)
@given(TABLE, TABLE, TABLE, st.data())
def test_each_share_costs_the_least_with_it(
    own: list[float], end: list[float], begin: list[float], data: st.DataObject
) -> None:
    size = len(own) + len(end) + len(begin) - 2
    rest = data.draw(st.lists(LOSS, min_size=size, max_size=size))

    def total(k: int, t: int, s: int) -> float:
        return rest[k] + _at(own, k - (len(end) - 1) + t - s)

    ends = by_end(np.array(rest), np.array(own), np.array(begin), len(end))
    for t in range(len(end)):
        every = itertools.product(range(size), range(len(begin)))
        assert ends[t] == pytest.approx(min(total(k, t, s) + begin[s] for k, s in every))
    longer = stretched(np.array(own), np.array(end))
    begins = by_begin(np.array(rest), longer, len(begin))
    for s in range(len(begin)):
        every = itertools.product(range(size), range(len(end)))
        assert begins[s] == pytest.approx(min(total(k, t, s) + end[t] for k, t in every))


def _best_j(problem: Problem, goal: Goal) -> float:
    """The least energy there is, as an integer program that knows nothing of moments."""
    count, menus = len(problem.options), problem.options
    first = np.cumsum([0, *map(len, menus)])
    powers_w = [problem.blocking_power_w[o.stage] for o in problem.graph.operations]
    pairs = zip(menus, powers_w, strict=True)
    costs_j = [o.effective_cost_j(power_w) for menu, power_w in pairs for o in menu]
    cost_j = np.array([*costs_j, *[0.0] * count, problem.time_price_w])
    entries, low, high = list[tuple[int, int, float]](), list[float](), list[float]()

    def row(terms: list[tuple[int, float]], least: float, most: float) -> None:
        entries.extend((len(low), column, value) for column, value in terms)
        low.append(least)
        high.append(most)

    for i in range(count):
        row([(k, 1.0) for k in range(first[i], first[i + 1])], 1.0, 1.0)
    for a, b in [*problem.graph.edges, *((i, count) for i in range(count))]:
        lasts = [(int(first[a]) + k, -o.time_s) for k, o in enumerate(menus[a])]
        row([(first[-1] + b, 1.0), (first[-1] + a, -1.0), *lasts], 0.0, np.inf)
    at, column, value = zip(*entries, strict=True)
    size = len(cost_j)
    whole = np.arange(size) < first[-1]
    found = milp(
        cost_j,
        integrality=whole.astype(int),
        bounds=Bounds(0.0, np.where(whole, 1.0, goal.deadline_s)),
        constraints=LinearConstraint(
            coo_array((value, (at, column)), shape=(len(low), size)).tocsc(), low, high
        ),
        options={"mip_rel_gap": 1e-9},
    )
    assert found.status == 0
    return float(found.fun)


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.05])
@pytest.mark.parametrize(
    ("stages", "microbatches", "clocks", "seed"), [(2, 3, 3, 1), (2, 5, 2, 2), (3, 4, 2, 3)]
)
def test_no_plan_is_better_than_what_is_proven(
    stages: int, microbatches: int, clocks: int, seed: int, factor: float
) -> None:
    """Pressed flows and prices told from coarse to fine ticks among them. At the fastest deadline
    the relaxation sees less than all of it, and what is pressed loses nothing by rounding."""
    pipeline = Pipeline("1f1b", stages, microbatches, transfers="overlapped")
    computation = Computation(with_sends(pipeline, clocks, seed))
    network, goal = computation.network, Goal(computation.fastest_s * factor)
    relaxed, price_w = computation.relax(goal), computation.time_price_w(goal)
    best_j = _best_j(computation.problem, goal)
    shares = Shares(network, _moments(computation))
    assert relaxed.link_w is not None
    assert len(shares.pairs)
    hard_w = pressed(network, relaxed.link_w, goal.deadline_s, 1e-6 * relaxed.bound_j)
    plain_j, _ = dual(network, relaxed.link_w, price_w, goal.deadline_s)
    assert (factor == 1.0) == (hard_w is not relaxed.link_w)
    for link_w in (relaxed.link_w, hard_w):
        ticks_s = [shares.tick_s(link_w, work) for work in (1e5, 1e6)]
        coarse, fine = (
            Level(shares, link_w, tick_s, price_w, goal.deadline_s) for tick_s in ticks_s
        )
        assert ticks_s[1] < ticks_s[0]
        coarse_j = coarse.passed(6)
        fine.told(coarse)
        found_j = max(coarse_j, fine.passed(6))
        assert found_j <= best_j * (1 + 1e-6)  # to which programs keep constraints
        assert factor > 1.0 or found_j > plain_j


@pytest.mark.parametrize("pressing", [False, True])
def test_no_plan_loses_less_than_it_is_charged(pressing: bool) -> None:
    """Moments of plans, each rounded down from its own zero: every share is one that is counted,
    and tables charge no more than what the plan costs."""
    computation = Computation(with_sends(Pipeline("1f1b", 3, 6, transfers="overlapped"), 4, 7))
    network, moments = computation.network, _moments(computation)
    goal = Goal(computation.fastest_s * (1.0 if pressing else 1.1))
    price_w, link_w = computation.time_price_w(goal), computation.relax(goal).link_w
    assert link_w is not None
    if pressing:
        link_w = pressed(network, link_w, goal.deadline_s, 1.0)
    shares = Shares(network, moments)
    level = Level(shares, link_w, shares.tick_s(link_w, 1e6), price_w, goal.deadline_s)
    base, value, counts = level._tables
    curves = [network.curves.distinct[c] for c in network.curve]
    dice, met, ends = np.random.default_rng(8), set[str](), shares.ends
    for trial in range(40):
        slow = trial / 40 * (not pressing)
        pick = [int(dice.integers(len(c.time_s)) * (dice.uniform() < slow)) for c in curves]
        lasts_s = np.array([c.time_s[k] for c, k in zip(curves, pick, strict=True)])
        end = network.ends(lasts_s)
        if end.max() > goal.deadline_s * (1 + 1e-12):
            continue
        when_s = np.zeros(moments.count)
        np.maximum.at(when_s, moments.done[shares.kept], end[shares.kept])
        when_s[1] = end.max()
        when_s[moments.begin[shares.kept]] = network.starts(end)[shares.kept]
        at = np.floor((when_s - level.phase_s) / level._tick_s + 1e-6).astype(int)
        late = at[moments.meets.second] - at[moments.meets.first]
        assert (level._least <= late).all()
        assert (late <= level._most).all()
        met |= {"least"} if (late == level._least).any() else set()
        met |= {"most"} if (late == level._most).any() else set()
        length = at[moments.done] - at[moments.begin]
        k = length[shares.rows] - base
        assert (k >= 0).all()
        charged_j = level._plain_j + value[np.arange(len(k)), np.minimum(k, counts - 1)].sum()
        charged_j += sum(level._own_j[m][late[m] - level._least[m]] for m in ends[ends >= 0])
        costs_j = sum(float(c.cost_j[k]) for c, k in zip(curves, pick, strict=True))
        spent_j = costs_j + price_w * end.max()
        assert charged_j <= spent_j + 1e-6 * abs(spent_j)
        met.add("plan")
    assert "plan" in met
    assert "least" in met or "most" in met


def test_where_sends_overlap_more_is_proven_than_the_relaxation_says() -> None:
    computation = Computation(with_sends(Pipeline("1f1b", 3, 8, transfers="overlapped"), 4, 5))
    goal = Goal(computation.fastest_s * 1.02)
    relaxed = computation.relax(goal)
    finer = computation.finer(goal, relaxed, computation.raised(goal, relaxed))
    plan = computation.solve(goal, relaxed, rolls=100, moves=200_000)
    left_j = plan.energy_j - computation.bound_j(goal, relaxed)
    proven_j = computation.bound_j(goal, finer) - computation.bound_j(goal, relaxed)
    assert 0.2 * left_j < proven_j <= left_j


def test_passing_goes_on_where_it_ended_and_proves_no_more_than_there_is() -> None:
    computation = Computation(with_sends(Pipeline("1f1b", 3, 4, transfers="overlapped"), 2, 3))
    goal = Goal(computation.fastest_s * 1.01)
    relaxed, price_w = computation.relax(goal), computation.time_price_w(goal)
    shares = Shares(computation.network, _moments(computation))
    assert relaxed.link_w is not None
    found_j, link_w = shares.proven([relaxed.link_w], price_w, goal.deadline_s, np.inf)
    more_j = shares.further(link_w, np.inf)
    assert found_j < more_j <= _best_j(computation.problem, goal) * (1 + 1e-6)
    assert shares.further(link_w, np.inf) == -np.inf  # once
    shares.proven([relaxed.link_w], price_w, goal.deadline_s, np.inf)
    assert shares.further(link_w.copy(), np.inf) == -np.inf  # of another flow nothing is known
