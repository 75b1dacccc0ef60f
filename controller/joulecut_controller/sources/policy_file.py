"""The policy file: read as a whole, and watched cheaply for changes.

An invalid file raises and changes nothing, so the caller keeps its policy. The same invalid file is
reported once, and again only when it changes.
"""

import hashlib
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

from joulecut_controller.policy.hourly import Points
from joulecut_controller.policy.parse import parse
from joulecut_controller.policy.policy import DIGEST_LENGTH, Policy
from joulecut_controller.sources.hourly_prices import FILE_BYTES_MAX as HOURLY_BYTES_MAX
from joulecut_controller.sources.hourly_prices import parse as parse_hourly
from joulecut_controller.sources.profile import FILE_BYTES_MAX as PROFILE_BYTES_MAX
from joulecut_controller.sources.profile import parse as parse_profile
from joulecut_engine.graph.pipeline import Profile
from joulecut_wire import document, user_file
from joulecut_wire.errors import BadInput

# A file written again within its clock's step keeps its time; ext4 and NFS tick in up to
# this many nanoseconds. Until the time is older, content is compared.
SETTLED_NS = 2_000_000_000

PLAIN_NAME = re.compile(r"[^/\0]*[^/.\0][^/\0]*")  # in no other folder

Stamp = tuple[int, int, int, int]  # inode, size, mtime, ctime


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file at its last check; without a stamp where that cannot be trusted."""

    stamp: Stamp | None
    digest: str
    bytes_max: int


def load(path: Path, *, profiles: Path | None = None) -> Policy:
    """Reads a policy and the profiles it names. Raises BadInput for the first fault."""
    return PolicyFile(path, profiles=profiles).load()


@dataclass(eq=False)
class PolicyFile:
    """One policy file, and the profiles that it names.

    A profile is the file of that path, relative to the policy. A plain name that is no file there
    is looked for in the folder `profiles`.
    """

    path: Path
    profiles: Path | None = None

    def __post_init__(self) -> None:
        self._seen: dict[Path, _Seen] = {}
        self._valid = False  # the last load

    def newest(self, before: Policy) -> Policy:
        """The policy on disk: `before`, loaded last, where nothing changed. Raises BadInput."""
        return before if self._valid and not self.changed() else self.load()

    def load(self) -> Policy:
        """The policy on disk. Raises BadInput.

        Paths of profiles are relative to the policy file; `digest` covers their bytes too.
        """
        seen: dict[Path, _Seen] = {}
        self._seen = seen  # also of an invalid file, which is reported once
        self._valid = False
        profiles: dict[str, Profile] = {}

        def profile(text: str) -> Profile:
            if text not in profiles:
                profiles[text] = self._profile(text, seen)
            return profiles[text]

        def hourly(text: str) -> Points:
            place = self.path.parent / text
            return parse_hourly(_take(place, HOURLY_BYTES_MAX, seen), str(place))

        raw = _take(self.path, document.FILE_BYTES_MAX, seen)
        policy = parse(document.parse(raw, str(self.path)), profile, hourly)
        content = "".join(one.digest for one in seen.values())
        self._valid = True
        return replace(policy, digest=_digest(content.encode())[:DIGEST_LENGTH])

    def _profile(self, text: str, seen: dict[Path, _Seen]) -> Profile:
        """The profile of this name, wherever it is; appearing earlier in the order is a change.
        Raises BadInput.
        """
        place, plain = self.path.parent / text, PLAIN_NAME.fullmatch(text) is not None
        if plain and self.profiles is not None and _stamp(place) is None:
            seen[place] = _absent(place)
            place = self.profiles / text
        return parse_profile(_take(place, PROFILE_BYTES_MAX, seen), str(place))

    def changed(self) -> bool:
        """Whether the policy or a profile it names differs from the last `load`.

        Costs one `stat` per file; content is compared only where that is not conclusive.
        """
        known = self._seen  # a thread that is given up must not write into what a load saw later
        if not known:
            return True
        for path, seen in tuple(known.items()):
            stamp = _stamp(path)
            if stamp is not None and stamp == seen.stamp:
                continue
            if _digest(_read(path, seen.bytes_max)) != seen.digest:
                return True
            known[path] = replace(seen, stamp=_trusted(stamp))
        return False


def _take(path: Path, bytes_max: int, seen: dict[Path, _Seen]) -> bytes:
    """Content of a file, noted as seen. Raises BadInput where there is none.

    The stamp is taken before the content, so that a change in between is seen later. One
    byte too many is read, enough for the reader to refuse the file.
    """
    stamp = _stamp(path)
    raw = _read(path, bytes_max)
    seen[path] = _Seen(_trusted(stamp), _digest(raw), bytes_max)
    if isinstance(raw, BadInput):
        raise raw
    return raw


def _absent(path: Path) -> _Seen:
    """A file that is not there: appearing is a change."""
    return _Seen(None, _digest(_read(path, 1)), 1)


def _read(path: Path, bytes_max: int) -> bytes | BadInput:
    try:
        return user_file.read(path, bytes_max)
    except BadInput as error:
        return error


def _digest(raw: bytes | BadInput) -> str:
    """Of an unreadable file the error: becoming readable is a change."""
    return raw.what if isinstance(raw, BadInput) else hashlib.sha256(raw).hexdigest()


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _trusted(stamp: Stamp | None) -> Stamp | None:
    """The stamp, unless the file is so new that another write could keep the same stamp."""
    if stamp is None or time.time_ns() - max(stamp[2], stamp[3]) < SETTLED_NS:
        return None
    return stamp
