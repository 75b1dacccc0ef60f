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

from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.formula import Estimates, evaluate
from joulecut_lab.model.memory import Memory, memory_of
from joulecut_lab.model.power import explicit
from joulecut_lab.model.run import Run
from joulecut_lab.model.runs import Floats, Runs
from joulecut_lab.model.system import FITTED, System

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
    "hbm_pj_per_bit": (0.1, 100.0, 0.5),
    "scale_up_pj_per_bit": (0.01, 100.0, 1.0),
    "scale_out_pj_per_bit": (0.1, 1000.0, 1.0),
    "memory_clock_share": (0.02, 1.0, 0.7),
}
# Of each component of power: `formula` names its joules.
POWERS = {
    "idle_w": "static",
    "waiting_w": "waiting",
    "compute_pj_per_flop": "compute",
    "hbm_pj_per_bit": "memory",
    "scale_up_pj_per_bit": "scale_up",
    "scale_out_pj_per_bit": "scale_out",
}
TIMES = tuple(name for name in FITTED if name not in POWERS)
NOISE = 0.005  # relative, of a measured iteration: adjacent clocks of published sweeps differ so
OUTLIER = 0.1  # a row further off counts less
LAUNCHES_S = (5e-6, 4e-5)  # start values: compiled loops, and Python without graphs
MATTERS = 1e-4  # of an iteration, when a number changes by a tenth
ROWS_MAX = 240  # more rows cost time and change nothing
STEPS_MAX = 30
PRECISION = 1e-5  # of a step's gain: far below the noise
SLOPE_STEP = 1e-4  # of a logarithm: over a kink of the power limit rounding would decide the slope
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

    `fitted` holds the numbers that changed, `doubt` the standard error of each as a fraction, and
    `assumed` those that no row depends on. `components` are shares of the rows' energy, as fitted.
    A memory error is reported and nothing is fitted to it: bytes are counted, not measured.
    """

    system: System
    fitted: dict[str, float]
    doubt: dict[str, float]
    components: dict[str, float]
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
    counted: Memory  # by the model


Fit = tuple[System, dict[str, float]]  # and standard errors by number


def calibrate(rows: Sequence[Measurement], system: System) -> Calibration:
    """Fit `system` to the rows. Raises ValueError without rows."""
    if not rows:
        raise ValueError("no measurements")
    every = _groups(rows)
    step = -(-len(rows) // ROWS_MAX)
    few = _groups(rows[::step])
    system, notes = _raised(explicit(system), few)
    start, before = system, _figures(system, few)
    times = [name for name in TIMES if _matters(system, few, name, before[0])]
    known = any(np.isfinite(group.energy_j).any() for group in few)
    powers = [name for name in POWERS if known and _matters(system, few, name, before[1])]
    system, doubt = _fit_times(system, start, few, times)
    for turn in range(ROUNDS if powers else 0):
        if turn > 0:  # the power cap moves with the power numbers, and times with it
            system, doubt = _fit(system, start, few, times)
        system, more = _fit(system, start, few, powers, energies=True)
        doubt |= more
    changed = {name: float(getattr(system, name)) for name in (*times, *powers)}
    found = _evaluated(system, every)
    time, energy = _errors(system, every)
    pairs = zip(found, every, strict=True)
    memory = np.concatenate([one.memory_bytes / row.memory_bytes - 1.0 for one, row in pairs])
    if step > 1:
        notes.append(f"fitted to every {step}th row of {len(rows)}")
    return Calibration(
        system=system,
        fitted=changed,
        doubt=doubt,
        components=_components(found) if powers else {},
        assumed=tuple(name for name in FITTED if name not in changed),
        time_error=float(np.mean(np.abs(time))),
        time_bias=float(np.mean(time)),
        energy_error=_error(energy),
        memory_error=_error(memory),
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
            runs=(runs := Runs.of([row.run for row in group])),
            counted=memory_of(architecture, runs),
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
    return replace(system, power_cap_w=RAISED_TO * highest), [note]


def _matters(system: System, groups: list[_Group], name: str, before: Floats) -> bool:
    """Whether any row's time, or energy for a number of power, depends on a number; launches hide
    at their default, so larger. `before` is the rows' time or energy on `system`.
    """
    value = getattr(system, name)
    low, high, _ = BOUNDS[name]
    other = value * (20.0 if name == "launch_s" else 1.1 if 1.1 * value <= high else 0.9)
    changed = replace(system, **{name: min(max(other, low), high)})
    after = _figures(changed, groups)[name in POWERS]
    return bool(np.max(np.abs(after / before - 1.0)) > MATTERS)


def _fit_times(system: System, start: System, groups: list[_Group], names: list[str]) -> Fit:
    """The best of several starts: below its threshold a launch time has no gradient."""
    begins = LAUNCHES_S if "launch_s" in names else (system.launch_s,)
    fits = [_fit(replace(system, launch_s=launch_s), start, groups, names) for launch_s in begins]
    return min(fits, key=lambda fit: float(np.mean(np.abs(_errors(fit[0], groups)[0]))))


def _fit(
    system: System, start: System, groups: list[_Group], names: list[str], energies: bool = False
) -> Fit:
    """Least squares of relative errors over the logarithms of `names`, and their standard errors,
    at most those of the prior. Energies are fitted with times: a power limit that held too much
    would explain any power.
    """
    if not names:
        return system, {}
    low, high, sd = (np.array([BOUNDS[name][k] for name in names]) for k in range(3))
    prior = np.log(np.maximum(low, [getattr(start, name) for name in names]))
    begin = np.maximum(low, [getattr(system, name) for name in names])
    begin = np.clip(np.log(begin), np.log(low) + 1e-6, np.log(high) - 1e-6)

    def changed(numbers: Floats) -> System:
        values: dict[str, Any] = {n: float(np.exp(x)) for n, x in zip(names, numbers, strict=True)}
        return replace(system, **values)

    def misfit(numbers: Floats) -> Floats:
        both = _errors(changed(numbers), groups)
        errors = np.concatenate(both) if energies else both[0]
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
        diff_step=[SLOPE_STEP] * len(names),
        ftol=PRECISION,
        xtol=PRECISION,
    )
    noise = max(NOISE, float(np.sqrt(np.mean(answer.fun[: -len(names)] ** 2))))
    jac = np.asarray(answer.jac)
    errors = noise * np.sqrt(np.diag(np.linalg.pinv(jac.T @ jac)))
    return changed(answer.x), dict(zip(names, np.minimum(errors, sd).tolist(), strict=True))


def _evaluated(system: System, groups: list[_Group]) -> list[Estimates]:
    return [evaluate(one.architecture, system, one.runs, one.counted) for one in groups]


def _figures(system: System, groups: list[_Group]) -> tuple[Floats, Floats]:
    """Seconds and joules of every row."""
    found = _evaluated(system, groups)
    seconds = np.concatenate([one.iteration_time_s for one in found])
    return seconds, np.concatenate([one.energy_j for one in found])


def _errors(system: System, groups: list[_Group]) -> tuple[Floats, Floats]:
    """Of time; and of power at the measured time, so that a wrong time does not bend the power."""
    seconds, joules = _figures(system, groups)
    time_s = np.concatenate([group.time_s for group in groups])
    energy_j = np.concatenate([group.energy_j for group in groups])
    return seconds / time_s - 1.0, joules / seconds * time_s / energy_j - 1.0


def _components(found: list[Estimates]) -> dict[str, float]:
    """Shares of the energy of all rows, without hosts."""
    whole = sum(float(one.energy_j.sum()) for one in found)
    return {
        name: sum(float(one.energy_breakdown_j[name].sum()) for one in found) / whole
        for name in POWERS.values()
    }


def _error(errors: Floats) -> float | None:
    known = np.abs(errors[np.isfinite(errors)])
    return float(known.mean()) if known.size else None
