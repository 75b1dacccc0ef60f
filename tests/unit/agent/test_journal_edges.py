"""The journal where what it says already meets what is new."""

from pathlib import Path

from joulecut_agent.journal import Journal
from joulecut_agent.state import Lease

BOOT, GPU = "b001-0", "GPU-a"
LEASE = Lease("blue", 3, 1, (0, 900), 9.0)


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


def test_a_gpu_that_was_given_back_is_named_anew(tmp_path: Path) -> None:
    """The same order once more, after its first lease has ended, locks the GPU again."""
    journal = Journal(tmp_path / "journal", BOOT)
    journal.intend(3, {GPU: LEASE})
    journal.restored([GPU])
    assert Journal(tmp_path / "journal", BOOT).held == {}
    journal.intend(3, {GPU: LEASE})
    assert Journal(tmp_path / "journal", BOOT).held == {GPU: (0, 900, 0)}


def test_what_stands_there_is_not_written_twice(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", BOOT)
    journal.intend(3, {GPU: LEASE})
    size = (tmp_path / "journal").stat().st_size
    journal.intend(3, {GPU: LEASE})
    assert (tmp_path / "journal").stat().st_size == size
