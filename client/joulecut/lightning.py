"""Entry point of Lightning: with this package installed, every Trainer reports its iterations."""

from __future__ import annotations

from typing import Any

from joulecut import auto


def callbacks() -> list[Any]:
    """For `lightning.pytorch.callbacks_factory`: the hooks need no callback of their own."""
    auto.install()
    return []
