"""Package for training scripts: standard library only; it never blocks or fails a step."""

from joulecut.reporter import Reporter

__all__ = ["Reporter"]
