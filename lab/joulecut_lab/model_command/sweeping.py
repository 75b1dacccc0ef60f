"""`joulecut model sweep SWEEP.yaml`: all layouts, and the Pareto front."""

import json
import signal
import threading
import time
from argparse import Namespace
from dataclasses import fields
from typing import Any, NoReturn

import numpy as np

from joulecut_cli import figures, plot
from joulecut_cli.progress import Progress
from joulecut_lab import tablefile
from joulecut_lab.model.run import WORDS, Run
from joulecut_lab.model.sweep import FIGURES, OBJECTIVES, Layouts, Space, evaluate
from joulecut_lab.model_command.shown import gigabytes
from joulecut_lab.run_file import read_sweep
from joulecut_wire.command import FINE, retired

SHOWN_MAX = 20  # layouts in the answer; --json and --out have all


def run(options: Namespace) -> int:
    """Raises BadInput, Unavailable."""
    out = None if options.out is None else tablefile.target(options.out)
    picture = plot.target(options.plot)
    for flag in ("dask", "fresh"):
        if getattr(options, flag):
            retired(f"--{flag}", "has no effect: a sweep takes minutes, on this machine alone")
    space = read_sweep(options.sweep)
    began_s = time.perf_counter()
    found = _evaluated(space, options.jobs or -1)
    if out is not None:
        names = (*_keys(space), *FIGURES)
        tablefile.write(out, {name: _decoded(name, found.columns[name]) for name in names})
    answer = _Answer(space, found, time.perf_counter() - began_s)
    if picture is not None and len(found):
        from joulecut_engine.panel import figure
        from joulecut_lab.model_chart import front_figure, layouts_panels

        head, *cells = answer.table(SHOWN_MAX)
        table = (head, [plot.Row("", "", each) for each in cells])
        drawn = [
            front_figure(found),
            figure(layouts_panels(found.front.columns, answer.named(SHOWN_MAX))),
        ]
        plot.write(picture, answer.title(), drawn, table, [answer.summary()])
    if options.json:
        print(json.dumps(answer.as_json(), allow_nan=False, indent=1))
    else:
        print("\n".join(answer.as_text()))
    return FINE


def _evaluated(space: Space, jobs: int) -> Layouts:
    """All parts, on so many processes; -1 for one per core."""
    import joblib

    parts, found = list(space.parts()), list[Layouts]()
    alone = jobs == 1 or len(parts) == 1
    together = joblib.Parallel(n_jobs=1 if alone else jobs, return_as="generator")
    # Workers start as this process is then: Ctrl-C in a terminal is not for them, it ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        results = together(joblib.delayed(evaluate)(part) for part in parts)
    finally:
        signal.signal(signal.SIGINT, _interrupted)
    with Progress("layouts") as progress:
        for one in results:
            found.append(one)
            progress.advance(sum(part.size for part in parts[: len(found)]), space.size)
    return Layouts.joined(found)


def _interrupted(*_: object) -> NoReturn:
    """The work is dropped at once. joblib's thread may still look for it, and would say so. A
    second Ctrl-C would leave joblib's end half done, and the workers at work.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.excepthook = lambda _: None
    raise KeyboardInterrupt


def _decoded(name: str, column: Any) -> list[Any]:
    """Words, whole numbers and flags as a person writes them."""
    if name in WORDS:
        return [WORDS[name][int(one)] for one in column]
    kinds = {field.name: field.type for field in fields(Run)}
    kind: Any = kinds.get(name, float)
    if kind is bool:
        return ["true" if one else "false" for one in column]
    return [kind(one) for one in column.tolist()]


def _keys(space: Space) -> list[str]:
    """Swept keys in the order of `Run`, and data, which follows from them."""
    return [f.name for f in fields(Run) if f.name in space.choices or f.name == "data"]


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


class _Answer:
    """What the sweep found."""

    def __init__(self, space: Space, found: Layouts, seconds: float) -> None:
        self._space, self._found, self._seconds = space, found, seconds
        self._best = found.front.columns

    def title(self) -> str:
        space = self._space
        return f"{space.architecture.name or 'model'} on {space.run.gpus} x {space.system.name}"

    def summary(self) -> str:
        found = self._found
        return (
            f"{self._space.size} combinations, {len(found) + found.too_large} possible, "
            f"{len(found)} fit in memory; {figures.seconds(self._seconds)}; "
            "predicted at level formula, not measured"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "combinations": self._space.size,
            "impossible": self._found.impossible,
            "too_large": self._found.too_large,
            "fitting": len(self._found),
            "seconds": self._seconds,
            "pareto": [
                {**self._layout(i), **{name: float(self._best[name][i]) for name in FIGURES}}
                for i in range(len(self._found.front))
            ],
        }

    def as_text(self) -> list[str]:
        front = len(self._found.front)
        lines = [self.title(), self.summary()]
        if not front:
            return [*lines, "", "No layout fits: more GPUs, recompute: full, or zero: 1 and up."]
        head, *rows = self.table(SHOWN_MAX)
        some = f", {len(rows)} of them here" if len(rows) < front else ""
        lines += ["", f"Pareto front of time, energy, memory and money: {front} layouts{some}"]
        return [*lines, *figures.table(head, rows, frozenset(head[-5:]))]

    def table(self, count: int) -> list[list[str]]:
        """A head and some rows of the front: the best in each figure, and others between."""
        best = self._best
        head = [*self._varied(), "iteration", "energy", "memory", "money", "MFU"]
        rows = []
        for i in self._some(count):
            layout = self._layout(i)
            cells = [_shown(layout[key]) for key in self._varied()]
            rows.append([
                *cells, figures.seconds(float(best["iteration_time_s"][i])),
                figures.joules(float(best["energy_j"][i])),
                gigabytes(float(best["memory_bytes"][i])), f"{best['money'][i]:.4g}",
                figures.percent(float(best["mfu"][i])),
            ])  # fmt: skip
        return [head, *rows]

    def named(self, count: int) -> dict[int, str]:
        """The same rows of the front, by what they differ in."""
        return {
            i: ", ".join(f"{k} {_shown(self._layout(i)[k])}" for k in self._varied())
            for i in self._some(count)
        }

    def _some(self, count: int) -> list[int]:
        total = len(self._found.front)
        if total <= count:
            return list(range(total))
        wanted = {int(self._best[name].argmin()) for name in OBJECTIVES}
        # Most of the front pays much time for little memory: the cheap end is of more use.
        order = sorted(range(total), key=lambda i: float(self._best["money"][i]))
        wanted |= set(order[: count - len(wanted)])
        return sorted(wanted)

    def _varied(self) -> list[str]:
        """Keys that differ within the front."""
        return [k for k in _keys(self._space) if len(np.unique(self._best[k])) > 1]

    def _layout(self, i: int) -> dict[str, Any]:
        run = self._found.front.run(i)
        return {key: getattr(run, key) for key in _keys(self._space)}
