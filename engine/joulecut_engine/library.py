"""The engine in five lines, for notebooks and programs: `plan` and `model`.

Both take files, dictionaries and names alike. Files are read by what the entry-point group
`joulecut.readers` names, so the engine itself reads none. Every error is a ValueError of one line:
what is wrong, where, and what is allowed. What answers is imported at the first call: code that
needs values of the engine alone loads no solver.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecut_engine.readers import reader

if TYPE_CHECKING:
    from joulecut_engine.graph.pipeline import Granularity, Pipeline, Profile
    from joulecut_engine.planned import Planned
    from joulecut_lab.modelled import Level, Modelled

Rows = Iterable[Mapping[str, object]]
Columns = Mapping[str, Sequence[object]]


def plan(
    profile: "str | Path | Profile | Columns | Rows",
    shape: "Mapping[str, Any] | Pipeline | None" = None,
    *,
    blocking_power_w: float | None = None,
    max_slowdown: float | str | None = None,
    deadline_s: float | None = None,
    granularity: "Granularity" = "computation",
) -> "Planned":
    """The clocks of least energy within a deadline, as `joulecut plan`.

    `profile` is a CSV file, its rows, its columns (a DataFrame too), or a job file in .yaml, which
    has shape and power. Columns: stage from 0, instruction (forward, backward), frequency in MHz,
    time in seconds, energy in joules, one row for each clock. `shape` has schedule, stages and
    microbatches, with chunks where a GPU holds several. `blocking_power_w` is what a GPU draws
    while it waits. The deadline is `deadline_s`, or so much above the fastest iteration time as
    `max_slowdown` says, in percent as on the command line: 2, "2" or "2%"; neither means 0.

    Raises ValueError; a deadline that no plan meets names the fastest time.
    """
    from joulecut_engine.planned import planned, problem_of

    asked = problem_of(profile, shape, blocking_power_w)
    return planned(asked, max_slowdown, deadline_s, granularity)


def model(
    architecture: "str | Path | Mapping[str, object]",
    system: str | Path | Mapping[str, object] | None = None,
    *,
    level: "Level" = "formula",
    cost: Mapping[str, float] | None = None,
    **run: Any,
) -> "Modelled":
    """Time, memory and energy of a training run before it starts, as `joulecut model`.

    `architecture` is a name (`joulecut model catalogue` lists them), a config.json, or the keys of
    a shape; or a run file in .yaml, which has all. `system` is a name, a calibrated .yaml, or keys.
    `run` has the keys of a run file: tensor, pipeline, microbatch, global_batch, sequence (tokens),
    clock_mhz and others; `gpus` is what tensor, pipeline, context and data take where it is not
    given. `cost` has kwh_price, gpu_hour_price and pue. Raises ValueError.
    """
    answer = reader("modelled", "joulecut-lab")
    found: Modelled = answer(architecture, system, level, cost or {}, run)
    return found
