"""Seven days of history: means of passes, bounded, downsampled, and back after a restart."""

import math
import statistics
from dataclasses import replace
from pathlib import Path

import boards
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.board import Board
from joulecut_controller.cluster.history import (
    COARSE_POINTS,
    COARSE_S,
    FINE_S,
    JOBS_MAX,
    RECORD_CHARACTERS_MAX,
    TOPIC,
    History,
    _Resolution,
)
from joulecut_controller.store.database import open_store

NOW_S = 1_800_000_000.0
WEEK_S = COARSE_S * COARSE_POINTS


def at(unix_s: float, board: Board | None = None) -> Board:
    return replace(board or boards.board(microbatches=12), at_unix_s=unix_s)


def test_a_week_survives_a_restart_and_fits_a_chart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store = open_store(url)
    history = History(store)
    for step in range(40):
        history.add(at(NOW_S + step * COARSE_S / 2))
    later_s = NOW_S + 20 * COARSE_S
    before = history.series(later_s, WEEK_S)
    store.close()
    store = open_store(url)
    again = History(store)
    again.load(later_s)
    after = again.series(later_s, WEEK_S, "gpt3-175b")
    assert len(before.at_unix_s) == COARSE_POINTS
    known = [value for value in after.columns["power_w"] if math.isfinite(value)]
    assert len(known) == 19, "the last one is being filled"
    current = boards.board(microbatches=12).jobs[0].view.measured.current
    assert current is not None
    assert all(math.isclose(value, current.power_w or 0, rel_tol=1e-4) for value in known)
    powers = [value for value in before.columns["power_w"] if math.isfinite(value)]
    assert len(powers) == len(known)
    store.close()


def test_a_standby_follows_what_the_leader_writes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store, shared = open_store(url), open_store(url)
    leader, standby = History(store), History(shared)
    for step in range(8):
        leader.add(at(NOW_S + step * COARSE_S / 2))
        standby.load(NOW_S + step * COARSE_S / 2)
    end_s = NOW_S + 4 * COARSE_S
    kept = leader.series(end_s, WEEK_S).columns["power_w"]
    assert sum(map(math.isfinite, kept)) > 0
    shown = standby.series(end_s, WEEK_S).columns["power_w"]
    for one, other in zip(kept, shown, strict=True):
        assert math.isclose(one, other, rel_tol=1e-4) or (math.isnan(one) and math.isnan(other))
    store.close()
    shared.close()


def test_the_last_hour_is_finer_and_needs_no_store() -> None:
    history = History(None)
    for step in range(10):
        history.add(at(NOW_S + step * FINE_S))
    series = history.series(NOW_S + 9 * FINE_S, 3600.0)
    assert series.step_s == FINE_S
    assert sum(map(math.isfinite, series.columns["power_w"])) == 9
    assert all(map(math.isnan, history.series(NOW_S, WEEK_S, "other").columns["power_w"]))


def test_more_jobs_than_fit_are_left_out_and_never_refused(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    history, whole = History(store), boards.board(microbatches=12)
    [job] = whole.jobs
    many = tuple(
        replace(job, view=replace(job.view, policy=replace(job.view.policy, name=f"{n:0200d}")))
        for n in range(JOBS_MAX + 100)
    )
    for step in range(2):
        history.add(at(NOW_S + step * COARSE_S, replace(whole, jobs=many)))
    [record] = store.records(TOPIC)
    assert len(record.content) <= RECORD_CHARACTERS_MAX
    store.close()


@given(st.lists(st.tuples(st.integers(0, 40), st.floats(0.0, 1e6, width=32)), max_size=60))
def test_the_newest_buckets_are_kept_in_any_order(puts: list[tuple[int, float]]) -> None:
    kept, last = _Resolution(1.0, 8), {}
    for number, value in puts:
        kept.put(number, {"": (value,) * 4})
        if number > max(last, default=-1) - 8:
            last[number] = value
    newest = max(last, default=-1)
    series = kept.series("", newest + 4.0, 8.0)
    for unix_s, shown in zip(series.at_unix_s, series.columns["power_w"], strict=True):
        value = last.get(math.floor(unix_s), math.nan)
        assert shown == value or (math.isnan(shown) and math.isnan(value))


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=5))
def test_a_point_is_the_mean_of_its_passes(powers_w: list[float]) -> None:
    history, whole = History(None), boards.board(microbatches=12)
    gpu = whole.view.gpus[boards.uuid(0)]
    for place, power_w in enumerate(powers_w):
        assert gpu.snapshot is not None
        one = replace(gpu, snapshot=replace(gpu.snapshot, power_average_w=power_w))
        view = replace(whole.view, gpus={one.uuid: one})
        history.add(at(NOW_S + place, replace(whole, view=view)))
    history.add(at(NOW_S + FINE_S))
    series = history.series(NOW_S + FINE_S, 60.0)
    [shown] = [value for value in series.columns["power_w"] if math.isfinite(value)]
    assert math.isclose(shown, statistics.fmean(powers_w), rel_tol=1e-6)
