"""A power limit counts for a plan where somebody else set it."""

import pytest

from joulecut_controller.view import GpuView
from joulecut_wire.messages import GpuDescription, GpuSnapshot, Lease


def _limit_of_others(enforced_w: float | None, ours_w: float | None, kept_w: float) -> float | None:
    lease = Lease("job", 1, 1, 0, 1980, 5.0, ours_w)
    about = GpuDescription("g", 0, "NVIDIA H200", (1980,), power_limit_default_w=700.0)
    shown = GpuSnapshot(
        "g", power_limit_enforced_w=enforced_w, lease=lease, power_limit_kept_w=kept_w
    )
    return GpuView(about, "a:1", "a", shown, 0.5).limit_of_others_w


@pytest.mark.parametrize(
    ("enforced_w", "ours_w", "kept_w", "counts"),
    [
        (500.0, None, 0.0, 500.0),
        (700.0, None, 0.0, None),  # the card's own
        (None, None, 0.0, None),
        (500.0, 500.0, 0.0, None),  # under our lease
        (500.0, None, 500.0, None),  # kept beyond it
    ],
)
def test_the_limit_of_another_counts_and_ours_does_not(
    enforced_w: float | None, ours_w: float | None, kept_w: float, counts: float | None
) -> None:
    assert _limit_of_others(enforced_w, ours_w, kept_w) == counts
