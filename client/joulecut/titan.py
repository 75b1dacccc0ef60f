"""Handler for torchtitan: TITAN_STRUCT_LOGGER_HANDLERS=...,joulecut.titan.register

torchtitan writes a record at the begin and end of each part of a step. The first record of a new
step ends the step before.
"""

from __future__ import annotations

import logging
from typing import Any

from joulecut import auto
from joulecut.recorder import recorder


class _StepHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._step: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        step = getattr(record, "step", None)
        if isinstance(step, int) and step != self._step:
            self._step = step
            recorder.step()


def register(structured_logger: logging.Logger, **_: Any) -> None:
    """As torchtitan calls it, with `rank`, `source` and `output_dir` besides."""
    auto.install()
    recorder.ends_elsewhere = True
    structured_logger.addHandler(_StepHandler())
