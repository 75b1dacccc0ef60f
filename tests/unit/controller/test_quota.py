"""What one agent may send."""

from draws import SAFE
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.fleet.quota import BURST_S, REPORT_BYTES_PER_S, Quota

LARGEST = 1 << 20


def test_an_agent_that_keeps_its_interval_is_never_a_flood() -> None:
    quota = Quota(1.0, LARGEST)
    assert not any(quota.flood(4_000, 8, float(n)) for n in range(10_000))


def test_messages_without_end_are_a_flood() -> None:
    quota = Quota(1.0, LARGEST)
    found = [quota.flood(10, 8, n / 100.0) for n in range(1_000)]
    assert "messages a second" in found[-1]
    assert not any(found[:50]), "what waited in the socket is none"


def test_large_messages_are_a_flood_by_the_number_of_gpus() -> None:
    def taken(gpus: int) -> int:
        quota = Quota(1.0, LARGEST)
        return sum(not quota.flood(LARGEST, gpus, n / 10.0) for n in range(100))

    assert taken(1) < taken(8) < 100


@SAFE
@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 1 << 20)), max_size=200))
def test_reports_of_a_gpu_stay_within_its_share(sent: list[tuple[float, int]]) -> None:
    quota, now_s, taken = Quota(1.0, LARGEST), 0.0, 0
    for wait_s, size in sent:
        now_s += wait_s
        if quota.has_room("G", size, now_s):
            taken += size
    assert taken <= REPORT_BYTES_PER_S * (now_s + BURST_S) + 1


def test_a_flooding_job_costs_no_other_gpu() -> None:
    quota = Quota(1.0, LARGEST)
    taken = [quota.has_room("G", 8_000, 0.0) for _ in range(1_000)]
    assert not all(taken)
    assert quota.has_room("H", 8_000, 0.0)
    assert quota.dropped > 0
