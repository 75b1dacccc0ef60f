"""What an estimator writes down, so that a restart in the middle of learning loses nothing.

Numbers go through JSON as they are (shortest text that reads back to the same float), so
what was fitted before and what is fitted after are the same bytes.
"""

from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

from joulecut_engine.estimate.estimator import WorkShape
from joulecut_engine.estimate.pooled import Snapshot
from joulecut_engine.estimate.window import Cell, Reading

NOT_A_STATE = "not the state of an estimator"
# Thousands are written at every change; `dataclasses.astuple` copies each number for itself.
_CELL = attrgetter(*(field.name for field in fields(Cell)))
_READING = attrgetter(*(field.name for field in fields(Reading)))
_SHAPE = attrgetter(*(field.name for field in fields(WorkShape)))


def dump_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "number": snapshot.number,
        "cells": [
            [list(_CELL(cell)), [list(_READING(reading)) for reading in readings]]
            for cell, readings in snapshot.cells
        ],
        "cards": dict(snapshot.cards),
        "shapes": {workload: list(_SHAPE(shape)) for workload, shape in snapshot.shapes.items()},
    }


def load_snapshot(state: Mapping[str, Any]) -> Snapshot:
    """Raises KeyError, TypeError, ValueError where it is none."""
    return Snapshot(
        number=int(state["number"]),
        cells=tuple(
            (Cell(*cell), tuple(Reading(*reading) for reading in readings))
            for cell, readings in state["cells"]
        ),
        cards={str(uuid): str(model) for uuid, model in state["cards"].items()},
        shapes={str(name): WorkShape(*shape) for name, shape in state["shapes"].items()},
    )
