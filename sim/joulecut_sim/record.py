"""How a card lies in the state file: fixed size, so that a reader needs no parser.

Each card has two slots and a byte that says which one counts. A writer fills the other
slot and then flips the byte: a process killed in between leaves the old card, whole.
"""

import struct

from joulecut_sim.physics import CHANGES_MAX, WORKS_MAX, Card, Change, Work

_HEAD = struct.Struct("<6d5qq")
_WORK = struct.Struct("<3dqd")
_CHANGE = struct.Struct("<dqq")
SLOT_BYTES = _HEAD.size + WORKS_MAX * _WORK.size + CHANGES_MAX * _CHANGE.size
CARD_BYTES = 8 + 2 * SLOT_BYTES  # the byte that counts, padded

_LOST = 1
_MIG = 2


def pack(card: Card) -> bytes:
    """A card as `SLOT_BYTES` bytes; the newest works and changes where there are too many."""
    works, changes = card.works[-WORKS_MAX:], card.changes[-CHANGES_MAX:]
    flags = (_LOST if card.lost else 0) | (_MIG if card.mig else 0)
    head = _HEAD.pack(
        card.at_s,
        card.energy_j,
        card.latched_j,
        card.average_w,
        card.temperature_celsius,
        card.load_ratio,
        card.memory_used_bytes,
        flags,
        card.writes,
        len(works),
        len(changes),
        card.power_limit_mw,
    )
    body = b"".join(
        _WORK.pack(w.begin_s, w.end_s, w.energy_j, w.clock_cap_mhz, w.utilization) for w in works
    ).ljust(WORKS_MAX * _WORK.size, b"\0")
    tail = b"".join(
        _CHANGE.pack(c.effective_s, c.clock_min_mhz, c.clock_max_mhz) for c in changes
    ).ljust(CHANGES_MAX * _CHANGE.size, b"\0")
    return head + body + tail


def unpack(raw: bytes) -> Card:
    """The inverse of `pack`."""
    at, energy, latched, average, celsius, load, memory, flags, writes, works, changes, limit_mw = (
        _HEAD.unpack_from(raw)
    )
    return Card(
        at_s=at,
        energy_j=energy,
        latched_j=latched,
        average_w=average,
        temperature_celsius=celsius,
        load_ratio=load,
        memory_used_bytes=memory,
        lost=bool(flags & _LOST),
        mig=bool(flags & _MIG),
        writes=writes,
        power_limit_mw=limit_mw,
        works=tuple(
            Work(*_WORK.unpack_from(raw, _HEAD.size + i * _WORK.size)) for i in range(works)
        ),
        changes=tuple(
            Change(
                *_CHANGE.unpack_from(raw, _HEAD.size + WORKS_MAX * _WORK.size + i * _CHANGE.size)
            )
            for i in range(changes)
        ),
    )
