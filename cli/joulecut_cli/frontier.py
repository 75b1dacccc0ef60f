"""`joulecut frontier JOB.yaml`: energy against iteration time, from fastest to cheapest.

Computed from the job's profile alone, with no cluster: predicted, never measured.
"""

import json
import time
from argparse import Namespace
from pathlib import Path

from joulecut_cli import figures
from joulecut_cli.granularity import not_yet, read_granularity
from joulecut_cli.jobfile import JobFile, read
from joulecut_cli.progress import Progress
from joulecut_controller.solve.problem import NoCommonClock, Solution
from joulecut_controller.solve.schedule import baseline
from joulecut_controller.solve.solver import frontier
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput

PROG = "joulecut frontier"
POINTS = 50
POINTS_MAX = 10_000  # at 20 ms each some minutes; more than any plot can show


def run(argv: list[str]) -> int:
    """Prints the frontier of one job. Raises BadInput."""
    options = _parse(argv)
    granularity = read_granularity(options.granularity, later=("edge", "all"))
    points = _points(options.points)
    job = read(options.job)
    problem = job.problem()
    began_s = time.perf_counter()
    try:
        with Progress(f"frontier of {options.job.name}") as progress:
            found = frontier(problem, points, granularity, progress=progress.advance)
    except NoCommonClock as none:
        raise BadInput(f"{job.profile.source}: frequency", str(none), "one common clock") from None
    seconds = time.perf_counter() - began_s
    if options.json:
        shown = {
            "granularity": granularity,
            "points": [
                {
                    "iteration_time_s": point.iteration_time_s,
                    "energy_j": point.energy_j,
                    "lower_bound_j": point.lower_bound_j,
                }
                for point in found
            ],
            "solve_seconds": seconds,
        }
        print(json.dumps(shown, allow_nan=False, indent=1))
    else:
        print("\n".join(_text(job, baseline(problem), found, seconds)))
    return FINE


def _parse(argv: list[str]) -> Namespace:
    parser = Parser(PROG, "Energy against iteration time, from fastest to cheapest.")
    parser.add_argument("job", type=Path, metavar="JOB.yaml")
    parser.add_argument("--points", metavar="N", help=f"at most so many (default {POINTS})")
    parser.add_argument(
        "--granularity", default="computation", help="gpu or computation (default computation)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", metavar="FILE", help="not available yet")
    options = parser.parse_args(argv)
    not_yet(options, "plot")
    return options


def _points(word: str | None) -> int:
    if word is None:
        return POINTS
    text = word.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise BadInput("--points", f'"{word}" is not a whole number', f"from 2 to {POINTS_MAX}")
    if not 2 <= int(text) <= POINTS_MAX:
        raise BadInput("--points", f'"{word}" is out of range', f"from 2 to {POINTS_MAX}")
    return int(text)


def _text(
    job: JobFile, fastest: Solution, found: tuple[Solution, ...], seconds: float
) -> list[str]:
    head = ["iteration", "slower", "energy", "change", "gap"]
    rows = [
        [
            figures.seconds(point.iteration_time_s),
            figures.percent(point.iteration_time_s / fastest.iteration_time_s - 1, signed=True),
            figures.joules(point.energy_j),
            figures.percent(point.energy_j / fastest.energy_j - 1, signed=True),
            f"{point.gap * 100:.2f} %",
        ]
        for point in found
    ]
    against = f"the gap is against a bound on {found[0].bound_granularity}"
    baseline_j = figures.joules(fastest.energy_j)
    return [
        *job.title(found[0].granularity),
        f"baseline {figures.seconds(fastest.iteration_time_s)}, {baseline_j}",
        "",
        *figures.table(head, rows, frozenset(head)),
        "",
        f"{len(found)} points in {seconds:.2f} s; {against}",
    ]
