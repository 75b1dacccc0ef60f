"""An estimate of a run and a sweep of its layouts, as notebooks and programs use them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from joulecut_engine.money import Prices
from joulecut_engine.picture import Picture, drawn, frame
from joulecut_lab import run_file
from joulecut_lab.model import formula
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.estimate import Estimate
from joulecut_lab.model.graph_level import simulate
from joulecut_lab.model.run import Run
from joulecut_lab.model.stack import Default
from joulecut_lab.model.sweep import FIGURES, Layouts, Space, evaluate
from joulecut_lab.model.system import System
from joulecut_lab.model_chart import estimate_figure, front_figure
from joulecut_wire.document import Document

if TYPE_CHECKING:
    import pandas

Level = Literal["formula", "graph"]
LEVELS: dict[str, Callable[[Architecture, System, Run], Estimate]] = {
    "formula": formula.estimate,
    "graph": lambda *run: simulate(*run)[0],
}


@dataclass(frozen=True)
class Modelled:
    """One run and its estimate. Energy is of all GPUs and one iteration, without hosts."""

    architecture: Architecture
    system: System
    run: Run
    estimate: Estimate
    prices: Prices
    defaults: tuple[Default, ...] = ()  # that the run's stack sets, each with its source

    def __str__(self) -> str:
        name, gpus, full = self.architecture.name, self.run.gpus, "" if self.fits else " (too much)"
        return (
            f"{name} on {gpus} GPUs of {self.system.name}, predicted: "
            f"{self.iteration_time_s:.4g} s and {self.energy_j:.4g} J an iteration, "
            f"MFU {self.mfu:.1%}, {self.memory_bytes / 1e9:.1f} GB on the fullest GPU{full}"
        )

    @property
    def iteration_time_s(self) -> float:
        return self.estimate.iteration_time_s

    @property
    def energy_j(self) -> float:
        return self.estimate.energy_j

    @property
    def memory_bytes(self) -> float:
        """Peak of the fullest GPU."""
        return max(stage.total_bytes for stage in self.estimate.memory)

    @property
    def fits(self) -> bool:
        return self.estimate.fits

    @property
    def mfu(self) -> float:
        """FLOPs of the model over the peak of all GPUs, as a fraction."""
        return self.estimate.mfu

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of `joulecut model --json`."""
        return self.estimate.as_dict()

    def plot(self, path: str | Path | None = None) -> Picture:
        """Time, energy and memory by part, drawn; written to `path` where there is one."""
        return drawn(lambda: estimate_figure(self.estimate, self.system.hbm_bytes), path)

    def sweep(
        self, progress: Callable[[int, int], None] | None = None, **choices: object
    ) -> "Swept":
        """All layouts of these GPUs: a list of values for each key of a run, or "all" for every
        sensible one; without any, that of the usual keys. `data` is what the others leave.
        `progress` gets (parts done, parts). Raises ValueError.
        """
        lists = {k: v if isinstance(v, str) else _listed(v) for k, v in choices.items()}
        document, here = Document("model", {}, {}), (self.run, self.architecture, self.system)
        values = run_file.read_choices(document, lists or run_file.ALL, *here)
        run_file.check_values(document, ("sweep",), values, self.system)
        space = Space(self.architecture, self.system, self.run, values, self.prices)
        parts, found = list(space.parts()), []
        for part in parts:
            found.append(evaluate(part))
            if progress is not None:
                progress(len(found), len(parts))
        return Swept.joined(found)


class Swept(Layouts):
    """Layouts as notebooks use them. Energy is of all GPUs with their hosts and one iteration,
    money what it costs.
    """

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each layout, with the words and flags of a run file."""
        return [
            {**asdict(self.run(i)), **{k: float(self.columns[k][i]) for k in FIGURES}}
            for i in range(len(self))
        ]

    def to_pandas(self) -> "pandas.DataFrame":
        """One line for each layout, as in `rows`."""
        return frame(self.rows())

    def plot(self, path: str | Path | None = None) -> Picture:
        """Layouts and their Pareto front, drawn; written to `path` where there is one. Raises
        ValueError where no layout fits.
        """
        if not len(self):
            raise ValueError("sweep: no layout fits: more GPUs, recompute full, or zero from 1 up")
        return drawn(lambda: front_figure(self), path)


def modelled(
    architecture: object,
    system: object,
    level: Level,
    cost: Mapping[str, float],
    given: Mapping[str, Any],
) -> Modelled:
    """The answer for one run. Raises ValueError."""
    if system is None:
        if given or cost:
            raise ValueError(f"model: {', '.join([*given, *cost])} beside a run file")
        read = run_file.read(Path(str(architecture)))
    else:
        sizes = [given.get(key, 1) for key in ("tensor", "pipeline", "data", "context")]
        gpus = prod(size for size in sizes if isinstance(size, int))
        read = run_file.of_mapping(
            {
                "model": _named(architecture, "huggingface"),
                "system": _named(system, "file"),
                "run": {"gpus": gpus, **given},
                "cost": dict(cost),
            },
            "model",
        )
    values = (read.architecture, read.system, read.run)
    if level not in LEVELS:
        raise ValueError(f'model: level "{level}"; allowed: {", ".join(LEVELS)}')
    return Modelled(*values, LEVELS[level](*values), read.cost.prices, read.defaults)


def _named(given: object, key: str) -> object:
    """A file, as run files name it; names and keys as they are."""
    path = Path(given) if isinstance(given, str | Path) else None
    is_file = isinstance(given, Path) or (path and path.suffix in {".json", ".yaml", ".yml"})
    return {key: str(given)} if is_file else given


def _listed(given: object) -> object:
    """Arrays and ranges as run files have them."""
    if not isinstance(given, Iterable):
        return given
    return [one.item() if isinstance(one, np.generic) else one for one in given]
