"""Fit a system's efficiencies and power to measured iterations.

Times come first: every efficiency that the rows depend on, robustly, because single layouts of a
real cluster are off by tens of percent. Power follows at these times. Each number keeps a prior at
its default, which decides where the rows say nothing. What no row depends on stays as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from joulecut_engine.model.architecture import Architecture
from joulecut_engine.model.formula import Estimates, evaluate
from joulecut_engine.model.power import power_of
from joulecut_engine.model.run import Run
from joulecut_engine.model.runs import Floats, Runs
from joulecut_engine.model.system import FITTED, FITTED_MAX, System

# Lowest value, highest value, and standard deviation of the prior, a logarithm.
BOUNDS: dict[str, tuple[float, float, float]] = {
    "matrix_efficiency": (0.02, 1.0, 0.3),
    "attention_efficiency": (0.02, 1.0, 0.3),
    "hbm_efficiency": (0.05, 1.0, 0.3),
    "kernel_s": (2e-7, 1e-4, 1.0),
    "launch_s": (2e-7, 2e-4, 1.5),
    "scale_up_efficiency": (0.05, 1.0, 0.3),
    "scale_up_latency_s": (1e-6, 3e-4, 1.0),
    "scale_out_efficiency": (0.02, 1.0, 0.3),
    "tensor_overlap": (0.01, 1.0, 1.0),
    "idle_w": (1.0, 2000.0, 0.5),
    "waiting_w": (1.0, 2000.0, 0.3),
    "compute_pj_per_flop": (0.001, 100.0, 0.5),
    "memory_clock_share": (0.02, 1.0, 0.7),
}
POWERS = ("idle_w", "waiting_w", "compute_pj_per_flop")
TIMES = tuple(name for name in FITTED if name not in POWERS)
NOISE = 0.005  # relative, of a measured iteration: adjacent clocks of published sweeps differ so
OUTLIER = 0.1  # a row further off counts less
LAUNCHES_S = (5e-6, 4e-5)  # start values: compiled loops, and Python without graphs
MATTERS = 1e-4  # of an iteration, when a number changes by a tenth
ROWS_MAX = 240  # more rows cost time and change nothing
STEPS_MAX = 30
PRECISION = 1e-5  # of a step's gain: far below the noise
RAISED = 1.03  # a card seen this far above its limit has a higher one
RAISED_TO = 1.5  # the new limit is unknown: it holds nothing that was measured
ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured run; energy of all GPUs of one iteration, memory of the fullest GPU."""

    architecture: Architecture
    run: Run
    iteration_time_s: float
    energy_j: float | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted system. Errors are mean absolute relative ones over the rows, None without rows.

    `fitted` holds the numbers that changed, `assumed` those that no row depends on. A memory error
    is reported and nothing is fitted to it: bytes are counted, not measured.
    """

    system: System
    fitted: dict[str, float]
    assumed: tuple[str, ...]
    time_error: float
    time_bias: float
    energy_error: float | None
    memory_error: float | None
    rows: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of one architecture."""

    architecture: Architecture
    runs: Runs
    time_s: Floats
    energy_j: Floats  # nan where unknown
    memory_bytes: Floats


def calibrate(rows: Sequence[Measurement], system: System) -> Calibration:
    """Fit `system` to the rows. Raises ValueError without rows."""
    if not rows:
        raise ValueError("no measurements")
    every = _groups(rows)
    step = -(-len(rows) // ROWS_MAX)
    few = _groups(rows[::step])
    notes = []
    system, note = _raised(system, few)
    notes += note
    power = power_of(system)
    system = replace(
        system, waiting_w=power.waiting_w, compute_pj_per_flop=power.flop_j * 1e12
    )  # defaults written out, so that a fit may move them
    start = system
    times = [name for name in TIMES if _matters(system, few, name)]
    known = any(np.isfinite(group.energy_j).any() for group in few)
    powers = list(POWERS) if known else []
    times = times[: FITTED_MAX - len(powers)]
    system = _fit_times(system, start, few, times)
    for turn in range(ROUNDS if powers else 0):
        if turn > 0:  # the power cap moves with the power numbers, and times with it
            system = _fit(system, start, few, times)
        system = _fit(system, start, few, powers, energies=True)
    changed = {name: float(getattr(system, name)) for name in (*times, *powers)}
    if step > 1:
        notes.append(f"fitted to every {step}th row of {len(rows)}")
    return Calibration(
        system=system,
        fitted=changed,
        assumed=tuple(name for name in FITTED if name not in changed),
        time_error=float(np.mean(np.abs(_time_errors(system, every)))),
        time_bias=float(np.mean(_time_errors(system, every))),
        energy_error=_error(_energy_errors(system, every)),
        memory_error=_error(_memory_errors(system, every)),
        rows=len(rows),
        notes=tuple(notes),
    )


def _groups(rows: Sequence[Measurement]) -> list[_Group]:
    by_model: dict[Architecture, list[Measurement]] = {}
    for row in rows:
        by_model.setdefault(row.architecture, []).append(row)
    return [
        _Group(
            architecture=architecture,
            runs=Runs.of([row.run for row in group]),
            time_s=np.array([row.iteration_time_s for row in group]),
            energy_j=np.array([row.energy_j or np.nan for row in group]),
            memory_bytes=np.array([row.memory_bytes or np.nan for row in group]),
        )
        for architecture, group in by_model.items()
    ]


def _raised(system: System, groups: list[_Group]) -> tuple[System, list[str]]:
    """The system with a power limit that its measured power does not exceed."""
    seen = [np.nanmax(g.energy_j / g.time_s / g.runs.gpus, initial=0.0) for g in groups]
    highest = float(np.max(seen))
    if highest <= RAISED * system.power_cap_w:
        return system, []
    note = f"power limit raised: {highest:.0f} W measured, {system.power_cap_w:.0f} W known"
    # Energy per operation stays what the data sheet's limit says of the card.
    pico = power_of(system).flop_j * 1e12
    waiting_w = power_of(system).waiting_w
    changed = replace(
        system, power_cap_w=RAISED_TO * highest, compute_pj_per_flop=pico, waiting_w=waiting_w
    )
    return changed, [note]


def _matters(system: System, groups: list[_Group], name: str) -> bool:
    """Whether any row's time depends on a number; launches hide at their default, so larger."""
    value = getattr(system, name)
    low, high, _ = BOUNDS[name]
    other = value * (20.0 if name == "launch_s" else 1.1 if 1.1 * value <= high else 0.9)
    changed = replace(system, **{name: min(max(other, low), high)})
    before, after = _times(system, groups), _times(changed, groups)
    return bool(np.max(np.abs(after / before - 1.0)) > MATTERS)


def _fit_times(system: System, start: System, groups: list[_Group], names: list[str]) -> System:
    """The best of several starts: below its threshold a launch time has no gradient."""
    begins = LAUNCHES_S if "launch_s" in names else (system.launch_s,)
    fits = [_fit(replace(system, launch_s=launch_s), start, groups, names) for launch_s in begins]
    return min(fits, key=lambda fit: float(np.mean(np.abs(_time_errors(fit, groups)))))


def _fit(
    system: System, start: System, groups: list[_Group], names: list[str], energies: bool = False
) -> System:
    """Least squares of relative errors over the logarithms of `names`."""
    if not names:
        return system
    low, high, sd = (np.array([BOUNDS[name][k] for name in names]) for k in range(3))
    prior = np.log([getattr(start, name) for name in names])
    begin = np.log([getattr(system, name) for name in names])
    begin = np.clip(begin, np.log(low) + 1e-6, np.log(high) - 1e-6)

    def changed(numbers: Floats) -> System:
        values: dict[str, Any] = {n: float(np.exp(x)) for n, x in zip(names, numbers, strict=True)}
        return replace(system, **values)

    def misfit(numbers: Floats) -> Floats:
        now = changed(numbers)
        errors = _energy_errors(now, groups) if energies else _time_errors(now, groups)
        errors = np.log(np.maximum(1e-6, 1.0 + errors[np.isfinite(errors)]))
        return np.concatenate([errors, NOISE * (numbers - prior) / sd])

    answer = least_squares(
        misfit,
        begin,
        bounds=(np.log(low), np.log(high)),
        loss="soft_l1",
        f_scale=OUTLIER,
        max_nfev=STEPS_MAX,
        x_scale=sd,
        ftol=PRECISION,
        xtol=PRECISION,
    )
    return changed(answer.x)


def _evaluated(system: System, groups: list[_Group]) -> list[Estimates]:
    return [evaluate(group.architecture, system, group.runs) for group in groups]


def _times(system: System, groups: list[_Group]) -> Floats:
    return np.concatenate([found.iteration_time_s for found in _evaluated(system, groups)])


def _time_errors(system: System, groups: list[_Group]) -> Floats:
    measured = np.concatenate([group.time_s for group in groups])
    return np.asarray(_times(system, groups) / measured - 1.0)


def _energy_errors(system: System, groups: list[_Group]) -> Floats:
    """Of power at the measured time, so that a wrong time does not bend the power."""
    errors = []
    for group, found in zip(groups, _evaluated(system, groups), strict=True):
        scaled = found.energy_j / found.iteration_time_s * group.time_s
        errors.append(scaled / group.energy_j - 1.0)
    return np.concatenate(errors)


def _memory_errors(system: System, groups: list[_Group]) -> Floats:
    found = _evaluated(system, groups)
    pairs = zip(groups, found, strict=True)
    return np.concatenate([one.memory_bytes / group.memory_bytes - 1.0 for group, one in pairs])


def _error(errors: Floats) -> float | None:
    known = np.abs(errors[np.isfinite(errors)])
    return float(known.mean()) if known.size else None
