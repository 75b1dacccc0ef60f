"""A policy as plain values, whole: what two of them are compared by.

Everything an operator can write is in it, after defaults, and nothing that depends on the
machine it was read on: a profile is known by its content.
"""

import hashlib
import math
from dataclasses import fields, is_dataclass
from typing import Any

from joulecut_controller.policy.policy import GpuRef, Policy
from joulecut_engine.graph.pipeline import Profile

DIGEST_LENGTH = 12  # hexadecimal digits, as of a policy


def policy_json(policy: Policy) -> dict[str, Any]:
    """The policy with its jobs in their order, since the first match wins. Units in the keys."""
    shown: dict[str, Any] = _plain(policy)
    return shown


def _plain(value: Any) -> Any:
    if isinstance(value, Profile):
        return _profile(value)
    if isinstance(value, GpuRef):
        return f"{value.node}/{value.index}"
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _profile(profile: Profile) -> str:
    """What a profile says, as one word: its path is another on every machine."""
    content = repr(sorted((key, tuple(options)) for key, options in profile.options.items()))
    return hashlib.sha256(content.encode()).hexdigest()[:DIGEST_LENGTH]
