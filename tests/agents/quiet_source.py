"""A source of readings whose driver always answers: what tests of a sampler build on."""

from collections.abc import Mapping
from types import MappingProxyType

from joulecut_agent.ports.reader import Reading


class QuietSource:
    unresponsive: frozenset[int] = frozenset()
    unread: Mapping[int, str] = MappingProxyType({})

    def arrived(self) -> list[tuple[float, tuple[Reading, ...]]]:
        return []

    def is_reading(self, each_s: float) -> bool:
        return not each_s

    def kill(self) -> None:
        return

    def close(self) -> None:
        return
