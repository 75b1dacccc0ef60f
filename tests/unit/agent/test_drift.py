"""Whose doing it is that a GPU does not show what was asked: by cause, never by chance."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.control import drift
from joulecut_agent.control.drift import TICKS, Backoff, Memory, Order, order_of
from joulecut_agent.control.drift_watch import slowdown
from joulecut_agent.keeper.evidence import SETTLE_S
from joulecut_wire import codec
from joulecut_wire.messages import GpuSnapshot, Lease, WatchTick, profile_of, with_profiles

TOP_MHZ = 1980
LATER_S = 10.0  # past the time in which an order settles
ORDER = Order(TOP_MHZ, clock_max_mhz=1200, since_s=0.0)
BUSY = GpuSnapshot(
    "GPU-0", energy_j=100.0, clock_sm_mhz=1200, utilization_gpu_ratio=1.0,
    power_limit_enforced_w=700.0, persistence=True,
)  # fmt: skip

readings = st.builds(
    GpuSnapshot,
    uuid=st.just("GPU-0"),
    clock_sm_mhz=st.none() | st.integers(200, TOP_MHZ),
    utilization_gpu_ratio=st.none() | st.floats(0, 1),
    power_limit_enforced_w=st.none() | st.floats(100, 700),
    event_reasons=st.lists(st.sampled_from(["idle", *drift.REASONS]), max_size=3).map(tuple),
    energy_j=st.none() | st.floats(0, 1e6),
    persistence=st.none() | st.booleans(),
)
orders = st.builds(
    Order,
    default_mhz=st.just(TOP_MHZ),
    clock_max_mhz=st.sampled_from([0, 900, 1200, TOP_MHZ]),
    power_limit_w=st.none() | st.sampled_from([300.0, 500.0]),
    since_s=st.floats(0, 20),
    fresh=st.booleans(),
)


def _after(gpus: list[GpuSnapshot], order: Order = ORDER, memory: Memory | None = None) -> str:
    memory, cause = memory or Memory(order), ""
    for n, gpu in enumerate(gpus):
        memory, cause = drift.check(memory, gpu, order, LATER_S + n)
    return cause


def _seen_in_force() -> Memory:
    memory, cause = drift.check(Memory(ORDER), BUSY, ORDER, LATER_S)
    assert not cause
    assert memory.reached
    return memory


@pytest.mark.parametrize(
    ("gpu", "cause"),
    [
        (BUSY, ""),
        (replace(BUSY, clock_sm_mhz=1215), ""),  # one step of the list
        (replace(BUSY, clock_sm_mhz=900), drift.EXTERNAL),
        (replace(BUSY, clock_sm_mhz=900, event_reasons=("sw_power_cap",)), ""),
        (replace(BUSY, clock_sm_mhz=900, event_reasons=("hw_power_brake",)), ""),
        (replace(BUSY, clock_sm_mhz=900, utilization_gpu_ratio=0.1), ""),
        (replace(BUSY, clock_sm_mhz=345, event_reasons=("idle",)), ""),
        (replace(BUSY, clock_sm_mhz=None), ""),
        (replace(BUSY, clock_sm_mhz=1500), drift.EXTERNAL),
        (replace(BUSY, clock_sm_mhz=1500, utilization_gpu_ratio=0.0), drift.EXTERNAL),
        (replace(BUSY, clock_sm_mhz=TOP_MHZ), drift.RESET),
        (replace(BUSY, clock_sm_mhz=1500, event_reasons=("sw_power_cap",)), drift.RESET),
    ],
)
def test_clocks_tell_who_set_them(gpu: GpuSnapshot, cause: str) -> None:
    assert _after([gpu] * drift.TICKS, memory=_seen_in_force()) == cause


def test_readings_that_follow_each_other_at_once_prove_nothing() -> None:
    memory, now_s = Memory(ORDER), LATER_S
    for _ in range(50):
        memory, cause = drift.check(memory, replace(BUSY, clock_sm_mhz=900), ORDER, now_s)
        assert bool(cause) == (now_s - LATER_S >= drift.SUSPECT_S)
        now_s += 0.02


def test_a_clock_that_was_never_reached_is_not_external() -> None:
    """A ceiling from outside keeps our lock in place: it has to be taken back, not given up."""
    low = replace(BUSY, clock_sm_mhz=900)
    assert _after([low] * drift.TICKS) == drift.NOT_REACHED
    assert drift.NOT_REACHED in drift.CLEARED


def test_what_the_keeper_confirms_is_asked_at_the_first_reading() -> None:
    for clock_mhz, cause in ((1500, drift.EXTERNAL), (TOP_MHZ, drift.RESET)):
        assert _after([replace(BUSY, clock_sm_mhz=clock_mhz)]) == cause


def test_limits_tell_who_set_them() -> None:
    order = Order(TOP_MHZ, power_limit_w=500.0)
    for limit_w, cause in ((500.0, ""), (400.0, drift.LIMIT), (700.0, drift.EXTERNAL)):
        gpu = replace(BUSY, power_limit_enforced_w=limit_w)
        assert _after([gpu] * drift.TICKS, order, Memory(order)) == cause


def test_a_driver_that_forgot_is_seen_at_once() -> None:
    memory = _seen_in_force()
    assert drift.check(memory, replace(BUSY, energy_j=0.0), ORDER, LATER_S)[1] == drift.RELOAD
    gone = replace(BUSY, persistence=False)
    assert drift.check(memory, gone, ORDER, LATER_S)[1] == drift.PERSISTENCE
    without = Order(TOP_MHZ)
    assert drift.check(memory, replace(BUSY, energy_j=0.0), without, LATER_S)[1] == ""


def test_a_driver_that_forgot_is_no_other_writer_in_whatever_order_it_is_read() -> None:
    """A limit read after the reload beside a counter read before; no counter for a while."""
    order = Order(TOP_MHZ, power_limit_w=500.0)
    later = replace(order, since_s=LATER_S)
    half = replace(BUSY, power_limit_enforced_w=700.0)
    gone, begun = replace(half, energy_j=None), replace(half, energy_j=1.0)
    for between, last in ((half, order), (gone, order), (gone, later)):
        memory, cause = drift.check(
            Memory(order), replace(BUSY, power_limit_enforced_w=500.0), order, LATER_S
        )
        assert not cause
        memory, cause = drift.check(memory, between, last, LATER_S + 0.5)
        assert not cause
        assert drift.check(memory, begun, last, LATER_S + 1.0)[1] == drift.RELOAD


@given(st.lists(readings, max_size=8), orders)
def test_without_a_setting_of_ours_there_is_no_drift(gpus: list[GpuSnapshot], order: Order) -> None:
    order, memory = replace(order, clock_max_mhz=0, power_limit_w=None), Memory()
    for gpu in gpus:
        memory, cause = drift.check(memory, gpu, order, LATER_S)
        assert cause == ""


@given(st.lists(st.tuples(readings, st.floats(0, 30)), max_size=12), orders)
def test_a_cause_takes_readings_in_a_row_or_is_for_the_keeper_to_confirm(
    gpus: list[tuple[GpuSnapshot, float]], order: Order
) -> None:
    """One late or odd reading, or one close to an order, never ends a lease."""
    memory, now_s, row = Memory(), 0.0, 0
    for gpu, step_s in gpus:
        now_s += step_s
        memory, cause = drift.check(memory, gpu, order, now_s)
        if cause in {drift.RELOAD, drift.PERSISTENCE}:
            row = 0
            continue
        settled = now_s - order.since_s >= SETTLE_S
        row = row + 1 if memory.suspect and settled else row * (not settled)
        assert not cause or row >= drift.TICKS or cause in drift.CONFIRMED
        assert not cause or settled


def test_a_lock_from_before_us_is_seen_under_load_only() -> None:
    fresh = Order(TOP_MHZ, fresh=True)
    locked = replace(BUSY, clock_sm_mhz=1200)
    for gpu, site_mhz in (
        (locked, 1200),
        (replace(locked, utilization_gpu_ratio=0.1), 0),
        (replace(locked, event_reasons=("sw_thermal",)), 0),
        (replace(locked, clock_sm_mhz=TOP_MHZ - 60), 0),  # what boost loses when warm
    ):
        memory = Memory()
        for _ in range(drift.TICKS):
            assert memory.site_mhz == 0
            memory, cause = drift.check(memory, gpu, fresh, LATER_S)
            assert cause == ""
        assert memory.site_mhz == site_mhz
    memory, _ = drift.check(memory, replace(BUSY, clock_sm_mhz=TOP_MHZ), fresh, LATER_S)
    assert memory.site_mhz == 0


@pytest.mark.parametrize(
    ("gpu", "order", "reason"),
    [
        (BUSY, ORDER, ""),
        (replace(BUSY, event_reasons=("hw_power_brake", "hw_slowdown")), ORDER, "power_brake"),
        (replace(BUSY, clock_sm_mhz=700, event_reasons=("sw_thermal",)), ORDER, "thermal"),
        (replace(BUSY, clock_sm_mhz=700, event_reasons=("sw_power_cap",)), ORDER, "power_cap"),
        (replace(BUSY, event_reasons=("sw_power_cap",)), ORDER, ""),  # as fast as asked
        (replace(BUSY, event_reasons=("sw_power_cap",)), Order(TOP_MHZ), "power_cap"),
        (
            replace(BUSY, event_reasons=("sw_power_cap",), power_limit_enforced_w=300.0),
            Order(TOP_MHZ, power_limit_w=300.0),
            "",  # the cap is ours
        ),
        (
            replace(BUSY, event_reasons=("sw_power_cap",), power_limit_enforced_w=250.0),
            Order(TOP_MHZ, power_limit_w=300.0),
            "power_cap",
        ),
        (replace(BUSY, clock_sm_mhz=345, utilization_gpu_ratio=0.0), ORDER, ""),
        (replace(BUSY, clock_sm_mhz=700, power_profiles=("max_q",)), ORDER, "power_profile"),
        (replace(BUSY, power_profiles=("max_q",)), ORDER, ""),  # as fast as asked
    ],
)
def test_slow_for_other_reasons(gpu: GpuSnapshot, order: Order, reason: str) -> None:
    assert drift.slow_reason(gpu, order) == reason


def test_standing_back_grows_to_an_hour_and_is_forgotten() -> None:
    stand, now_s, delays_s = Backoff(), 0.0, []
    for _ in range(9):
        stand = drift.extended(stand, drift.EXTERNAL, now_s)
        delays_s.append(stand.until_s - now_s)
        now_s = stand.until_s
    assert delays_s == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    stand = drift.extended(stand, drift.EXTERNAL, now_s + drift.FORGET_S + 1)
    assert stand.until_s == now_s + drift.FORGET_S + 1 + 60.0


def test_one_reset_is_a_steps_end_and_the_next_is_external() -> None:
    stand = drift.extended(Backoff(), drift.RESET, 0.0)
    assert stand.until_s < 0.0
    stand = drift.extended(stand, drift.RESET, 100.0)
    assert stand.until_s == 160.0
    assert drift.extended(Backoff(), drift.LIMIT, 0.0) == Backoff()


def test_a_lock_that_comes_after_our_first_write_is_no_sites_lock() -> None:
    memory, low = Memory(), replace(BUSY, clock_sm_mhz=1200)
    for n in range(2 * drift.TICKS):
        memory, _ = drift.check(memory, low, Order(TOP_MHZ), LATER_S + n)
    assert memory.site_mhz == 0


def test_a_sites_lock_is_known_by_what_was_seen_before_our_first_write() -> None:
    memory = Memory(site_mhz=1200, site_ticks=drift.TICKS)
    memory, _ = drift.check(memory, replace(BUSY, clock_sm_mhz=900), Order(TOP_MHZ), LATER_S)
    assert memory.site_mhz == 1200


def test_persistence_that_was_never_on_is_not_lost() -> None:
    off = replace(BUSY, persistence=False)
    assert _after([off] * 4) == ""
    assert _after([replace(BUSY, persistence=None), off]) == ""


def test_while_an_order_settles_nothing_is_judged_and_then_three_readings_are() -> None:
    low = replace(BUSY, clock_sm_mhz=900)
    memory = Memory(ORDER)
    for now_s in (0.1, 0.4, 0.6, 0.8, 0.99):
        memory, cause = drift.check(memory, low, ORDER, now_s)
        assert cause == "", now_s
    causes = []
    for now_s in (20.0, 30.0, 40.0):
        memory, cause = drift.check(memory, low, ORDER, now_s)
        causes.append(cause)
    assert causes == ["", "", drift.NOT_REACHED], "two readings prove nothing, however far apart"


def test_what_was_seen_of_an_older_order_says_nothing_of_the_next() -> None:
    lower = replace(ORDER, clock_max_mhz=900)
    gpus = [replace(BUSY, clock_sm_mhz=600)] * drift.TICKS
    assert _after(gpus, lower, _seen_in_force()) == drift.NOT_REACHED


@pytest.mark.parametrize("clock_mhz", [600, 1500])
def test_an_earlier_clock_of_ours_is_no_evidence_of_another_writer(clock_mhz: int) -> None:
    """The driver is late with the newest one, or it shows what was."""
    order = replace(ORDER, written_mhz=(600, 1500, 1200))
    memory, _ = drift.check(Memory(order), BUSY, order, LATER_S)
    shows = [replace(BUSY, clock_sm_mhz=clock_mhz)] * drift.TICKS
    assert _after(shows, order, memory) == drift.NOT_REACHED
    assert _after(shows, memory=_seen_in_force()) == drift.EXTERNAL


def test_a_power_profile_reaches_the_controller_among_the_event_reasons() -> None:
    gpu = replace(BUSY, event_reasons=("sw_power_cap",), power_profiles=("max_q", "lora"))
    tick = WatchTick(1, 0.0, (with_profiles(gpu),), (), 0, (), "", (), ())
    [told] = codec.decode_tick(codec.encode_tick(tick)).gpus
    assert profile_of(told) == "max_q, lora"
    assert told.event_reasons[0] == "sw_power_cap"
    assert profile_of(BUSY) == ""


def test_a_power_profile_is_not_an_external_writer() -> None:
    order = Order(TOP_MHZ, 1200, power_limit_w=300.0)
    under = replace(BUSY, clock_sm_mhz=900, power_limit_enforced_w=250.0)
    assert _after([under] * 9, order) != ""
    told = replace(under, power_profiles=("max_q",))
    assert _after([told] * 9, order) == ""
    assert _after([told] * 9, ORDER, _seen_in_force()) == ""
    fresh, memory = Order(TOP_MHZ, fresh=True), Memory()
    for n in range(9):
        memory, _ = drift.check(memory, told, fresh, LATER_S + n)
    assert memory.site_mhz == 0


def test_a_gpu_that_runs_free_again_is_under_no_sites_lock() -> None:
    """As after a lock of an earlier keeper, which it could give back late."""
    locked, fresh = replace(BUSY, clock_sm_mhz=900), Order(TOP_MHZ, fresh=True)
    memory = Memory()
    for n in range(9):
        memory, _ = drift.check(memory, locked, fresh, LATER_S + n)
    assert memory.site_mhz == 900
    written = replace(fresh, fresh=False)
    memory, _ = drift.check(memory, locked, written, LATER_S + 9)
    assert memory.site_mhz == 900
    memory, _ = drift.check(memory, replace(BUSY, clock_sm_mhz=TOP_MHZ), written, LATER_S + 10)
    assert memory.site_mhz == 0


LEASE = Lease("demo", 1, 1, 0, 1410, 60.0, None, 900)
STEPPED = GpuSnapshot("GPU-a", clock_sm_mhz=1410, utilization_gpu_ratio=1.0)


def _cause(*clocks_mhz: int, lease: Lease = LEASE, default_mhz: int = 1980) -> str:
    memory, cause = Memory(), ""
    order = order_of(lease, default_mhz, since_s=0.0, fresh=False)
    for n, clock_mhz in enumerate(clocks_mhz):
        reading = replace(STEPPED, clock_sm_mhz=clock_mhz)
        memory, cause = drift.check(memory, reading, order, 10.0 + n)
    return cause


@pytest.mark.parametrize(
    ("clocks_mhz", "cause"),
    [
        ((1410, 900, 1410, 900, 900, 900), ""),
        ((900,) * (TICKS + 2), ""),
        ((1200,) * (TICKS + 2), ""),
        ((600,) * (TICKS + 2), "not_reached"),
        ((900, *[600] * (TICKS + 2)), "external_writer"),
        ((1600,) * (TICKS + 2), "external_writer"),
        ((1980,) * (TICKS + 2), "reset"),
    ],
)
def test_clocks_of_a_schedule_are_no_drift(clocks_mhz: tuple[int, ...], cause: str) -> None:
    assert _cause(*clocks_mhz) == cause


def test_without_a_schedule_a_lower_clock_still_is() -> None:
    assert _cause(1410, *[900] * (TICKS + 2), lease=replace(LEASE, clock_lowest_mhz=0))


def test_a_low_step_is_not_slow_without_our_doing() -> None:
    order = order_of(LEASE, 1980, since_s=0.0, fresh=False)
    capped = replace(STEPPED, clock_sm_mhz=900, event_reasons=("sw_power_cap",))
    assert drift.slow_reason(capped, order) == ""
    assert drift.slow_reason(replace(capped, clock_sm_mhz=700), order) == "power_cap"


def test_a_health_check_reads_the_lowest_clock() -> None:
    assert slowdown(LEASE, 1980) == pytest.approx(1980 / 900 - 1, abs=1e-3)


def test_no_kernel_loses_more_than_its_clock() -> None:
    plain = replace(LEASE, clock_max_mhz=1200, clock_lowest_mhz=0)
    assert slowdown(plain, 1980) == 0.65
    assert slowdown(replace(plain, clock_max_mhz=1980), 1980) == 0.0
    assert slowdown(replace(plain, power_limit_w=400.0), 1980) is None
