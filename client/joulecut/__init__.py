"""What a training script imports: standard library only, and never in its way."""

from joulecut.reporter import Reporter

__all__ = ["Reporter"]
