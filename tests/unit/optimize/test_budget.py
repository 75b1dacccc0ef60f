"""Power among jobs: never over the limit, the best there is, at equal slopes."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_engine.optimize.budget import Bidder, Offer, Unaffordable, allocate

OFFERS = st.lists(
    st.builds(Offer, st.integers(1, 30).map(float), st.integers(1, 20).map(float)),
    min_size=1,
    max_size=4,
).map(tuple)
BIDDERS = st.lists(
    st.builds(Bidder, st.just("job"), OFFERS, st.sampled_from([0.5, 1.0, 3.0])),
    min_size=1,
    max_size=4,
)


def brute_force(bidders: list[Bidder], limit_w: float) -> float | None:
    best: float | None = None
    for offers in itertools.product(*(bidder.offers for bidder in bidders)):
        if sum(o.power_w for o in offers) <= limit_w:
            value = sum(b.value(o) for b, o in zip(bidders, offers, strict=True))
            best = value if best is None else max(best, value)
    return best


@given(BIDDERS, st.integers(1, 120))
def test_within_the_limit_and_no_other_allocation_is_better(
    bidders: list[Bidder], limit_w: int
) -> None:
    best = brute_force(bidders, limit_w)
    if best is None:
        with pytest.raises(Unaffordable):
            allocate(bidders, limit_w)
        return
    found = allocate(bidders, limit_w)
    assert found.power_w == pytest.approx(sum(o.power_w for o in found.offers))
    assert found.power_w <= limit_w * (1 + 1e-9)
    assert all(o in b.offers for o, b in zip(found.offers, bidders, strict=True))
    assert found.value == pytest.approx(best, rel=1e-9)
    assert found.value_bound == pytest.approx(best, rel=1e-9)


@given(BIDDERS)
def test_with_power_for_all_everybody_runs_at_full_speed(bidders: list[Bidder]) -> None:
    found = allocate(bidders, 1e6)
    assert found.value == pytest.approx(sum(b.weight for b in bidders))
    assert found.price_per_w == 0.0


@given(BIDDERS, st.integers(1, 100), st.integers(0, 20))
def test_more_power_raises_the_bound(bidders: list[Bidder], limit_w: int, more_w: int) -> None:
    try:
        little = allocate(bidders, limit_w)
    except Unaffordable:
        return
    assert allocate(bidders, limit_w + more_w).value_bound >= little.value_bound - 1e-9


def curve(name: str, full_w: float, weight: float = 1.0) -> Bidder:
    """A concave frontier of 400 plans: rate = sqrt of the power's share."""
    shares = [0.5 + 0.5 * k / 399 for k in range(400)]
    return Bidder(name, tuple(Offer(full_w * s, math.sqrt(s)) for s in shares), weight)


def test_all_jobs_pay_the_same_for_the_last_watt() -> None:
    bidders = [curve("small", 1000.0), curve("large", 1100.0), curve("dear", 1200.0, weight=1.2)]
    found = allocate(bidders, 2450.0)
    slopes = []
    for bidder, offer in zip(bidders, found.offers, strict=True):
        number = bidder.offers.index(offer)
        assert 0 < number < len(bidder.offers) - 1, "a limit that leaves all in between"
        before, after = bidder.offers[number - 1], bidder.offers[number + 1]
        rise = bidder.value(after) - bidder.value(before)
        slopes.append(rise / (after.power_w - before.power_w))
    assert slopes == pytest.approx([found.price_per_w] * 3, rel=0.01)
    assert found.value == pytest.approx(found.value_bound, rel=1e-3)


def test_a_job_with_slack_gives_its_power_to_one_without() -> None:
    slack = Bidder("slack", (Offer(100.0, 1.0), Offer(80.0, 0.999)))
    tight = Bidder("tight", (Offer(100.0, 1.0), Offer(80.0, 0.8)))
    found = allocate([slack, tight], 180.0)
    assert found.offers == (Offer(80.0, 0.999), Offer(100.0, 1.0))


def test_what_cannot_be_paid_is_said_with_the_least_that_can() -> None:
    with pytest.raises(Unaffordable) as refused:
        allocate([curve("one", 1000.0)], 400.0)
    assert refused.value.least_w == pytest.approx(500.0)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, math.nan])
def test_weights_are_above_zero(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        Bidder("job", (Offer(1.0, 1.0),), weight)
    with pytest.raises(ValueError, match="nothing"):
        Bidder("job", ())
    with pytest.raises(ValueError, match="powers"):
        Bidder("job", (Offer(0.0, 1.0),))


def test_many_jobs_are_within_a_ten_thousandth_of_what_is_possible() -> None:
    """Forty jobs whose frontiers bend differently; an eighth less power."""
    bidders = [
        Bidder(
            f"job {k}",
            tuple(
                Offer((1 + k % 7) * (1000 - (9 + k % 3) * step), 1 / (1 + (step / (60 + k)) ** 2))
                for step in range(40)
            ),
            weight=1 + k % 5,
        )
        for k in range(40)
    ]
    full_w = sum(max(o.power_w for o in b.offers) for b in bidders)
    found = allocate(bidders, 0.88 * full_w)
    assert found.power_w <= 0.88 * full_w * (1 + 1e-9)
    assert found.value >= found.value_bound * (1 - 1e-4)
