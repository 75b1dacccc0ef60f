"""Words and numbers of a policy: two readings are one too many."""

import math

import pytest

from joulecut_controller.policy.policy import GpuRef
from joulecut_controller.policy.schema import references
from joulecut_wire import quantity
from joulecut_wire.quantity import Fault


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("10s", 10.0),
        ("500ms", 0.5),
        ("2min", 120.0),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1.5 s", 1.5),
        ("24h", 86400),
    ],
)
def test_durations(written: str, seconds: float) -> None:
    assert quantity.duration(above_zero=True)(written) == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["0s", 0, "0ms"])
def test_no_time_at_all_only_where_that_means_something(written: object) -> None:
    assert quantity.duration(above_zero=False)(written) == 0.0
    with pytest.raises(Fault):
        quantity.duration(above_zero=True)(written)


@pytest.mark.parametrize(
    "written",
    [10, 1.5, "10", "s", "-1s", "10 sec", "1mm", "2d", "nan s", "25h", True, "1e3s", "\u0661s"],
)
def test_what_is_no_duration(written: object) -> None:
    with pytest.raises(Fault) as caught:
        quantity.duration(above_zero=False)(written)
    assert "500ms" in caught.value.allowed


@pytest.mark.parametrize(
    ("written", "fraction"), [("0.5%", 0.005), ("2 %", 0.02), ("100%", 1.0), ("0%", 0.0), (0, 0.0)]
)
def test_percentages(written: object, fraction: float) -> None:
    assert quantity.percentage(100.0)(written) == pytest.approx(fraction)


@pytest.mark.parametrize("written", [2, 0.02, 1.0, "2", "0.02", "-1%", "101%", "2%%", True, False])
def test_a_bare_number_is_no_percentage(written: object) -> None:
    with pytest.raises(Fault) as caught:
        quantity.percentage(100.0)(written)
    assert "0.5%" in caught.value.allowed


@pytest.mark.parametrize("written", ["1", True, math.nan, math.inf, -math.inf, 11, -1, "1e999"])
def test_what_is_no_number_here(written: object) -> None:
    with pytest.raises(Fault):
        quantity.number(0.0, 10.0)(written)


def test_off_is_what_yaml_makes_of_it() -> None:
    assert quantity.choice("recommend", "off")(False) == "off"
    with pytest.raises(Fault):
        quantity.choice("recommend")(False)
    with pytest.raises(Fault):
        quantity.choice("recommend", "off")(True)


@pytest.mark.parametrize(
    ("written", "indices"),
    [
        ("node1/0", [0]),
        ("node1/0-3", [0, 1, 2, 3]),
        ("node1/0,2,4", [0, 2, 4]),
        ("node1/4-5,0", [4, 5, 0]),
    ],
)
def test_gpu_references_keep_the_order_of_the_operator(written: str, indices: list[int]) -> None:
    assert references(written) == tuple(GpuRef("node1", index) for index in indices)


@pytest.mark.parametrize(
    "written",
    ["node1", "node1/", "/0", "node1/a", "node1/3-1", "node1/0-", "node1/64", "node1/0 1", "a/b/0",
     "node1/0-9999999999", 2, None, True, "node1/,", "node1/-1"],
)  # fmt: skip
def test_what_names_no_gpu(written: object) -> None:
    with pytest.raises(Fault) as caught:
        references(written)
    assert caught.value.allowed
