"""Redoes the fit behind `joulecut_sim.gpt3` from a public stage sweep.

With the CSV at hand, the numbers can be checked or replaced:

    python benchmarks/simulator/fit.py gpt3-175b+a40_bf16.csv

The sweep stays where it is; only the parameters of the curves are carried.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from joulecut_controller.sources import profile
from joulecut_sim.gpt3 import Curve
from joulecut_wire.command import FINE, Parser, guarded

Floats = NDArray[np.float64]
Sweep = dict[tuple[int, str], dict[int, tuple[float, float]]]

TIME_WEIGHT = 3.0  # deadlines need time thrice as well as power: 0.3 % against 1 %
FLAT = 0.01  # well above the 0.2 % by which neighbouring clocks differ for no reason
STATIC_STARTS_W = (40.0, 70.0, 100.0)  # the A40 has a poor local minimum below 80 W
NOISE = 0.02  # residuals above 2 % (the A40's jumps) count less than squared


def read(path: Path) -> Sweep:
    """A stage sweep as {(stage, instruction): {clock MHz: (time s, energy J)}}. Raises BadInput."""
    return {
        where: {option.clock_mhz: (option.time_s, option.energy_j) for option in options}
        for where, options in profile.read(path).options.items()
    }


def distinct(sweep: Sweep) -> dict[tuple[int, str], dict[int, tuple[float, float]]]:
    """The sweeps that differ: stages that carry the same rows count once."""
    kept: dict[tuple[int, str], dict[int, tuple[float, float]]] = {}
    for where in sorted(sweep):
        if sweep[where] not in kept.values():
            kept[where] = sweep[where]
    return kept


def fit(sweep: Sweep) -> dict[tuple[int, str], Curve]:
    """One curve per distinct sweep; knee, slope and static power shared by the card."""
    curves = distinct(sweep)
    clocks = {where: np.array(sorted(rows), dtype=np.float64) for where, rows in curves.items()}
    times = {w: np.array([rows[int(f)][0] for f in clocks[w]]) for w, rows in curves.items()}
    energies = {w: np.array([rows[int(f)][1] for f in clocks[w]]) for w, rows in curves.items()}

    def built(x: Floats) -> dict[tuple[int, str], Curve]:
        return {
            where: Curve(
                time_fmax_s=float(row[0]),
                clock_bound=float(row[1]),
                clock_max_mhz=int(clocks[where][-1]),
                cap_mhz=float(row[3]),
                static_power_w=float(x[2]),
                load_w_per_ghz=float(row[2]),
                knee_mhz=float(x[0]),
                volt_slope=float(x[1]),
            )
            for where, row in zip(curves, x[3:].reshape(-1, 4), strict=True)
        }

    def residuals(x: Floats) -> Floats:
        parts: list[Floats] = []
        for where, curve in built(x).items():
            time_s = np.array([curve.time_s(f) for f in clocks[where]])
            power_w = np.array([curve.power_w(f) for f in clocks[where]])
            measured_w = energies[where] / times[where]
            parts.append(TIME_WEIGHT * (time_s / times[where] - 1.0))
            parts.append(power_w / measured_w - 1.0)
        return np.concatenate(parts)

    solved = [
        least_squares(
            residuals,
            start,
            bounds=(low, high),
            x_scale=np.abs(start),
            loss="soft_l1",
            f_scale=NOISE,
            max_nfev=1000,
        )
        for low, start, high in (_search(times, energies, clocks, p0) for p0 in STATIC_STARTS_W)
    ]
    return built(min(solved, key=lambda found: found.cost).x)


def _search(
    times: Mapping[tuple[int, str], Floats],
    energies: Mapping[tuple[int, str], Floats],
    clocks: Mapping[tuple[int, str], Floats],
    static_w: float,
) -> tuple[list[float], list[float], list[float]]:
    """Lower bounds, start and upper bounds of the parameters."""
    start: list[float] = [1100.0, 0.6, static_w]
    low: list[float] = [0.0, 0.0, 0.0]
    high: list[float] = [3000.0, 10.0, 1000.0]
    for where, time_s in times.items():
        # Above the cap a higher clock brings no more speed: start where time stops falling.
        flat = clocks[where][time_s < time_s.min() * (1.0 + FLAT)]
        swing_w = energies[where][0] / time_s[0] - static_w
        start += [time_s.min(), 0.6, 1000.0 * swing_w / clocks[where][0], flat.min()]
        low += [0.0, 0.0, 0.0, clocks[where][0]]
        high += [np.inf, 1.0, np.inf, clocks[where][-1] + 1.0]
    return low, start, high


def errors(rows: Mapping[int, tuple[float, float]], curve: Curve) -> tuple[float, float]:
    """Mean relative errors of time and power over a sweep."""
    times = [abs(curve.time_s(f) / time_s - 1.0) for f, (time_s, _) in rows.items()]
    powers = [abs(curve.power_w(f) * t / e - 1.0) for f, (t, e) in rows.items()]
    return sum(times) / len(times), sum(powers) / len(powers)


def run(argv: list[str]) -> int:
    parser = Parser("benchmarks/simulator/fit.py", "Fits stage curves to a public sweep.")
    parser.add_argument("csv", type=Path)
    args = parser.parse_args(argv)
    sweep = read(args.csv)
    found: list[dict[str, Any]] = []
    for (stage, instruction), curve in fit(sweep).items():
        time_error, power_error = errors(sweep[stage, instruction], curve)
        found.append(
            {
                "stage": stage,
                "instruction": instruction,
                **asdict(curve),
                "time_error_ratio": time_error,
                "power_error_ratio": power_error,
            }
        )
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return FINE


if __name__ == "__main__":
    sys.exit(guarded("fit", lambda: run(sys.argv[1:])))
