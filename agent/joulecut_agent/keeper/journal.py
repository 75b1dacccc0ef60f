"""Write-ahead journal of the keeper: GPU settings that are not undone yet.

NVML has no getter for locked clocks, so after a crash this file alone names the capped GPUs and
the newest generation of each. A lock of another boot is gone with that boot. Compaction bounds the
size. A record is one line: checksum, kind, boot id, values.

    epoch BOOT EPOCH                     the largest epoch seen
    limit BOOT UUID FOUND OURS...        power limits in mW: before our first write, then ours
    kept BOOT UUID MW [UNTIL]            the power limit that outlives its lease, until that
                                         monotonic time in seconds; 0: none
    program BOOT UUID MHZ...             the clock schedule of the next `set`
    set BOOT UUID MIN MAX EPOCH GENERATION MW KEEP
    restored BOOT UUID [UNTIL]           undone; until that monotonic time, in seconds, a write that
                                         was not answered may still set the GPU again
    clocks BOOT UUID LEFT MHZ...         the max clocks that may still be ours, newest last, none
                                         once it was seen free; LEFT 1: another writer's were seen

A torn last line is skipped: nothing was written to a GPU after it. Any other damaged line, other
bytes, or a file that cannot be read, may have named any GPU: `damaged` is then True.
"""

import contextlib
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Set
from math import ceil, inf
from pathlib import Path

from msgspec.structs import replace

from joulecut_agent.keeper.lease import Lease
from joulecut_agent.keeper.requests import NO_LIMITS, ClockLimits

BYTES_MAX = 65_536  # some 600 records, read in a moment
ASIDE = ".unreadable"  # suffix of a file that was kept aside
# For a GPU that no record names: its clocks are reset, its power limit is left alone.
UNKNOWN_LIMITS = ClockLimits(0, 1, 0)
WRITTEN_MAX = 8  # the limit in force, and those of failed commands after it
_TORN = re.compile(rb"[0-9a-f]{0,8}|[0-9a-f]{8} [ -~]*")  # the beginning of a line of ours
COPIES = 3  # of a record that no getter can replace: a damaged line end costs two lines


class Journal:
    """`held`: the limits set in this boot and not undone, newest last.

    `clocks_mhz`: the max clocks that this boot's keepers set, newest last, of the GPUs that may
    still be as they set them. `left`: those of them that show another writer's clocks.
    `recorded_mw`: the power limits found before the first write of ours, or lower ones that another
    writer has set since.
    `written_mw`: the limits that we may have written since, newest last.
    `kept_mw`: the limits that outlive their lease. `kept_until_s`: their ends, where they have one.
    """

    def __init__(
        self, path: Path, boot_id: str, epochs: Path | None = None, now_s: float = -inf
    ) -> None:
        """Reads `path` at the monotonic time `now_s`.

        `epochs` keeps the largest epoch if `path` may not outlive a boot; it may be an older
        journal.
        """
        self._boot_id = boot_id
        self._read_s = now_s
        self._late_until_s: dict[str, int] = {}  # of GPUs in `held` that were restored
        self._unreadable: list[Path] = []
        self._file, self._epochs = _File(path), _File(epochs) if epochs else None
        self.epoch_seen = 0
        self.held: dict[str, ClockLimits] = {}
        self.clocks_mhz: dict[str, tuple[int, ...]] = {}
        self.left: set[str] = set()
        self.recorded_mw: dict[str, int] = {}
        self.written_mw: dict[str, tuple[int, ...]] = {}
        self.kept_mw: dict[str, int] = {}
        self.kept_until_s: dict[str, int] = {}
        self.last: dict[str, Lease] = {}  # the newest lease of each GPU, in force or not
        self.remarks: set[str] = set()  # for the log
        self._schedules: dict[str, tuple[int, ...]] = {}  # read before the `set` they belong to
        if epochs:
            self._read(epochs)  # it names no lock
        self.damaged = self._read(path) or bool(self._unreadable)

    @property
    def is_clean(self) -> bool:
        """Whether there is no GPU to restore."""
        return not self.held and not self.damaged

    @property
    def late(self) -> Set[str]:
        """The GPUs in `held` that were restored, and that an unanswered write may set again."""
        return self._late_until_s.keys()

    @property
    def is_restored(self) -> bool:
        """Whether every GPU in `held` was restored once."""
        return self.held.keys() <= self.late and not self.damaged

    # -- writing -------------------------------------------------------------------------

    def intend(
        self, epoch: int, leases: Mapping[str, Lease], recorded_mw: Mapping[str, int] | None = None,
        kept_mw: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """Records leases before they are written; returns once the lines are on disk.

        `recorded_mw`: power limits found now. `kept_mw`: limits to keep from now on, 0 for none.
        Lines that change nothing are left out. Raises OSError: then nothing may be written.
        """
        news = {
            uuid: lease
            for uuid, lease in leases.items()
            if uuid not in self.held
            or uuid in self._late_until_s
            or not lease.same_content(self.last[uuid])
        }
        term = [f"epoch {self._boot_id} {epoch}"] if epoch > self.epoch_seen else []
        found_mw = {**(recorded_mw or {}), **self.recorded_mw}
        limits_mw = {
            uuid: (found_mw[uuid], *self._limits_with(uuid, lease.limits.power_mw))
            for uuid, lease in news.items()
            if uuid in found_mw and lease.limits.power_mw not in (0, *self.written_mw.get(uuid, ()))
        }
        asked_mw = kept_mw or {}
        held_mw = {uuid: mw for uuid, mw in asked_mw.items() if uuid in self.kept_until_s}
        kept_mw = {**self._changed_kept(asked_mw), **held_mw}  # under a lease it has no end
        lines = [
            *term,
            *self._limit_lines(limits_mw),
            *self._kept_lines(kept_mw),
            *self._set_lines(news),
        ]
        if not lines:
            return
        self._file.append(lines, self._compacted())
        if term and self._epochs:  # second: the new file now names what the old one may name
            self._epochs.append(term, term)
        self.epoch_seen = max(self.epoch_seen, epoch)
        self.recorded_mw.update({uuid: found for uuid, (found, *_) in limits_mw.items()})
        self._keep(kept_mw)
        for uuid in held_mw:
            self.kept_until_s.pop(uuid, None)
        for uuid, lease in news.items():
            self._hold(uuid, lease.limits, lease.schedule_mhz)
        self.last.update(news)

    def restored(
        self, uuids: Iterable[str], forget: Iterable[str] = (),
        free: Mapping[str, tuple[int, ...]] | None = None,
        kept_mw: Mapping[str, int] | None = None, left: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """These GPUs are undone; `forget` have their recorded power limit back.

        Of `free` these clocks alone may still be ours; those of `left` are another writer's, and
        may become ours again. `kept_mw` as for `intend`.

        Never raises: a missing record only costs one more restore.
        """
        known = [uuid for uuid in uuids if self.held.pop(uuid, None) is not None]
        for uuid in known:
            self._late_until_s.pop(uuid, None)
        gone = {uuid: (0,) for uuid in forget if self.recorded_mw.pop(uuid, 0)}
        for uuid in gone:
            self.written_mw.pop(uuid, None)
        changed_mw = self._changed_kept(kept_mw or {})
        self._keep(changed_mw)
        free = free or {}
        for uuid, clocks_mhz in free.items():
            self._know_clocks(uuid, (0, *clocks_mhz))
        self.left.update(left)
        lines = [
            *[f"restored {self._boot_id} {uuid}" for uuid in known],
            *self._limit_lines(gone),
            *self._kept_lines(changed_mw),
            *self._clock_lines((*free, *left)),
        ]
        self._note(lines)

    def restored_until_late(self, uuid: str, late_until_s: float, kept_mw: int) -> None:
        """The GPU is undone, but an unanswered write may still take effect until `late_until_s`.

        A keeper that starts before that time restores the GPU again. Never raises.
        """
        until_s = ceil(late_until_s)
        lines = self._kept_lines(changed_mw := self._changed_kept({uuid: kept_mw}))
        self._keep(changed_mw)
        if uuid in self.held and self._late_until_s.get(uuid) != until_s:
            self._late_until_s[uuid] = until_s
            lines.append(self._line("restored", uuid, until_s))
        self._note(lines)

    def keep_until(self, uuid: str, until_s: float) -> None:
        """The end of the GPU's kept power limit, if it has one. Never raises."""
        if uuid not in self.kept_mw or until_s == inf:
            return
        if self.kept_until_s.get(uuid) != (end_s := ceil(until_s)):
            self.kept_until_s[uuid] = end_s
            self._note(self._kept_lines({uuid: self.kept_mw[uuid]}, self.kept_until_s))

    def found_other(self, uuid: str, found_mw: int) -> None:
        """A limit that is not ours has replaced the recorded one.

        Never raises: without the line, the next keeper still reads the limit that is set.
        """
        self.recorded_mw[uuid] = found_mw
        self._note(self._limit_lines({uuid: (found_mw, *self.written_mw.get(uuid, ()))}))

    def _note(self, lines: list[str]) -> None:
        """Never raises: what a lost line costs stands at its caller."""
        if lines:
            with contextlib.suppress(OSError):
                self._file.append(lines, self._compacted())

    def hold_all(self, uuids: Iterable[str]) -> None:
        """Names every GPU of the node after damage, in new files; unreadable ones are kept aside.

        Never raises: without a new file the next keeper does this again.
        """
        for uuid in uuids:
            power_mw = self.written_mw.get(uuid, (0,))[-1]
            self._hold(uuid, UNKNOWN_LIMITS._replace(power_mw=power_mw))
        self.damaged = False
        with contextlib.suppress(OSError):
            for file in self._unreadable:
                file.rename(file.with_suffix(ASIDE))
            self._file.rewrite(self._compacted())
            if self._epochs:
                self._epochs.append([], [f"epoch {self._boot_id} {self.epoch_seen}"])

    def forget_epochs(self) -> None:
        """Sets every epoch and generation to 0, in new files. Raises OSError: then they stay.

        The file of the epochs is the last, because the next keeper takes the largest of both.
        """
        epoch_seen, last = self.epoch_seen, self.last
        self.epoch_seen = 0
        self.last = {uuid: replace(one, epoch=0, generation=0) for uuid, one in last.items()}
        try:
            self._file.rewrite(self._compacted())
            if self._epochs:
                self._epochs.rewrite([f"epoch {self._boot_id} 0"])
        except OSError:
            self.epoch_seen, self.last = epoch_seen, last
            raise

    def _hold(self, uuid: str, limits: ClockLimits, schedule_mhz: tuple[int, ...] = ()) -> None:
        self._late_until_s.pop(uuid, None)
        self.left.discard(uuid)
        if limits.max_mhz:
            set_mhz = (limits.max_mhz, *schedule_mhz)
            before_mhz = (mhz for mhz in self.clocks_mhz.get(uuid, ()) if mhz not in set_mhz)
            self.clocks_mhz[uuid] = (*before_mhz, *set_mhz)
        self.held[uuid] = _merged(limits, self.held.get(uuid, NO_LIMITS))
        if limits.power_mw and uuid in self.recorded_mw:
            self.written_mw[uuid] = self._limits_with(uuid, limits.power_mw)

    def _know_clocks(self, uuid: str, numbers: tuple[int, ...]) -> None:
        left, *clocks_mhz = numbers or (1, *self.clocks_mhz.get(uuid, ()))
        self.clocks_mhz[uuid] = tuple(clocks_mhz)
        self.left.discard(uuid)
        if left:
            self.left.add(uuid)

    def _limits_with(self, uuid: str, power_mw: int) -> tuple[int, ...]:
        others = [mw for mw in self.written_mw.get(uuid, ()) if mw != power_mw]
        return (*others, power_mw)[-WRITTEN_MAX:]

    def _changed_kept(self, kept_mw: Mapping[str, int]) -> dict[str, int]:
        return {uuid: mw for uuid, mw in kept_mw.items() if mw != self.kept_mw.get(uuid, 0)}

    def _keep(self, kept_mw: Mapping[str, int]) -> None:
        self.kept_mw.update(kept_mw)
        self.kept_mw = {uuid: mw for uuid, mw in self.kept_mw.items() if mw}
        self.kept_until_s = {u: end for u, end in self.kept_until_s.items() if u in self.kept_mw}

    # -- lines ---------------------------------------------------------------------------

    def _set_lines(self, leases: Mapping[str, Lease]) -> list[str]:
        lines = []
        for uuid, lease in leases.items():
            if lease.schedule_mhz:
                lines.append(self._line("program", uuid, *lease.schedule_mhz))
            min_mhz, max_mhz, power_mw = lease.limits
            numbers = (lease.epoch, lease.generation, power_mw, int(lease.keep_power_limit))
            lines.append(self._line("set", uuid, min_mhz, max_mhz, *numbers))
        return lines

    def _limit_lines(self, limits_mw: Mapping[str, tuple[int, ...]]) -> list[str]:
        """The limit that was found, or 0 if it is in force again, then those of ours."""
        lines = [self._line("limit", uuid, *known_mw) for uuid, known_mw in limits_mw.items()]
        return lines * COPIES

    def _kept_lines(
        self, kept_mw: Mapping[str, int], until_s: Mapping[str, int] | None = None
    ) -> list[str]:
        ends = {uuid: (end_s,) for uuid, end_s in (until_s or {}).items()}
        lines = [self._line("kept", uuid, mw, *ends.get(uuid, ())) for uuid, mw in kept_mw.items()]
        return lines * COPIES

    def _clock_lines(self, uuids: Iterable[str]) -> list[str]:
        known = self.clocks_mhz
        return [self._line("clocks", u, int(u in self.left), *known.get(u, ())) for u in uuids]

    def _line(self, kind: str, uuid: str, *numbers: int) -> str:
        return f"{kind} {self._boot_id} {uuid} {' '.join(map(str, numbers))}"

    def _compacted(self) -> list[str]:
        """The lines of a new file with the same content."""
        held = {uuid: Lease("", 0, 0, limits, 0.0) for uuid, limits in self.held.items()}
        limits_mw = {u: (mw, *self.written_mw.get(u, ())) for u, mw in self.recorded_mw.items()}
        return [
            f"epoch {self._boot_id} {self.epoch_seen}",
            *self._limit_lines(limits_mw),
            *self._kept_lines(self.kept_mw, self.kept_until_s),
            *self._set_lines(held),
            *self._set_lines(self.last),
            *[f"restored {self._boot_id} {u}" for u in self.last if u not in self.held],
            *[self._line("restored", u, until_s) for u, until_s in self._late_until_s.items()],
            *self._clock_lines({*self.last, *self.clocks_mhz}),
        ]

    # -- reading -------------------------------------------------------------------------

    def _read(self, file: Path) -> bool:
        """Replays a file; whether a damaged line of it may have named a lock of this boot."""
        try:
            *lines, tail = file.read_bytes().split(b"\n")
        except FileNotFoundError:
            return False
        except OSError as error:
            self._unreadable.append(file)
            aside = file.with_suffix(ASIDE)
            self.remarks.add(f"{file} cannot be read ({error.strerror}): kept as {aside}")
            return False
        if not _body(tail) and _body(tail[:-1]):  # its last byte, a line end, is damaged
            tail = tail[:-1]
        bodies = [_body(line) for line in lines]
        for body in (*bodies, _body(tail)):
            try:
                self._replay(body)
            except (ValueError, IndexError):  # an intact line of unknown content
                self.remarks.add("a line of a newer version was skipped")
        if not all((*bodies, _body(tail) or not tail)):
            self.remarks.add("a damaged line was skipped")
        boots = {body.split(b" ")[1] for body in bodies if b" " in body}
        damaged = b"" in bodies or not (_body(tail) or _TORN.fullmatch(tail))
        return damaged and (not boots or self._boot_id.encode() in boots)

    def _replay(self, body: bytes) -> None:
        """One record. Raises ValueError and IndexError if it makes no sense."""
        if not body:
            return
        kind, boot_id, subject, *values = body.decode().split(" ")
        this_boot = boot_id == self._boot_id
        match kind:
            case "epoch":
                self.epoch_seen = max(self.epoch_seen, int(subject))
            case "restored":
                if values and self._read_s < int(values[0]) and subject in self.held:
                    self._late_until_s[subject] = int(values[0])
                else:
                    self.held.pop(subject, None)
            case "clocks" | "yielded":  # the second by the version before, without values
                self._know_clocks(subject, tuple(map(int, values if this_boot else (0,))))
            case "limit":
                found_mw, *ours_mw = map(int, values)
                self.recorded_mw.pop(subject, None)
                self.written_mw.pop(subject, None)
                if this_boot and found_mw:  # a limit of another boot went with it
                    self.recorded_mw[subject] = found_mw
                    self.written_mw[subject] = tuple(ours_mw)
            case "kept":
                self._replay_kept(subject, tuple(map(int, values)), this_boot=this_boot)
            case "program":
                self._schedules[subject] = tuple(map(int, values))
            case "set":
                self._replay_set(subject, tuple(map(int, values)), this_boot=this_boot)
            case _:
                raise ValueError(kind)

    def _replay_kept(self, uuid: str, numbers: tuple[int, ...], *, this_boot: bool) -> None:
        self._keep({uuid: numbers[0] if this_boot else 0})
        self.kept_until_s.pop(uuid, None)
        if uuid in self.kept_mw and len(numbers) > 1:
            self.kept_until_s[uuid] = numbers[1]

    def _replay_set(self, uuid: str, numbers: tuple[int, ...], *, this_boot: bool) -> None:
        if len(numbers) < 4:
            raise ValueError(numbers)
        # Earlier versions wrote no KEEP, and the first one no MW either.
        min_mhz, max_mhz, epoch, generation, power_mw, keep = (*numbers, 0, 0)[:6]
        limits = ClockLimits(min_mhz, max_mhz, power_mw)
        schedule_mhz = self._schedules.pop(uuid, ())
        self.last[uuid] = Lease("", epoch, generation, limits, 0.0, schedule_mhz, bool(keep))
        if this_boot:
            self._hold(uuid, limits, schedule_mhz)
        else:
            self.remarks.add("locks of another boot are gone with it: nothing to restore")


class _File:
    """Lines that are on disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def append(self, lines: list[str], compacted: list[str]) -> None:
        """Appends; begins a new file with `compacted` at first, and after damage or growth."""
        try:
            if self._fd < 0 or self._is_outgrown():
                self._replace(compacted)
            _write(self._fd, lines)
        except OSError:
            self.close()  # the file may end in a torn line: the next append begins a new one
            raise

    def rewrite(self, lines: list[str]) -> None:
        """A new file with these lines alone."""
        self.close()
        self.append([], lines)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _is_outgrown(self) -> bool:
        """Whether the file is too long, or deleted: writes to it succeed but nothing reads it."""
        about = os.fstat(self._fd)
        return about.st_size > BYTES_MAX or not about.st_nlink

    def _replace(self, lines: list[str]) -> None:
        fresh = self._path.with_suffix(".new")
        self.close()
        self._fd = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o640)
        _write(self._fd, lines)
        fresh.rename(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _body(line: bytes) -> bytes:
    """The record in a line; empty if the line is damaged."""
    checksum, _, body = line.partition(b" ")
    return body if checksum == b"%08x" % zlib.crc32(body) else b""


def _merged(limits: ClockLimits, held: ClockLimits) -> ClockLimits:
    """`limits`, and from `held` what they leave alone: it is still to be undone."""
    clocks = limits if limits.max_mhz else held
    return ClockLimits(clocks.min_mhz, clocks.max_mhz, limits.power_mw or held.power_mw)


def _write(fd: int, lines: list[str]) -> None:
    raw = b"".join(b"%08x %s\n" % (zlib.crc32(body), body) for body in map(str.encode, lines))
    if os.write(fd, raw) < len(raw):
        raise OSError(28, "No space left on device")
    os.fsync(fd)
