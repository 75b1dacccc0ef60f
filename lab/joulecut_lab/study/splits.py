"""Which rows teach and which rows judge: the easy split, and the honest ones.

A random split asks for a clock between two that were measured of the same layer; only what
is left out whole (a shape, a model, a card) says how a prediction holds for work not seen.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from joulecut_lab.study.row import Row

FOLDS = 5  # random rows: four fifths teach, as in the usual protocol
GROUPS_MAX = 6  # of shapes left out together; more cost time and change nothing
PROBES = 5  # clocks of each curve that teach where clocks are held out


@dataclass(frozen=True, slots=True)
class Fold:
    """Indices into the rows: `teach` and `judge` do not meet."""

    teach: tuple[int, ...]
    judge: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """`known`: the judged curves were partly measured, so a curve can be bent to them."""

    name: str
    says: str
    known: bool
    folds: tuple[Fold, ...]


def splits(rows: Sequence[Row], seed: int) -> tuple[Split, ...]:
    """All that these rows allow; those with nothing to leave out are absent."""
    found = (
        Split("random rows", "a fifth of all rows at a time", True, _random(rows, seed)),
        Split("held-out clocks", f"{PROBES} clocks of each curve teach", True, _clocks(rows)),
        Split("two probes", "a new layer, its lowest and highest clock known", True, _ends(rows)),
        Split("held-out shapes", "a layer and sequence length never seen", False, _shapes(rows)),
        Split("held-out model", "one model's layers never seen", False, _models(rows)),
        Split("held-out card", "one card never seen", False, _cards(rows)),
    )
    return tuple(split for split in found if any(fold.judge for fold in split.folds))


def _random(rows: Sequence[Row], seed: int) -> tuple[Fold, ...]:
    """By a digest of each row's key, so that the order of the file does not matter."""

    def key(row: Row) -> int:
        return zlib.crc32(f"{seed} {row.setting} {row.clock_asked_mhz}".encode())

    ordered = sorted(range(len(rows)), key=lambda i: (key(rows[i]), i))
    fold_of = {i: place % FOLDS for place, i in enumerate(ordered)}
    return _folds(rows, [fold_of[i] for i in range(len(rows))])


def _by_curve(rows: Sequence[Row]) -> Iterator[list[int]]:
    curves: dict[tuple[object, ...], list[int]] = {}
    for i, row in enumerate(rows):
        curves.setdefault(row.setting, []).append(i)
    for places in curves.values():
        yield sorted(places, key=lambda i: rows[i].clock_asked_mhz)


def _clocks(rows: Sequence[Row]) -> tuple[Fold, ...]:
    return (_kept(rows, PROBES),)


def _ends(rows: Sequence[Row]) -> tuple[Fold, ...]:
    """Groups of layers of which only both ends teach, beside all other layers."""
    few = set(_kept(rows, 2).teach)
    return tuple(
        Fold(tuple(sorted({*fold.teach, *(few & set(fold.judge))})), tuple(judged))
        for fold in _shapes(rows)
        if (judged := sorted(set(fold.judge) - few))
    )


def _kept(rows: Sequence[Row], count: int) -> Fold:
    """So many clocks of every curve teach, its ends among them; the others judge."""
    teach: set[int] = set()
    for places in _by_curve(rows):
        last = len(places) - 1
        teach |= {places[round(k * last / (count - 1))] for k in range(count)}
    judge = tuple(i for i in range(len(rows)) if i not in teach)
    return Fold(tuple(sorted(teach)), judge)


def _shapes(rows: Sequence[Row]) -> tuple[Fold, ...]:
    return _left_out(rows, lambda row: (row.model, row.sequence), GROUPS_MAX)


def _models(rows: Sequence[Row]) -> tuple[Fold, ...]:
    return _left_out(rows, lambda row: row.model, len(rows))


def _cards(rows: Sequence[Row]) -> tuple[Fold, ...]:
    return _left_out(rows, lambda row: row.card, len(rows))


def _left_out(rows: Sequence[Row], key: Callable[[Row], object], most: int) -> tuple[Fold, ...]:
    names = list(dict.fromkeys(key(row) for row in rows))
    if len(names) < 2:
        return ()
    group = {name: i % most for i, name in enumerate(names)}
    return _folds(rows, [group[key(row)] for row in rows])


def _folds(rows: Sequence[Row], fold_of: Sequence[int]) -> tuple[Fold, ...]:
    return tuple(
        Fold(
            tuple(i for i in range(len(rows)) if fold_of[i] != fold),
            tuple(i for i in range(len(rows)) if fold_of[i] == fold),
        )
        for fold in sorted(set(fold_of))
    )
