"""The state file: one truth for all processes, and none of them can break it by dying."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from joulecut_sim.card import CARD_BYTES, SLOT_BYTES, StateFile, now_s, pack
from joulecut_sim.physics import WORKS_MAX, Work
from joulecut_sim.skus import A100_SXM
from joulecut_wire.errors import BadInput


def _elsewhere(code: str, *args: str) -> str:
    """Runs a few lines in a process of their own."""
    text = f"import sys, time\nfrom joulecut_sim.card import StateFile, now_s\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", text, *args], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_energy_goes_on_when_every_process_has_gone(tmp_path: Path) -> None:
    path = tmp_path / "gpus.state"
    with StateFile.open(path, cards=1) as state:
        state.put(0, load_ratio=1.0)
        began_s = state.card(0).at_s
        begun_j = state.energy_j(0, began_s)
    code = "s = StateFile.open(sys.argv[1]); t = now_s(); print(t, s.energy_j(0, t))"
    when_s, energy_j = map(float, _elsewhere(code, str(path)).split())
    expected_j = A100_SXM.load_power_w(1410, 1.0) * (when_s - began_s)
    assert energy_j - begun_j == pytest.approx(expected_j)


def test_a_writer_killed_half_way_leaves_the_old_card(tmp_path: Path) -> None:
    path = tmp_path / "gpus.state"
    with StateFile.open(path, cards=1) as state:
        state.set_lock(0, 210, 900)
        before = state.card(0)
        raw = bytearray(path.read_bytes())
        start = len(raw) - CARD_BYTES
        spare = start + 8 + (1 - raw[start]) * SLOT_BYTES
        half = pack(replace(before, writes=99))[: SLOT_BYTES // 2]
        with path.open("r+b") as file:
            file.seek(spare)
            file.write(half)
        assert state.card(0) == before


@pytest.mark.parametrize("late_s", [0.0, 0.3])
def test_work_counts_in_full_however_late_it_is_handed_in(tmp_path: Path, late_s: float) -> None:
    """A process that was woken late must not change what its work cost."""
    with StateFile.open(tmp_path / "gpus.state", cards=1) as state:
        begin_s = now_s()
        first = state.deposit({0: Work(begin_s, begin_s + 0.1, 40.0, 1365)})
        time.sleep(late_s)
        state.put(0, memory_used_bytes=1)  # another writer, which settles the energy so far
        second = state.deposit({0: Work(begin_s + 0.1, begin_s + 0.6, 150.0, 1365)})
        assert second[0] - first[0] == pytest.approx(40.0, rel=1e-9)
        assert state.energy_j(0, begin_s + 0.6) - first[0] == pytest.approx(190.0, rel=1e-9)


def test_work_that_is_far_too_late_still_costs_no_joule_less(tmp_path: Path) -> None:
    with StateFile.open(tmp_path / "gpus.state", cards=1) as state:
        settled_s = now_s()
        state.put(0, memory_used_bytes=1)
        before_j = state.energy_j(0, settled_s)
        state.deposit({0: Work(settled_s - 2.0, settled_s - 1.0, 300.0, 1365)})
        gained_j = state.energy_j(0, settled_s + 1.0) - before_j
        assert gained_j == pytest.approx(300.0 + A100_SXM.idle_power_w, rel=0.01)


def test_many_pieces_of_work_stay_bounded_and_add_up(tmp_path: Path) -> None:
    with StateFile.open(tmp_path / "gpus.state", cards=2) as state:
        begin_s = now_s()
        total_j = 0.0
        start_j = None
        for step in range(100):
            work = Work(begin_s + 0.1 * step, begin_s + 0.1 * (step + 1), 10.0 + step, 1365)
            begun = state.deposit({1: work})
            start_j = begun[1] if start_j is None else start_j
            total_j += work.energy_j
        assert len(state.card(1).works) <= WORKS_MAX
        assert state.energy_j(1, begin_s + 10.0) - start_j == pytest.approx(total_j, rel=1e-9)
        assert not state.card(0).works


def test_impossible_work_is_refused(tmp_path: Path) -> None:
    with StateFile.open(tmp_path / "gpus.state", cards=1) as state:
        when_s = now_s()
        with pytest.raises(ValueError, match="no card can do this"):
            state.deposit({0: Work(when_s, when_s + 1.0, 1.0, 1365)})
        with pytest.raises(ValueError, match="no card can do this"):
            state.deposit({0: Work(when_s, when_s, 1.0, 1365)})


def test_a_reboot_forgets_too_and_keeps_the_cards(tmp_path: Path) -> None:
    path = tmp_path / "gpus.state"
    with StateFile.open(path, cards=3, sku="a40", node="n7") as state:
        state.set_lock(1, 210, 900)
    raw = bytearray(path.read_bytes())
    raw[16:32] = bytes(16)  # the boot it was written in
    path.write_bytes(raw)
    with StateFile.open(path) as state:
        assert (state.cards, state.sku.name, state.node) == (3, "a40", "n7")
        assert state.asked_mhz(1) == (0, 0)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"cards": 5}, "holds 4 a100-sxm of n1"),
        ({"sku": "a40"}, "holds 4 a100-sxm of n1"),
        ({"node": "n2"}, "holds 4 a100-sxm of n1"),
        ({"cards": 0}, "1 to 64"),
        ({"sku": "h100"}, "a100-sxm, a40"),
    ],
)
def test_other_cards_than_asked_for_are_refused(
    tmp_path: Path, asked: dict[str, object], words: str
) -> None:
    path = tmp_path / "gpus.state"
    StateFile.open(path, cards=4, node="n1").close()
    with pytest.raises(BadInput, match=words):
        StateFile.open(path, **asked)


@pytest.mark.parametrize("content", [b"not a state file", b"JCGPUS01", b"JCGPUS01" + bytes(500)])
def test_a_strange_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "gpus.state"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="a new file"):
        StateFile.open(path)
    assert path.read_bytes() == content
