"""XID errors are counted once, whatever becomes of the reader process."""

import time

from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.monitor.hardware_state import STALE_S, HardwareState
from joulecut_agent.ports.reader import HardwareCounters, Reading


def reading(since_s: float, xids: dict[int, int]) -> Reading:
    counters = HardwareCounters(xid_errors=tuple(sorted(xids.items())), since_s=since_s)
    return Reading("GPU-0", None, None, hardware=counters)


@given(st.lists(st.lists(st.sampled_from([13, 31, 79]), max_size=6), max_size=5), st.data())
def test_counts_are_those_of_all_processes_together(
    processes: list[list[int]], data: st.DataObject
) -> None:
    state = HardwareState()
    for number, events in enumerate(processes):
        xids: dict[int, int] = {}
        for xid in events:
            xids[xid] = xids.get(xid, 0) + 1
            if data.draw(st.booleans()):  # several events may come in one reading
                state.add([reading(number + 1.0, xids)], 0.0, 5.0)
        state.add([reading(number + 1.0, xids)], 0.0, 9.0)
        state.add([Reading("GPU-0", None, None)], 0.0, 10.0)  # one without counters
    everything = [xid for events in processes for xid in events]
    counted = {xid: count for _, xid, count, _ in state.xid_errors()}
    assert counted == {xid: everything.count(xid) for xid in everything}


def test_stale_counters_are_absent() -> None:
    state, now_s = HardwareState(), time.monotonic()
    state.add([reading(1.0, {})], now_s, 0.0)
    assert state.latest("GPU-0") is not None
    state.add([reading(1.0, {})], now_s - STALE_S - 1.0, 0.0)
    assert state.latest("GPU-0") is None
    assert state.latest("GPU-1") is None
