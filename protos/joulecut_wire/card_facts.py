"""The file of `joulecut selftest`: what was measured of a card, in place of what is `assumed`.

It has the facts of some cards by UUID. They hold for the driver and VBIOS that they were measured
with.
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from joulecut_wire import user_file
from joulecut_wire.assumed import DWELLS
from joulecut_wire.errors import BadInput

VERSION = 1
BYTES_MAX = 1_000_000  # 16 cards with every clock take 30,000
CARDS_MAX = 64

Scope = Literal["", "gpu", "module", "other"]  # of the energy counter; "": not answered
_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=60.0)]
_Mhz = Annotated[int, msgspec.Meta(gt=0, le=10_000)]
_Clocks = Annotated[tuple[_Mhz, ...], msgspec.Meta(max_length=1024)]
_Text = Annotated[str, msgspec.Meta(max_length=256)]


# Public reports: the counter of a GH200 is the whole module's, its CPU and memory included (zeus
# pull request 172, June 2025). Other chips beside a CPU of NVIDIA are not known: a GB10 has no
# scope but the GPU's (zeus pull request 242, July 2026), a GB200 has both (k8s-test-infra issue
# 676, 2026), and what its counter counts is not public. A self-test measures it.
MODULE_COUNTERS = ("GH200",)
UNKNOWN_COUNTERS = ("GB10", "GB200", "GB300")
MORE_THAN_THE_GPU: tuple[Scope, ...] = ("module", "other")


def scope_of(model: str) -> Scope:
    """What the energy counter of a card of this driver's name counts, before it was measured."""
    words = model.upper().split()
    if any(name in words for name in MODULE_COUNTERS):
        return "module"
    return "" if any(name in words for name in UNKNOWN_COUNTERS) else "gpu"


class CardFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured facts of one card; zero, empty or "" where a fact was not measured.

    `unreached_mhz`: listed clocks that a lock does not give. `capped_mhz`: the clock that the power
    limit held under the test's own load.
    """

    uuid: _Text
    driver: _Text
    vbios: _Text
    model: _Text
    measured_unix_s: Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]
    set_latency_p5_s: _Seconds = 0.0
    set_latency_p95_s: _Seconds = 0.0
    set_latency_max_s: _Seconds = 0.0
    counter_scope: Scope = ""
    counter_step_s: _Seconds = 0.0
    unreached_mhz: _Clocks = ()
    capped_mhz: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0

    @property
    def dwell_s(self) -> float:
        return DWELLS * self.set_latency_max_s

    def age_s(self, now_unix_s: float | None = None) -> float:
        now_s = time.time() if now_unix_s is None else now_unix_s
        return max(0.0, now_s - self.measured_unix_s)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: Literal[1]
    cards: Annotated[tuple[CardFacts, ...], msgspec.Meta(max_length=CARDS_MAX)]


def read(path: Path) -> tuple[CardFacts, ...]:
    """The facts in a file; () without one. Raises BadInput."""
    if not path.exists():
        return ()
    raw = user_file.read(path, BYTES_MAX)
    try:
        return msgspec.json.decode(raw, type=_File).cards
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BadInput(str(path), str(error), "a file of `joulecut selftest --save`") from None


def save(path: Path, cards: Iterable[CardFacts]) -> None:
    """Replaces the facts of these cards in a file, and keeps those of others.

    Raises BadInput on a file of another kind, OSError.
    """
    known = {card.uuid: card for card in read(path)}
    known |= {card.uuid: card for card in cards}
    body = msgspec.json.format(msgspec.json.encode(_File(1, tuple(known.values()))), indent=1)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(body + b"\n")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def valid_for(cards: Iterable[CardFacts], uuid: str, driver: str, vbios: str) -> CardFacts | None:
    """The facts of this card under this driver and VBIOS."""
    for card in cards:
        if (card.uuid, card.driver, card.vbios) == (uuid, driver, vbios) and driver:
            return card
    return None
