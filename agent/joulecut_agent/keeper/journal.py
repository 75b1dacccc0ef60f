"""What the keeper has written and not yet undone, on disk before it happens.

There is no getter for locked clocks, so after a crash this file alone knows which GPUs are
capped, and how new the newest command to each was. A record is one line: checksum, kind,
boot id and values. A torn or damaged line is skipped; a lock that another boot set is gone
by itself. Compaction keeps the file small.
"""

import contextlib
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from joulecut_agent.keeper.lease import NONE, Knobs, Lease

BYTES_MAX = 65_536  # some 600 records; read in a moment, and a page cache never notices


class Journal:
    """`held` is what this boot's GPUs were set to, newest last; `limits_mw` the power limits
    that stood before the first of ours.
    """

    def __init__(self, path: Path, boot_id: str, epochs: Path | None = None) -> None:
        """Reads what is there. `epochs` keeps the largest epoch where `path` may not outlive a
        boot, and may be a journal that was there before. Raises OSError where a file is there
        and cannot be read.
        """
        self._boot_id = boot_id
        self._file, self._epochs = _File(path), _File(epochs) if epochs else None
        self.epoch_seen = 0
        self.held: dict[str, Knobs] = {}
        self.limits_mw: dict[str, int] = {}
        self.last: dict[str, Lease] = {}  # the newest intent for each GPU, whatever became of it
        self.remarks: set[str] = set()  # what a person should read
        self._programs: dict[str, tuple[int, ...]] = {}  # read, and not what they belong to
        for one in filter(None, (epochs, path)):
            with contextlib.suppress(FileNotFoundError):
                for line in one.read_bytes().splitlines():
                    try:
                        self._replay(line)
                    except (ValueError, IndexError):  # whole, and not in our words
                        self.remarks.add("a line of a newer version was skipped")

    def intend(
        self, epoch: int, leases: Mapping[str, Lease], limits_mw: Mapping[str, int] | None = None
    ) -> None:
        """Returns once the intent would survive a crash, and the epoch a power cut.

        What it says already is not said again. Raises OSError: then write nothing.
        """
        fresh = {u: mw for u, mw in (limits_mw or {}).items() if u not in self.limits_mw}
        news = {u: g for u, g in leases.items() if u not in self.held or not g.same(self.last[u])}
        term = [f"epoch {self._boot_id} {epoch}"] if epoch > self.epoch_seen else []
        if lines := term + self._limits(fresh) + self._sets(news):
            self._file.append(lines, self._whole())
            if term and self._epochs:  # after what the old one may name is in the new one
                self._epochs.append(term, term)
            self.epoch_seen = max(self.epoch_seen, epoch)
            self.limits_mw.update(fresh)
            self.held.update({u: _with(g.knobs, self.held.get(u, NONE)) for u, g in news.items()})
            self.last.update(news)

    def restored(self, uuids: Iterable[str], forget: Iterable[str] = ()) -> None:
        """`forget` has its recorded power limit back. Never raises: a record that is missing
        only costs one more restore.
        """
        known = [uuid for uuid in uuids if self.held.pop(uuid, None) is not None]
        gone = {uuid: 0 for uuid in forget if self.limits_mw.pop(uuid, 0)}
        if lines := [f"restored {self._boot_id} {uuid}" for uuid in known] + self._limits(gone):
            with contextlib.suppress(OSError):
                self._file.append(lines, self._whole())

    def _sets(self, last: Mapping[str, Lease]) -> list[str]:
        lines = []
        for u, g in last.items():
            numbers = (*g.clocks_mhz, g.epoch, g.generation, g.power_mw)
            rows = [("program", g.program)] * bool(g.program) + [("set", numbers)]
            lines += [f"{kind} {self._boot_id} {u} {' '.join(map(str, row))}" for kind, row in rows]
        return lines

    def _limits(self, limits_mw: Mapping[str, int]) -> list[str]:
        return [f"limit {self._boot_id} {uuid} {mw}" for uuid, mw in limits_mw.items()]

    def _replay(self, line: bytes) -> None:
        checksum, _, body = line.partition(b" ")
        if checksum != b"%08x" % zlib.crc32(body):
            self.remarks.add("a damaged line was skipped")
            return
        kind, boot_id, *values = body.decode().split(" ")
        if kind == "epoch":
            self.epoch_seen = max(self.epoch_seen, int(values[0]))
        elif kind == "restored":
            self.held.pop(values[0], None)
        elif kind == "limit":
            self.limits_mw.pop(values[0], None)
            if boot_id == self._boot_id and int(values[1]):  # another boot's went with it
                self.limits_mw[values[0]] = int(values[1])
        elif kind == "program":
            self._programs[values[0]] = tuple(map(int, values[1:]))
        elif kind == "set":
            low, high, epoch, generation, *power = map(int, values[1:])  # no power before 0.2
            rest = (sum(power), self._programs.pop(values[0], ()))
            self.last[values[0]] = Lease("", epoch, generation, (low, high), 0.0, *rest)
            if boot_id == self._boot_id:
                self.held[values[0]] = _with((low, high, rest[0]), self.held.get(values[0], NONE))
            else:
                self.remarks.add("what another boot had locked is gone by itself: nothing to write")
        else:
            raise ValueError(kind)

    def _whole(self) -> list[str]:
        lines = [f"epoch {self._boot_id} {self.epoch_seen}", *self._limits(self.limits_mw)]
        lines += self._sets({u: Lease("", 0, 0, k[:2], 0.0, k[2]) for u, k in self.held.items()})
        lines += self._sets(self.last)
        return lines + [f"restored {self._boot_id} {u}" for u in self.last if u not in self.held]


class _File:
    """Lines that are on disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def append(self, lines: list[str], whole: list[str]) -> None:
        """`whole` begins a clean file: at first, and where the old one is long or damaged."""
        try:
            # A file that somebody deleted takes writes too, but no later keeper would see them.
            if self._fd < 0 or (f := os.fstat(self._fd)).st_size > BYTES_MAX or not f.st_nlink:
                self._replace(whole)
            _write(self._fd, lines)
        except OSError:
            self.close()  # what is on disk now may be torn: the next append begins a clean file
            raise

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _replace(self, whole: list[str]) -> None:
        fresh = self._path.with_suffix(".new")
        self.close()
        self._fd = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o640)
        _write(self._fd, whole)
        fresh.rename(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _with(knobs: Knobs, held: Knobs) -> Knobs:
    """A knob that is no longer asked for is still to be undone, until that is known to be done."""
    return (*(knobs if knobs[1] else held)[:2], knobs[2] or held[2])


def _write(fd: int, lines: list[str]) -> None:
    raw = b"".join(b"%08x %s\n" % (zlib.crc32(body), body) for body in map(str.encode, lines))
    if os.write(fd, raw) < len(raw):
        raise OSError(28, "No space left on device")
    os.fsync(fd)
