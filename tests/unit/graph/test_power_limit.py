"""A power limit as a state: what a lock above and below the held clock gives."""

import random
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joulecut_cli.jobfile import read
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.power_limit import NEAR_RATIO, held, under_limit
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import solve
from joulecut_sim.gpt3 import curve
from joulecut_sim.skus import CARDS
from joulecut_wire.errors import BadInput

EXAMPLES = Path(__file__).parents[3] / "examples" / "cards"
TOP_MHZ = 2000


def _menu(share: float, static_w: float, load_w: float, step_mhz: int) -> tuple[ClockOption, ...]:
    """A card without a limit: seconds and joules by clock, highest first as in a sweep."""
    made = []
    for mhz in range(TOP_MHZ, 799, -step_mhz):
        time_s = 0.05 * ((1.0 - share) + share * TOP_MHZ / mhz)
        volts = 1.0 + 0.5 * max(0.0, mhz / 1000.0 - 1.1)
        made.append(ClockOption(mhz, time_s, time_s * (static_w + load_w * mhz / 1e3 * volts**2)))
    return tuple(made)


menus = st.builds(
    _menu, st.floats(0.2, 0.95), st.floats(40.0, 120.0), st.floats(100.0, 400.0),
    st.sampled_from([8, 15, 45]),
)  # fmt: skip


@example(_menu(0.5, 40.0, 100.0, 15), 443.0)  # its top rows differ by less than 1 % in time
@given(menus, st.floats(150.0, 1500.0))
def test_a_lock_above_the_held_clock_changes_nothing_and_one_below_binds(
    menu: tuple[ClockOption, ...], limit_w: float
) -> None:
    made = under_limit(menu, limit_w)
    assert [one.clock_mhz for one in made] == [one.clock_mhz for one in menu]
    over = [one for one in menu if one.power_w > limit_w]
    for before, after in zip(menu, made, strict=True):
        if before not in over:  # as it was, but where the curve is flat at the limit
            near = before.power_w >= limit_w * (1.0 - NEAR_RATIO)
            assert after.time_s == pytest.approx(before.time_s, rel=0.01 if near else 1e-12)
    states = {(round(one.time_s, 12), round(one.power_w, 6)) for one in made[: len(over)]}
    assert len(states) <= 1, "one state, whatever the lock"
    if 0 < len(over) < len(menu):
        (time_s, power_w) = states.pop()
        assert power_w == pytest.approx(limit_w, rel=1.01 * NEAR_RATIO)
        first_bound = menu[len(over)]
        assert menu[len(over) - 1].time_s * 0.99 <= time_s <= first_bound.time_s * 1.001


@given(menus, st.floats(150.0, 1500.0), st.floats(1.0, 2.0))
def test_a_lower_limit_is_never_faster_and_never_draws_more(
    menu: tuple[ClockOption, ...], limit_w: float, ratio: float
) -> None:
    lower, higher = under_limit(menu, limit_w), under_limit(menu, limit_w * ratio)
    for one, other in zip(lower, higher, strict=True):
        assert one.time_s >= other.time_s * 0.99
        assert one.power_w <= other.power_w * 1.05


@pytest.mark.parametrize("card", sorted(CARDS))
def test_it_is_what_the_simulated_card_does(card: str) -> None:
    """The simulator's curve without its limit, and with it: found again within 0.5 %."""
    seen = curve(card, 0, 8, "backward")
    clocks = [mhz for mhz in CARDS[card].clocks_mhz if mhz >= 855]
    share, top_mhz = seen.clock_bound, seen.clock_max_mhz
    times = [seen.time_fmax_s * ((1.0 - share) + share * top_mhz / mhz) for mhz in clocks]
    sku = CARDS[card]
    load = seen.load_w_per_ghz / sku.load_w_per_ghz
    powers = [seen.static_power_w - sku.static_power_w + sku.load_power_w(f, load) for f in clocks]
    limit_w = seen.power_w(top_mhz)
    found_s, found_w = held(clocks, times, powers, limit_w)
    for mhz, time_s, power_w in zip(clocks, found_s, found_w, strict=True):
        assert time_s == pytest.approx(seen.time_s(mhz), rel=0.005)
        assert power_w == pytest.approx(seen.power_w(mhz), rel=0.01)


def test_no_lucky_row_of_a_flat_end_is_chosen() -> None:
    """Rows that differ by noise alone are one state: a plan of them keeps what it promises."""
    dice = random.Random(3)
    clocks = list(range(1200, 1980, 15))
    true = [(0.05 * 1560 / min(f, 1560), 700.0 * min(f, 1560) / 1560) for f in clocks]
    times = [t * dice.gauss(1.0, 0.002) for t, _ in true]
    powers = [w * dice.gauss(1.0, 0.005) for _, w in true]
    found_s, found_w = held(clocks, times, powers, 700.0)
    top = [i for i, f in enumerate(clocks) if f >= 1575]
    assert {found_s[i] for i in top} == {found_s[-1]}
    assert found_s[-1] == pytest.approx(0.05, rel=0.002)
    assert found_w[-1] == pytest.approx(700.0, rel=0.003)
    assert min(times) < 0.998 * found_s[-1] or min(powers) < 0.99 * found_w[-1]


def test_a_job_file_plans_under_the_limit(tmp_path: Path) -> None:
    text = (EXAMPLES / "h200.yaml").read_text()
    assert "power_limit_w: 700" in text
    (tmp_path / "h200.csv").write_bytes((EXAMPLES / "h200.csv").read_bytes())
    times, energies = [], []
    for limit in ("700", "500"):
        path = tmp_path / "job.yaml"
        path.write_text(text.replace("power_limit_w: 700", f"power_limit_w: {limit}"))
        asked = read(path).problem()
        fastest = baseline(asked)
        goal = Goal(fastest.iteration_time_s * 1.02)
        found = solve(asked, goal, "gpu")
        assert not check(asked, goal, found)
        assert max(option.power_w for option in found.clocks) <= float(limit) * 1.01
        times.append(fastest.iteration_time_s)
        energies.append(fastest.energy_j)
    assert times[1] > 1.1 * times[0]
    assert energies[1] < energies[0]
    path.write_text(text.replace("power_limit_w: 700", "power_limit_w: 100"))
    with pytest.raises(BadInput, match=r"power_limit_w.*100 W, less than a GPU draws"):
        read(path)
