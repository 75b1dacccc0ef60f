"""What one stretch under one set of clocks says of time and power, checkpoints or not."""

import random
import statistics

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from joulecut_controller.observe.baseline import blended
from joulecut_controller.observe.measurement_window import Iteration, MeasurementWindow, stderr_s
from joulecut_controller.view import Window
from joulecut_wire.messages import GpuSnapshot, Lease

BUSY_W, IDLE_W = 300.0, 90.0
GPU = "GPU-0"


def run(
    durations_s: list[float],
    pauses_s: dict[int, float],
    pass_s: float = 5.0,
    *,
    between: bool = False,
    lost: frozenset[int] = frozenset(),
) -> MeasurementWindow:
    """A span over iterations of which some take longer by a pause, looked at every pass. `between`:
    no iteration reports the pauses. Reports of `lost` ones do not arrive.
    """
    window = MeasurementWindow(0.0, {GPU: 0})
    now_s = energy_j = 0.0
    looked_s = pass_s
    arrived: list[Iteration] = []
    for number, duration_s in enumerate(durations_s):
        parts = ((duration_s, BUSY_W), (pauses_s.get(number, 0.0), IDLE_W))
        begun_s = now_s
        for seconds, watts in parts:
            until_s = now_s + seconds
            while now_s < until_s:
                step_s = min(until_s, looked_s) - now_s
                energy_j += watts * step_s
                now_s += step_s
                if now_s >= looked_s:
                    for one in arrived:
                        window.take(one)
                    arrived = []
                    snapshot = GpuSnapshot(GPU, energy_j=energy_j, clock_sm_mhz=1410)
                    window.see([(GPU, snapshot, now_s)])
                    looked_s += pass_s
        ended_s = begun_s + duration_s if between else now_s
        if number not in lost:
            arrived.append(Iteration(number, 1, ended_s, {GPU: ended_s - begun_s}))
    return window


def test_a_window_ends_where_heat_begins_or_ceases_to_hold_a_gpu_below_its_lock() -> None:
    def seen(*clocks_mhz: int) -> int:
        """Snapshots until a new window has to begin, at a lock of 1200 MHz."""
        window = MeasurementWindow(0.0, {GPU: 0})
        window.take(Iteration(0, 1, 1.0, {GPU: 1.0}))  # settles
        lease = Lease("job", 1, 1, 1200, 1200, 60.0)
        for number, mhz in enumerate(clocks_mhz):
            shown = GpuSnapshot(GPU, energy_j=1.0, clock_sm_mhz=mhz, lease=lease)
            if not window.see([(GPU, shown, 2.0 + number)]):
                return number + 1
        return 0

    assert seen(1200, 1200, 1080, 1080, 1080) == 4
    assert seen(1080, 1080, 1200, 1200) == 4
    assert seen(1080, 1080, 1080) == 0
    assert seen(1200, 1150, 1200, 1150, 1150, 1200) == 0, "as under a power cap"


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 59), max_size=5), st.floats(2.0, 30.0), st.sampled_from([1.0, 5.0]))
def test_a_checkpoint_changes_neither_time_nor_power(
    places: set[int], pause_s: float, pass_s: float
) -> None:
    # Five in a row are the job's new pace; and a majority of the first five leaves nobody to know
    # what is usual.
    assume(not any(all(place + k in places for k in range(5)) for place in places))
    early = sorted(place for place in places if place < 6)[:2]
    pauses_s = {place: pause_s for place in places if place >= 6 or place in early}
    window = run([2.0] * 60, pauses_s, pass_s).summary(64)
    assert window is not None
    assert window.time_mean_s == pytest.approx(2.0, rel=1e-9)
    if window.power_w is not None:
        assert window.power_w == pytest.approx(BUSY_W, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    duration_s=st.floats(0.5, 8.0),
    pauses=st.dictionaries(st.integers(12, 40), st.floats(4.0, 20.0), max_size=4),
    lost=st.frozensets(st.integers(3, 44), max_size=20),
)
def test_a_pause_between_iterations_changes_no_power(
    duration_s: float, pauses: dict[int, float], lost: frozenset[int]
) -> None:
    """Runs of one name that come again leave GPUs idle between them. `pauses` are in iterations."""
    beside = {number for number in pauses if {number, number + 1} & lost}
    pauses_s = {n: duration_s * (2.0 + pauses[n]) for n in pauses.keys() - beside}
    window = run([duration_s] * 60, pauses_s, pass_s=duration_s, between=True, lost=lost)
    (load,) = window.loads()
    assert load.power_w == pytest.approx(BUSY_W, rel=0.01)


def test_power_covers_time_up_to_the_newest_iteration() -> None:
    """What runs now may be a checkpoint: nobody knows before it ends."""
    window = run([2.0] * 40, {39: 60.0})
    window = window.summary(64)
    assert window is not None
    assert window.power_w == pytest.approx(BUSY_W, rel=1e-6)


def test_a_pace_that_changes_for_good_is_the_new_one() -> None:
    window = run([2.0] * 30 + [4.0] * 30, {}).summary(64)
    assert window is not None
    assert window.time_mean_s == pytest.approx(4.0, rel=1e-9)


def window(iterations: int, mean_s: float, sd_s: float = 0.05) -> Window:
    return Window(iterations, mean_s, sd_s, 1000.0 * mean_s, 1000.0)


@given(st.integers(8, 60), st.floats(0.9, 1.1), st.integers(30, 512))
def test_a_baseline_moves_towards_what_is_seen_and_not_beyond(
    count: int, seen_s: float, wanted: int
) -> None:
    known = window(200, 1.0)
    made = blended(known, window(count, seen_s), wanted)
    assert min(1.0, seen_s) - 1e-9 <= made.time_mean_s <= max(1.0, seen_s) + 1e-9
    assert made.iterations <= max(wanted, count)
    assert made.energy_j == pytest.approx(1000.0 * made.time_mean_s)


def test_many_short_looks_follow_a_job_that_drifts() -> None:
    known = window(512, 1.0)
    for _ in range(12):
        known = blended(known, window(20, 1.02), 64)
    assert known.time_mean_s == pytest.approx(1.02, abs=0.001)


def test_a_handful_of_iterations_moves_nothing() -> None:
    known = window(200, 1.0)
    assert blended(known, window(7, 1.5), 64) is known


def test_energy_that_is_not_known_yet_stays_what_it_was() -> None:
    seen = Window(20, 1.02, 0.05, None, None)
    made = blended(window(200, 1.0), seen, 64)
    assert made.energy_j == 1000.0


def test_the_error_of_a_mean_grows_with_neighbours_that_resemble_each_other() -> None:
    """Over 200 windows of a process of first order, against how far their means are apart."""
    dice, means, errors = random.Random("waves"), [], []
    for _ in range(200):
        wave, times_s = 0.0, []
        for _ in range(80):
            wave = 0.6 * wave + dice.gauss(0.0, 0.03)
            times_s.append(1.0 + wave)
        seen = run(times_s, {}).summary(64)
        assert seen is not None
        means.append(seen.time_mean_s)
        errors.append(stderr_s(seen))
    assert statistics.fmean(errors) == pytest.approx(statistics.stdev(means), rel=0.25)
