"""Profiles uploaded to the controller, kept in its store and named by policies like files.

A profile is validated before it is kept, and bounded in size and number. While the store fails,
the profiles last seen in it stay as they are.
"""

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress

from joulecut_controller.ports import Event, Store, StoredProfile
from joulecut_controller.sources.profile import parse
from joulecut_wire.errors import BadInput, Unavailable

UPLOAD_BYTES_MAX = 4 << 20  # 64 stages x 2 x 500 clocks; the largest published one has 60 kB
UPLOADS_MAX = 1_000
UPLOADS_BYTES_MAX = 256 << 20  # of all together: the store stays quick to back up
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\.csv")
NAMES_ALLOWED = "up to 128 letters, digits and . _ - before .csv"


class UploadedProfiles:
    """The profiles in a store. For callers in any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._digests: Mapping[str, str] = {}

    def digests(self) -> Mapping[str, str]:
        """The digest of every profile by name; as last seen while the store fails."""
        with suppress(Unavailable):
            self._digests = {one.name: one.digest for one in self._store.profiles()}
        return self._digests

    def listed(self) -> tuple[StoredProfile, ...]:
        """By name. Raises Unavailable."""
        return self._store.profiles()

    def read(self, name: str) -> bytes:
        """The content of one; empty without it. Raises BadInput while the store fails."""
        try:
            return self._store.profile(name).encode()
        except Unavailable as error:
            raise BadInput(name, str(error), "a store that answers") from None

    def keep(self, name: str, raw: bytes, by: str, at_unix_s: float) -> str:
        """Keeps a profile in place of one of the same name; returns what was done.

        Raises BadInput where it is no profile or too much, Unavailable.
        """
        if not NAME.fullmatch(name):
            raise BadInput("name", f"{name!r:.200}", NAMES_ALLOWED)
        if len(raw) > UPLOAD_BYTES_MAX:
            raise BadInput(name, f"{len(raw)} bytes", f"at most {UPLOAD_BYTES_MAX}")
        profile = parse(raw, name)
        others = [one for one in self._store.profiles() if one.name != name]
        if len(others) >= UPLOADS_MAX:
            raise BadInput(name, f"{len(others)} profiles are kept", f"at most {UPLOADS_MAX}")
        if sum(one.bytes for one in others) + len(raw) > UPLOADS_BYTES_MAX:
            allowed = f"at most {UPLOADS_BYTES_MAX} bytes of all profiles together"
            raise BadInput(name, "too much", allowed)
        digest = hashlib.sha256(raw).hexdigest()
        kept = StoredProfile(name, digest, len(raw), at_unix_s)
        self._store.keep_profile(kept, raw.decode())
        text = f"profile {name} uploaded by {by}: {profile.stages} stages, {len(raw)} bytes"
        self._store.record(Event(at_unix_s, "policy", "", 0, text))
        return text

    def remove(self, name: str, by: str, at_unix_s: float) -> str:
        """Raises BadInput where there is none, Unavailable."""
        if name not in {one.name for one in self._store.profiles()}:
            raise BadInput("name", f"no profile {name!r:.200} was uploaded", "an uploaded one")
        self._store.remove_profile(name)
        text = f"profile {name} removed by {by}"
        self._store.record(Event(at_unix_s, "policy", "", 0, text))
        return text
