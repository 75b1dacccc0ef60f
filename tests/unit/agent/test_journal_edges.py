"""The journal where what it says already meets what is new."""

import os
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.keeper import journal as module
from joulecut_agent.keeper.journal import Journal
from joulecut_agent.keeper.lease import Lease
from joulecut_agent.keeper.requests import ClockLimits

BOOT, GPU = "b001-0", "GPU-a"
LEASE = Lease("blue", 3, 1, ClockLimits(0, 900), 9.0)


def test_the_largest_term_counts_whichever_file_names_it(tmp_path: Path) -> None:
    """The journal of this boot may have been lost, and come back older than the file of terms."""
    Journal(tmp_path / "journal", BOOT).intend(5, {})
    for name in ("terms", "journal"):
        raw = (tmp_path / "journal").read_bytes()
        assert Journal(tmp_path / "journal", BOOT, tmp_path / "terms").epoch_seen >= 5
        (tmp_path / name).write_bytes(raw)
    newer = tmp_path / "newer"
    Journal(newer, BOOT).intend(7, {})
    assert Journal(tmp_path / "journal", BOOT, newer).epoch_seen == 7
    assert Journal(newer, BOOT, tmp_path / "journal").epoch_seen == 7


def test_a_gpu_that_was_restored_is_journaled_again(tmp_path: Path) -> None:
    """The same order once more, after its first lease has ended, locks the GPU again."""
    journal = Journal(tmp_path / "journal", BOOT)
    journal.intend(3, {GPU: LEASE})
    journal.restored([GPU])
    assert Journal(tmp_path / "journal", BOOT).held == {}
    journal.intend(3, {GPU: LEASE})
    assert Journal(tmp_path / "journal", BOOT).held == {GPU: (0, 900, 0)}


def test_a_restore_that_a_late_write_may_undo_is_read_as_such_until_its_time(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    first = Journal(path, BOOT)
    first.intend(3, {GPU: LEASE})
    first.restored_until_late(GPU, 50.0, 0)
    Journal(path, BOOT, now_s=40.0).intend(4, {})  # in a new file
    assert Journal(path, BOOT, now_s=45.0).late == {GPU}
    assert Journal(path, BOOT, now_s=45.0).is_restored
    assert Journal(path, BOOT, now_s=50.0).is_clean
    assert Journal(path, "b002-0", now_s=45.0).is_clean, "another boot"


def test_what_stands_there_is_not_written_twice(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", BOOT)
    journal.intend(3, {GPU: LEASE})
    size = (tmp_path / "journal").stat().st_size
    journal.intend(3, {GPU: LEASE})
    assert (tmp_path / "journal").stat().st_size == size


def test_a_small_journal_goes_on_in_its_file_and_a_long_one_in_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, BOOT)
    files = set()
    for turn in range(60):
        journal.intend(3, {GPU: Lease("blue", 3, turn, ClockLimits(0, 900 + turn), 9.0)})
        files.add(path.stat().st_ino)
    assert len(files) == 1, "a new file for each order would cost three times the syncs"
    with path.open("ab") as file:
        file.write(b"x" * module.BYTES_MAX)
    journal.restored([GPU])
    assert path.stat().st_size < module.BYTES_MAX
    assert Journal(path, BOOT).held == {}


def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, BOOT)
    journal.intend(3, {GPU: LEASE})
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(20):
        path.unlink()  # each begins a new file
        journal.intend(3, {GPU: Lease("blue", 3, 2 + turn, ClockLimits(0, 900 + turn), 9.0)})
    path.unlink()
    (tmp_path / "journal.new").mkdir()
    for turn in range(20):  # and each of these fails
        with pytest.raises(IsADirectoryError):
            journal.intend(4 + turn, {GPU: Lease("blue", 4 + turn, 1, ClockLimits(0, 900), 9.0)})
    assert len(os.listdir("/proc/self/fd")) <= before


def _line(body: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(body), body)


WORDS = st.one_of(
    st.sampled_from(["epoch", "set", "restored", "limit", "program", BOOT, GPU, "", "-1", "1e9"]),
    st.integers(-(2**40), 2**40).map(str),
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=8),
)
BODIES = st.one_of(
    st.lists(WORDS, max_size=8).map(lambda words: " ".join(words).encode()),
    st.binary(max_size=60).filter(lambda raw: raw.splitlines() in ([], [raw])),
)


@given(st.lists(BODIES, max_size=6), st.binary(max_size=40))
def test_whole_lines_that_make_no_sense_cost_themselves_alone(
    bodies: list[bytes], rest: bytes
) -> None:
    """As a later version writes them, or a person with an editor: a keeper starts all the same."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        strange = [_line(body) for body in bodies if b"restored" not in body]
        path.write_bytes(b"".join([_line(b"set b001-0 GPU-x 0 900 3 1 0"), *strange]) + rest)
        journal = Journal(path, BOOT)
        assert "GPU-x" in journal.held
        journal.intend(journal.epoch_seen, {"GPU-new": LEASE})
        assert {"GPU-x", "GPU-new"} <= set(Journal(path, BOOT).held)
        journal._file.close()


@pytest.mark.parametrize(
    "body",
    [
        b"set b001-0 GPU-a",
        b"set b001-0 GPU-a 0 x 3 1",
        b"epoch b001-0",
        b"set",
        b"limit b001-0 GPU-a",
        b"\xff\xfe",
    ],
)
def test_a_line_that_lacks_its_values_is_reported(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "journal").write_bytes(_line(body))
    journal = Journal(tmp_path / "journal", BOOT)
    assert "a line of a newer version was skipped" in journal.remarks
    assert journal.held == {}


def test_a_torn_last_line_is_no_damage_and_a_lost_line_end_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path, BOOT).intend(3, {GPU: LEASE})
    raw = path.read_bytes()
    path.write_bytes(raw[:-5])
    assert Journal(path, BOOT).is_clean
    path.write_bytes(raw[:-1] + b"\x0b")
    assert Journal(path, BOOT).held == {GPU: (0, 900, 0)}


@pytest.mark.parametrize("rest", [b"\xff\xfe\x00", b"0123456789", b"hello", b"\x00" * 200])
def test_other_bytes_without_a_line_end_are_damage(tmp_path: Path, rest: bytes) -> None:
    (tmp_path / "journal").write_bytes(rest)
    assert Journal(tmp_path / "journal", BOOT).damaged


def test_damage_of_another_boot_names_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path, BOOT).intend(3, {GPU: LEASE})
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"900", b"901"))
    assert Journal(path, BOOT).damaged
    assert not Journal(path, "b002-0").damaged
