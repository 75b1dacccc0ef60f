"""What a keeper remembers of epochs and generations, and the next one after it."""

from pathlib import Path

from keeper_board import Board, apply, open_keeper, verdicts
from keeper_requests import apply_of

from joulecut_agent.keeper.requests import Clear, Renew


def test_an_epoch_is_kept_before_it_is_answered(tmp_path: Path) -> None:
    board = Board()
    keeper = open_keeper(tmp_path, board)
    keeper.handle(1, apply_of(5, "blue", 1, 9.0, {"GPU-a": (0, 900)}))
    keeper.handle(2, Renew(6, "blue", 1, 9.0))
    keeper = open_keeper(tmp_path, board)
    assert keeper.state.epoch_seen == 6
    keeper.handle(3, Clear(8))
    assert open_keeper(tmp_path, board).state.epoch_seen == 8


def test_an_older_generation_is_refused_by_the_next_keeper_too(tmp_path: Path) -> None:
    board = Board()
    assert verdicts(apply(open_keeper(tmp_path, board), {"GPU-a": (0, 900)}, 5)) == {True}
    keeper = open_keeper(tmp_path, board)
    assert not board.locked
    older = apply(keeper, {"GPU-a": (0, 1200)}, 4).slots[0]
    assert (older.accepted, older.reason) == (False, "generation 4 is older than 5")
    assert "other content" in apply(keeper, {"GPU-a": (0, 1200)}, 5).slots[0].reason
    assert not board.locked
    assert verdicts(apply(keeper, {"GPU-b": (0, 1200)}, 4)) == {True}, "numbers are per GPU"
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)}, 5)) == {True}, "the same again"
    assert verdicts(apply(keeper, {"GPU-a": (0, 1200)}, 6)) == {True}
    same = {"GPU-a": (0, 1200)}  # nothing to write, and still a newer number
    assert verdicts(apply(keeper, same, 9)) == {True}
    assert "older than 9" in apply(open_keeper(tmp_path, board), same, 8).slots[0].reason


def test_the_next_keeper_knows_the_term_of_a_renewal(tmp_path: Path) -> None:
    board = Board()
    keeper = open_keeper(tmp_path, board)
    both = {"GPU-a": (0, 900), "GPU-b": (0, 600)}
    assert verdicts(apply(keeper, both, 5)) == {True}
    assert verdicts(keeper.handle(2, Renew(2, "blue", 5, 30.0))) == {True}
    for _ in range(2):
        keeper = open_keeper(tmp_path, board)
        for uuid in both:
            older = apply_of(2, "blue", 4, 30.0, {uuid: (0, 1200)})
            slot = keeper.handle(3, older).slots[0]
            assert (slot.accepted, slot.reason) == (False, "generation 4 is older than 5")
        twin = apply_of(2, "blue", 5, 30.0, {"GPU-a": (0, 1200)})
        assert "other content" in keeper.handle(4, twin).slots[0].reason
    assert not board.locked


def test_a_new_term_that_cannot_be_kept_renews_nothing(tmp_path: Path) -> None:
    keeper = open_keeper(tmp_path, Board())
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)}, 5)) == {True}
    (tmp_path / "journal").unlink()
    (tmp_path / "journal").mkdir()  # renaming over it fails
    before = keeper.state
    slot = keeper.handle(2, Renew(2, "blue", 5, 30.0)).slots[0]
    assert "the journal cannot be written" in slot.reason
    assert keeper.state == before
    heartbeat = keeper.handle(3, Renew(1, "blue", 5, 30.0)).slots[0]
    assert heartbeat.accepted, "which has nothing to write"


def test_what_the_journal_says_already_is_not_said_again(tmp_path: Path) -> None:
    keeper = open_keeper(tmp_path, Board())
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)}, 5)) == {True}
    size = (tmp_path / "journal").stat().st_size
    assert verdicts(apply(keeper, {"GPU-a": (0, 900)}, 5)) == {True}
    assert verdicts(keeper.handle(2, Renew(1, "blue", 5, 30.0))) == {True}
    assert (tmp_path / "journal").stat().st_size == size
    assert verdicts(keeper.handle(2, Renew(2, "blue", 5, 30.0))) == {True}
    assert (tmp_path / "journal").stat().st_size > size
