"""Figures and tables that notebooks show. matplotlib and pandas are imported here alone."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecut_engine.panel import png, style

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Picture:
    """A figure of matplotlib, which notebooks show."""

    figure: Any

    def save(self, path: str | Path) -> None:
        """PNG, SVG or PDF, by the name of the file."""
        with style():
            self.figure.savefig(path, dpi=160)

    def _repr_png_(self) -> bytes:
        return png(self.figure)


def drawn(draw: Callable[[], Any], path: str | Path | None) -> Picture:
    """The picture, and its file where there is a path. Raises ModuleNotFoundError."""
    try:
        found = Picture(draw())
    except ModuleNotFoundError:
        raise ModuleNotFoundError("plot needs matplotlib: pip install matplotlib") from None
    if path is not None:
        found.save(path)
    return found


def frame(rows: Sequence[dict[str, Any]]) -> "pandas.DataFrame":
    """Raises ModuleNotFoundError."""
    try:
        found = importlib.import_module("pandas")
    except ModuleNotFoundError:
        raise ModuleNotFoundError("to_pandas needs pandas: pip install pandas") from None
    return found.DataFrame(rows)
