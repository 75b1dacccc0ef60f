"""The journal under power cuts, full disks and damage."""

import os
import resource
import tempfile
import zlib
from pathlib import Path

import pytest
from draws import SAFE
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.keeper import journal as module
from joulecut_agent.keeper.journal import Journal
from joulecut_agent.keeper.lease import Lease
from joulecut_agent.keeper.requests import ClockLimits

BOOT = "b001-0"
A, B = "GPU-a", "GPU-b"


def _intend(
    journal: Journal, epoch: int, knobs: dict[str, ClockLimits], generation: int = 0,
    limits_mw: dict[str, int] | None = None,
) -> None:  # fmt: skip
    named = {u: Lease("blue", epoch, generation, ClockLimits(*k), 9.0) for u, k in knobs.items()}
    journal.intend(epoch, named, limits_mw)


def _written(path: Path) -> Journal:
    journal = Journal(path, BOOT)
    _intend(journal, 3, {A: (0, 900, 0), B: (210, 600, 0)})
    _intend(journal, 4, {A: (0, 600, 0)})
    journal.restored([B])
    journal._file.close()
    return journal


def test_torn_at_every_byte_it_still_names_every_gpu_whose_line_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    _written(path)
    raw = path.read_bytes()
    for cut in range(len(raw) + 1):
        torn = tmp_path / "torn"
        torn.write_bytes(raw[:cut])
        journal = Journal(torn, BOOT)
        # A last line without its newline may be whole: then it counts.
        whole = raw[:cut].count(b"\n") + (cut < len(raw) and raw[cut : cut + 1] == b"\n")
        expected: dict[str, tuple[int, int, int]] = {}
        for line in raw.splitlines()[:whole]:
            _, kind, _, *values = line.decode().split(" ")
            if kind == "set":
                expected[values[0]] = (int(values[1]), int(values[2]), 0)
            elif kind == "restored":
                expected.pop(values[0], None)
        assert journal.held == expected, cut
        _intend(journal, 9, {"GPU-new": (0, 900, 0)})  # must not be glued to the torn line
        journal._file.close()
        again = Journal(torn, BOOT)
        assert again.held == {**expected, "GPU-new": (0, 900, 0)}, cut
        assert again.epoch_seen == 9
        torn.unlink()


@SAFE
@given(st.data())
def test_a_flipped_byte_costs_its_own_line_only(data: st.DataObject) -> None:
    import tempfile  # noqa: PLC0415 -- a fresh folder for every example

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        _written(path)
        raw = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(raw) - 1))
        flipped = data.draw(st.integers(1, 255))
        raw[place] ^= flipped
        path.write_bytes(raw)
        journal = Journal(path, BOOT)
        assert journal.remarks or place == len(raw) - 1, "the last line's end"
        assert set(journal.held) <= {A, B}
        assert journal.epoch_seen in {0, 3, 4}


def test_locks_of_another_boot_are_gone_by_themselves_but_its_epoch_counts(tmp_path: Path) -> None:
    _written(tmp_path / "journal")
    later = Journal(tmp_path / "journal", "b002-0")
    assert (later.held, later.epoch_seen) == ({}, 4)
    assert "nothing to restore" in "".join(later.remarks)
    _intend(later, 4, {B: (0, 900, 0)})
    later._file.close()
    assert Journal(tmp_path / "journal", "b002-0").held == {B: (0, 900, 0)}


def test_it_stays_small_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, BOOT)
    for turn in range(3000):
        _intend(journal, 1, {A: (0, 600 + turn % 2, 0)})
        if turn % 3 == 0:
            journal.restored([A])
        assert path.stat().st_size < module.BYTES_MAX + 200
    held, epoch_seen = dict(journal.held), journal.epoch_seen
    journal._file.close()
    again = Journal(path, BOOT)
    assert (again.held, again.epoch_seen) == (held, epoch_seen)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["journal"]


def test_a_compaction_that_dies_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    _written(path)
    (tmp_path / "journal.new").write_bytes(b"half of a li")
    journal = Journal(path, BOOT)
    assert journal.held == {A: (0, 600, 0)}
    _intend(journal, 5, {})
    journal._file.close()
    assert Journal(path, BOOT).epoch_seen == 5


def test_a_full_disk_refuses_the_lease_and_forgets_nothing(tmp_path: Path) -> None:
    """In a child with a file size limit: the kernel refuses as a full disk does."""
    path = tmp_path / "journal"
    _written(path)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            import signal  # noqa: PLC0415

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (150, resource.RLIM_INFINITY))
            journal = Journal(path, BOOT)
            try:
                _intend(journal, 5, {f"GPU-{n}": (0, 900, 0) for n in range(8)})
            except OSError:
                if journal.held == {A: (0, 600, 0)} and journal.epoch_seen == 4:
                    journal.restored([A])  # must not raise: resets go ahead
                    resource.setrlimit(
                        resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                    )
                    _intend(journal, 6, {B: (0, 900, 0)})  # and once there is room it works again
                    status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    again = Journal(path, BOOT)
    assert (again.held, again.epoch_seen) == ({B: (0, 900, 0)}, 6)


def test_the_newest_number_of_a_gpu_outlives_its_lock_a_compaction_and_a_boot(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, BOOT)
    _intend(journal, 3, {A: (0, 900, 0), B: (0, 600, 0)}, 7)
    _intend(journal, 3, {A: (0, 600, 0)}, 8)
    journal.restored([A, B])
    journal._file.close()
    for boot_id in (BOOT, "b002-0"):
        again = Journal(path, boot_id)
        numbers = {uuid: (last.epoch, last.generation) for uuid, last in again.last.items()}
        assert numbers == {A: (3, 8), B: (3, 7)}
        assert again.last[A].limits == (0, 600, 0)
        assert not again.held
        _intend(again, 4, {})  # the first write of a process compacts
        again._file.close()


def test_a_journal_that_is_deleted_is_written_again_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, BOOT)
    _intend(journal, 1, {A: (0, 900, 0)})
    path.unlink()
    _intend(journal, 1, {B: (0, 600, 0)})
    assert Journal(path, BOOT).held == {A: (0, 900, 0), B: (0, 600, 0)}
    journal._file.close()


def test_the_power_limit_that_stood_before_ours_is_kept_until_it_stands_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, BOOT)
    _intend(journal, 1, {A: (0, 0, 300_000)}, 1, {A: 400_000})
    _intend(journal, 1, {A: (0, 0, 250_000)}, 2, {A: 300_000})  # by now ours: not recorded
    journal._file.close()
    again = Journal(path, BOOT)
    assert (again.held, again.recorded_mw) == ({A: (0, 0, 250_000)}, {A: 400_000})
    _intend(again, 2, {})  # compacts
    assert Journal(path, BOOT).recorded_mw == {A: 400_000}
    again.restored([A], [A])
    again._file.close()
    assert Journal(path, BOOT).recorded_mw == {}
    fresh = Journal(path, BOOT)
    _intend(fresh, 2, {A: (0, 0, 200_000)}, 3, {A: 350_000})
    fresh._file.close()
    assert Journal(path, BOOT).recorded_mw == {A: 350_000}
    assert Journal(path, "b002-0").recorded_mw == {}, "a boot puts every limit back by itself"


def test_a_limit_that_is_no_longer_asked_for_is_named_until_it_is_known_to_be_restored(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, BOOT)
    _intend(journal, 1, {A: (210, 900, 300_000)}, 1)
    _intend(journal, 1, {A: (0, 0, 200_000), B: (0, 600, 0)}, 2)
    for again in (journal, Journal(path, BOOT)):
        assert again.held == {A: (210, 900, 200_000), B: (0, 600, 0)}
        assert again.last[A].limits == (0, 0, 200_000), "what was asked is another thing"
    _intend(journal, 1, {A: (0, 600, 0)}, 3)
    journal._file.close()
    _intend(journal, 2, {})  # compacts
    compacted = Journal(path, BOOT)
    assert compacted.held == {A: (0, 600, 200_000), B: (0, 600, 0)}
    assert (compacted.last[A].limits, compacted.last[A].generation) == ((0, 600, 0), 3)


def test_what_an_older_version_wrote_is_read_and_what_a_newer_one_did_is_skipped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    lines = [f"set {BOOT} {A} 0 900 3 7", f"colour {BOOT} {A} blue", f"set {BOOT} {B} 0 600 3 8"]
    bodies = [line.encode() for line in lines]
    path.write_bytes(b"".join(b"%08x %s\n" % (zlib.crc32(body), body) for body in bodies))
    journal = Journal(path, BOOT)
    assert journal.held == {A: (0, 900, 0), B: (0, 600, 0)}
    assert "newer version" in "".join(journal.remarks)


def _apart(folder: Path, boot_id: str = BOOT) -> Journal:
    (folder / "memory").mkdir(exist_ok=True)
    return Journal(folder / "memory" / "journal", boot_id, folder / "journal")


def test_apart_the_epoch_outlives_a_boot_that_takes_all_else(tmp_path: Path) -> None:
    journal = _apart(tmp_path)
    _intend(journal, 3, {A: (0, 900, 0)}, 7)
    _intend(journal, 4, {A: (0, 600, 0)}, 8)
    again = _apart(tmp_path)
    assert (again.held, again.epoch_seen, again.last[A].generation) == ({A: (0, 600, 0)}, 4, 8)
    (tmp_path / "memory" / "journal").unlink()
    after = _apart(tmp_path, "b002-0")
    assert (after.held, after.epoch_seen, after.last, after.remarks) == ({}, 4, {}, set())
    _intend(after, 4, {B: (0, 600, 0)}, 1)
    assert b"set" not in (tmp_path / "journal").read_bytes()


def test_apart_a_journal_of_before_is_taken_over_and_never_named_twice(tmp_path: Path) -> None:
    before = _written(tmp_path / "journal")
    journal = _apart(tmp_path)
    assert (journal.held, journal.epoch_seen) == (before.held, before.epoch_seen)
    _intend(journal, 4, {B: (0, 900, 0)}, 1)  # the same term: the old file stands, and counts less
    for again in (_apart(tmp_path), _apart(tmp_path)):
        assert again.held == {A: (0, 600, 0), B: (0, 900, 0)}
        again.restored([A, B])
        assert not _apart(tmp_path).held
    _intend(journal, 5, {B: (0, 600, 0)}, 2)
    assert b"set" not in (tmp_path / "journal").read_bytes()
    assert _apart(tmp_path).held == {A: (0, 600, 0), B: (0, 600, 0)}


@pytest.mark.parametrize("gone", ["memory", "lasting"])
def test_apart_an_epoch_that_cannot_be_kept_is_refused(tmp_path: Path, gone: str) -> None:
    journal = _apart(tmp_path)
    place = tmp_path / "journal" if gone == "lasting" else tmp_path / "memory" / "journal"
    place.mkdir()
    with pytest.raises(OSError, match=r"Is a directory|exist|not empty"):
        _intend(journal, 5, {A: (0, 900, 0)})
    assert (journal.epoch_seen, journal.held) == (0, {})
    place.rmdir()
    _intend(journal, 5, {A: (0, 900, 0)})
    again = _apart(tmp_path)
    assert (again.epoch_seen, again.held) == (5, {A: (0, 900, 0)})
    (tmp_path / "memory" / "journal").unlink()
    assert _apart(tmp_path).epoch_seen == 5


def test_a_schedule_is_kept_with_its_order_and_costs_no_gpu_where_it_is_torn(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, BOOT)
    program = (600, 900)
    journal.intend(3, {A: Lease("blue", 3, 1, ClockLimits(0, 1200), 9.0, program)})
    journal.intend(3, {B: Lease("blue", 3, 1, ClockLimits(0, 900), 9.0)})
    for boot_id in (BOOT, "b002-0", BOOT):
        again = Journal(path, boot_id)
        assert {uuid: last.schedule_mhz for uuid, last in again.last.items()} == {A: program, B: ()}
    again.intend(4, {})  # compacts
    assert Journal(path, BOOT).last[A].schedule_mhz == program
    again.intend(4, {A: Lease("blue", 4, 2, ClockLimits(0, 1200), 9.0)})
    assert Journal(path, BOOT).last[A].schedule_mhz == ()
    raw = path.read_bytes()
    for cut in range(len(raw) + 1):
        (tmp_path / "torn").write_bytes(raw[:cut])
        torn = Journal(tmp_path / "torn", BOOT)
        ends = [n for n in range(cut) if raw[n : n + 1] == b"\n"]
        lines = raw[: ends[-1] + 1 if ends else 0].splitlines()
        if raw[cut : cut + 1] == b"\n":  # whole, but for its end
            lines = raw[:cut].splitlines()
        held = {line.split(b" ")[3].decode() for line in lines if b" set " in line}
        assert set(torn.held) == held


def test_the_clocks_of_this_boot_are_kept_until_their_gpu_was_seen_free(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path, BOOT)
    _intend(journal, 3, {A: (0, 900, 0), B: (0, 900, 0)})
    journal.intend(3, {A: Lease("blue", 3, 1, ClockLimits(0, 1200), 9.0, (600,))})
    journal.restored([A, B], left=[B])
    known = {A: (900, 1200, 600), B: (900,)}
    for _ in range(2):  # as written, then compacted
        again = Journal(path, BOOT)
        assert (again.held, again.clocks_mhz, again.left) == ({}, known, {B})
        again.intend(again.epoch_seen + 1, {})
    again.restored((), free={A: ()})
    assert not Journal(path, BOOT).clocks_mhz[A]
    assert not any(Journal(path, "b002-0").clocks_mhz.values()), "another boot's locks are gone"
    _intend(again, 9, {B: (0, 600, 0)})
    after = Journal(path, BOOT)
    assert (after.clocks_mhz[B], after.left) == ((900, 600), set())
    body = f"yielded {BOOT} {B}".encode()  # as the version before wrote it
    with path.open("ab") as file:
        file.write(b"%08x %s\n" % (zlib.crc32(body), body))
    before = Journal(path, BOOT)
    assert (before.clocks_mhz[B], before.left) == ((900, 600), {B})


GPU = A
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


@SAFE
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
