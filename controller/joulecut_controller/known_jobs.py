"""Measured jobs as the controller's store keeps them: counters, and what was measured.

No names: a workload is a hash.
"""

import hashlib
from collections.abc import Sequence

import msgspec
import numpy as np

from joulecut_engine.estimate.other_jobs import ClockShares, Counters, KnownJob

NAME = "fleet prior"  # of the text in the store; the version before wrote it too
VERSION = 2
KNOWN_KEPT = 512  # rows, one or two of a job; a fit of so many takes two seconds in a worker
NAMED = 1  # the version that kept names


class _Known(msgspec.Struct):
    shown: Counters
    shares: ClockShares
    workload: str = ""  # unknown in the version before
    drawn: tuple[tuple[float, float], ...] = ()
    fingerprint: str = ""
    scale: float = 1.0


class _Stored(msgspec.Struct):
    """What else the version before stored has no meaning any more, and is skipped."""

    version: int = VERSION
    finished: list[_Known] = []


def hashed(name: str) -> str:
    """In place of a job's name."""
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def encoded(jobs: Sequence[KnownJob]) -> str:
    rows = [
        _Known(one.counters, one.shares, one.workload, one.drawn, one.fingerprint, one.scale)
        for one in jobs
    ]
    return msgspec.json.encode(_Stored(finished=rows), enc_hook=np.generic.item).decode()


def decoded(text: str) -> list[KnownJob]:
    """Empty for an empty text. Raises ValueError, with one line, for one that is none of these."""
    if not text:
        return []
    try:
        stored = msgspec.json.decode(text, type=_Stored)
    except (ValueError, RecursionError) as error:  # DecodeError is a ValueError
        raise ValueError(str(error).splitlines()[0]) from None
    if stored.version not in (NAMED, VERSION):
        raise ValueError(f"version {stored.version}, not {VERSION}")
    for one in stored.finished:
        numbers = [number for pair in one.drawn for number in pair]
        if numbers and (len(one.drawn) < 2 or min(*numbers, one.shown.clock_ratio) <= 0.0):
            raise ValueError("a job drew nothing, or at no clock")
    named = stored.version == NAMED
    names = [
        hashed(k.workload or f"#{i}") if named else k.workload
        for i, k in enumerate(stored.finished)
    ]
    return [
        KnownJob(name, one.shown, one.shares, one.drawn, one.fingerprint, one.scale)
        for name, one in zip(names, stored.finished, strict=True)
    ]
