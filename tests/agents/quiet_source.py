"""A source of readings whose driver always answers: what tests of a sampler build on."""

from collections.abc import Mapping
from types import MappingProxyType


class QuietSource:
    unresponsive: frozenset[int] = frozenset()
    unread: Mapping[int, str] = MappingProxyType({})

    def kill(self) -> None:
        return

    def close(self) -> None:
        return
