"""The simulated GPUs of one node, in a file that outlives every process that uses it.

Agent, keeper, job and tests map the same file. A SIGKILL of any of them leaves the GPUs as they
were, as a real driver does. A file lock orders the writers and dies with its holder. A card has
two slots of fixed size and a byte that selects one: a writer fills the other and flips the byte,
so a write that is cut short leaves the old card. A reboot is a fresh driver load: clocks at
default, counters at zero.
"""

import fcntl
import hashlib
import marshal
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from joulecut_sim.physics import (
    CHANGES_MAX,
    WORKS_MAX,
    Card,
    Change,
    Work,
    advance,
    fresh,
    lock_at,
    settled_until_s,
)
from joulecut_sim.skus import A100_SXM, CARDS, Sku, find
from joulecut_wire.errors import BadInput

SLOT_BYTES = 1024  # a card with its works and changes takes up to 650, and two of length
CARD_BYTES = 8 + 2 * SLOT_BYTES  # the byte that counts, padded
_FIELDS, _WORK, _CHANGE = (attrgetter(*kind.__slots__) for kind in (Card, Work, Change))


def pack(card: Card) -> bytes:
    """A card as `SLOT_BYTES` bytes; the newest works and changes where there are too many."""
    *numbers, works, changes = _FIELDS(card)
    rows = [*map(_WORK, works[-WORKS_MAX:])], [*map(_CHANGE, changes[-CHANGES_MAX:])]
    raw = marshal.dumps((numbers, *rows))
    assert len(raw) <= SLOT_BYTES
    return raw.ljust(SLOT_BYTES, b"\0")


def unpack(raw: bytes) -> Card:
    """The inverse of `pack`."""
    numbers, work_rows, change_rows = marshal.loads(raw)  # noqa: S302 -- a file of this user
    works, changes = (Work(*row) for row in work_rows), (Change(*row) for row in change_rows)
    values = (*numbers, tuple(works), tuple(changes))
    return Card(*values)


KIND = b"JCGPUS"
MAGIC = KIND + b"02"  # a file of another version is made again, as after a reboot
CARDS_MAX = 64  # four times the largest NVLink node sold
NAME_BYTES_MAX = 64
_HEADER = struct.Struct(f"<8s q 16s 32s {NAME_BYTES_MAX}s")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def now_s() -> float:
    """The one clock of all simulated GPUs: the same in every process, never set back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class StateFile:
    """The GPUs of one node. Safe to use from many processes and threads at once."""

    def __init__(self, path: Path, handle: int, memory: mmap.mmap) -> None:
        self.path = path
        self._handle = handle
        self._memory = memory
        self._turn = threading.Lock()  # flock does not separate the threads of one opening
        _, self.cards, _, sku, node = _HEADER.unpack_from(memory)
        self.sku: Sku = CARDS[sku.rstrip(b"\0").decode()]
        self.node: str = node.rstrip(b"\0").decode()

    @classmethod
    def open(
        cls, path: str | Path, *, cards: int | None = None, sku: str = "", node: str = ""
    ) -> Self:
        """Opens the file, or creates it (by default 8 A100 SXM).

        Raises BadInput where it cannot be used, or holds other cards than asked for.
        """
        path = Path(path).absolute()
        kind = find(sku, str(path), CARDS) if sku else None
        if cards is not None and not 1 <= cards <= CARDS_MAX:
            raise BadInput(str(path), f"{cards} cards", f"1 to {CARDS_MAX}")
        if len(node.encode()) > NAME_BYTES_MAX:
            raise BadInput(str(path), "node name too long", f"up to {NAME_BYTES_MAX} bytes")
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BadInput(str(path), error.strerror or "cannot be opened") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            count = _prepare(handle, path, cards or 8, kind or A100_SXM, node)
            memory = mmap.mmap(handle, _HEADER.size + count * CARD_BYTES)
            fcntl.flock(handle, fcntl.LOCK_UN)
            opened = cls(path, handle, memory)
        except BaseException:
            os.close(handle)
            raise
        wanted = (cards or opened.cards, kind or opened.sku, node or opened.node)
        held = (opened.cards, opened.sku, opened.node)
        if wanted != held:
            opened.close()
            raise BadInput(
                str(path),
                f"holds {held[0]} {held[1].name} of {held[2]}",
                f"a file of its own for {wanted[0]} {wanted[1].name} of {wanted[2]}",
            )
        return opened

    def uuid(self, index: int) -> str:
        return f"GPU-sim-{self.node}-{index}"

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(map(self.uuid, range(self.cards)))

    def index(self, uuid: str) -> int | None:
        """The index of a GPU of this node; None for any other."""
        uuids = self.uuids
        return uuids.index(uuid) if uuid in uuids else None

    # -- looking -------------------------------------------------------------------------

    def card(self, index: int) -> Card:
        """The card as it was last settled."""
        start = self._start(index)
        with self._locked():
            return self._read(start)

    def now(self, index: int) -> tuple[Card, float]:
        """The card advanced to this moment, and the moment."""
        with self._locked():
            card = self._read(self._start(index))
        moment_s = now_s()
        return advance(self.sku, card, moment_s), moment_s

    def energy_j(self, index: int, when_s: float | None = None) -> float:
        """The exact integral up to a time not before the last event, without counter steps."""
        moment_s = now_s() if when_s is None else when_s
        return advance(self.sku, self.card(index), moment_s).energy_j

    def lock_mhz(self, index: int, when_s: float | None = None) -> tuple[int, int]:
        """The clock lock (min, max) in effect at a time; (0, 0) is the driver's default."""
        return lock_at(self.card(index), now_s() if when_s is None else when_s)

    def asked_mhz(self, index: int) -> tuple[int, int]:
        """The lock last written, in effect or about to be; (0, 0) is the driver's default."""
        changes = self.card(index).changes
        return (changes[-1].clock_min_mhz, changes[-1].clock_max_mhz) if changes else (0, 0)

    # -- changing ------------------------------------------------------------------------

    def set_lock(self, index: int, low_mhz: int, high_mhz: int, latency_s: float = 0.0) -> None:
        """A clock lock that takes effect after `latency_s`; (0, 0) resets."""

        def write(card: Card) -> Card:
            change = Change(now_s() + latency_s, low_mhz, high_mhz)
            kept = (*card.changes, change)[-CHANGES_MAX:]
            return replace(card, changes=kept, writes=card.writes + 1)

        self._change(index, write)

    def set_power_limit(self, index: int, limit_mw: int) -> None:
        """The board's power limit; 0 is the driver's default."""

        def write(card: Card) -> Card:
            return replace(card, power_limit_mw=limit_mw, writes=card.writes + 1)

        self._change(index, write)

    def put(self, index: int, **fields: Any) -> None:
        """Fields of a card from now on: load without a job (1 is a dense kernel), memory, MIG mode,
        whether it is lost (as an Xid 79 leaves it).
        """
        self._change(index, lambda card: replace(card, **fields))

    def deposit(self, works: Mapping[int, Work]) -> dict[int, float]:
        """Hands in one piece of work per GPU, in order of time; each GPU's energy at its begin.

        What of a piece lies before the settled past is squeezed into the rest, so that no
        joule is lost. Raises ValueError for a piece that draws less than an idle card.
        """
        for work in works.values():
            if not work.end_s > work.begin_s or work.power_w < self.sku.idle_power_w:
                raise ValueError(f"no card can do this: {work}")
        moment_s = now_s()
        begun_j: dict[int, float] = {}
        with self._locked():
            for index, work in works.items():
                start = self._start(index)
                card = self._read(start)
                until_s = min(settled_until_s(card, moment_s), work.begin_s)
                if len(card.works) == WORKS_MAX:
                    until_s = max(until_s, card.works[0].end_s)
                card = advance(self.sku, card, until_s)
                begin_s = max(work.begin_s, card.at_s)
                squeezed = begin_s > work.begin_s
                end_s = max(work.end_s, begin_s + 1e-3) if squeezed else work.end_s
                late = replace(work, begin_s=begin_s, end_s=end_s)
                kept = card.works[1 - WORKS_MAX :]
                begun_j[index] = advance(self.sku, card, begin_s).energy_j
                self._write(start, replace(card, works=(*kept, late)))
        return begun_j

    def close(self) -> None:
        self._memory.close()
        os.close(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- the file ------------------------------------------------------------------------

    def _change(self, index: int, change: Callable[[Card], Card]) -> None:
        start = self._start(index)
        with self._locked():
            card = self._read(start)
            card = advance(self.sku, card, settled_until_s(card, now_s()))
            self._write(start, change(card))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._turn:
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _start(self, index: int) -> int:
        if not 0 <= index < self.cards:
            raise IndexError(f"GPU {index} of {self.cards}")
        return _HEADER.size + index * CARD_BYTES

    def _read(self, start: int) -> Card:
        slot = start + 8 + self._memory[start] * SLOT_BYTES
        return unpack(self._memory[slot : slot + SLOT_BYTES])

    def _write(self, start: int, card: Card) -> None:
        spare = 1 - self._memory[start]
        slot = start + 8 + spare * SLOT_BYTES
        self._memory[slot : slot + SLOT_BYTES] = pack(card)
        self._memory[start] = spare


def _prepare(handle: int, path: Path, cards: int, sku: Sku, node: str) -> int:
    """Makes the file where it is new or from before a reboot; the number of its cards."""
    boot = hashlib.sha256(_BOOT_ID.read_bytes()).digest()[:16]
    head = os.pread(handle, _HEADER.size, 0)
    if head:
        if len(head) < _HEADER.size or not head.startswith(KIND):
            raise BadInput(str(path), "is not a file of simulated GPUs", "a new file")
        magic, held, seen_boot, name, owner = _HEADER.unpack(head)
        current, size = magic == MAGIC, os.fstat(handle).st_size
        if not 1 <= held <= CARDS_MAX or (current and size < _HEADER.size + held * CARD_BYTES):
            raise BadInput(str(path), "is cut short", "a new file")
        if name.rstrip(b"\0").decode(errors="replace") not in CARDS:
            raise BadInput(str(path), "holds an unknown card", ", ".join(CARDS))
        if current and seen_boot == boot:
            return int(held)
        cards, sku, node = held, CARDS[name.rstrip(b"\0").decode()], owner.rstrip(b"\0").decode()
    if not node:  # stable for this file, and another for every other
        node = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    new = fresh(sku, now_s())
    record = (b"\0" * 8 + pack(new)).ljust(CARD_BYTES, b"\0")
    os.pwrite(handle, record * cards, _HEADER.size)
    header = _HEADER.pack(MAGIC, cards, boot, sku.name.encode(), node.encode())
    os.pwrite(handle, header, 0)
    return cards
