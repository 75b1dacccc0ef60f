"""How well clocks are chosen for a job that nobody profiled, after ten minutes of production.

    python benchmarks/cold_start.py [--seeds 1] [--budget 5] [--noise 1,4]
        [--log FILE] [--data DIR]

From no profile at all, a virtual clock, the simulator as plant (it shares nothing with the
predictors): 10 simulated minutes or 200 iterations, whichever is later. L1 knows the rate and
the energy counters, L2 the busy times of operations too. `share` is what is saved over what
one clock per GPU could save with perfect knowledge at the same budget and jitter; `over` the
worst window above the budget in points of the default iteration time, `in row` how many windows
in a row were over. `operation` noise is the spread of every operation, `iteration` that of
whole iterations. Simulated throughout; `sweep` rows replay a public sweep (--data or
JOULECUT_DATA: the folder with `perseus/stage_profile`), `odd` is a card that no formula here
describes, `job CARD` a job drawn anew for each seed on a card without measured stages, `cluster`
a job and a card drawn anew for each seed, with its own shape, jitter and budget (2 x 8 to 8 x 16,
0.5 to 4 %, 2 to 8 %: `drawn.case`), so one line a seed, whatever else is asked.

`90 % after` is when the first window began that saved 90 % of what is possible, and over how many
runs.

With --log every run is a line of JSON there, the first seed of all cells first, and what stands
there is not run again: a record may be made in pieces, and cut short.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from joulecut_sim.plant import Noise, Plant
from joulecut_sim.skus import find

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE / "tests" / "worlds"))
from cards import CardPlant  # noqa: E402
from drawn import DrawnPlant, case  # noqa: E402
from learning import Course, Outcome  # noqa: E402
from plant_variants import OddPlant, ReplayPlant, read  # noqa: E402

DATA = HERE.parent / "shared" / "data"
SWEEPS = {"a100-sxm": "gpt3-175b+a100_sxm_bf16.csv", "a40": "gpt3-175b+a40_bf16.csv"}
OTHERS = ("v100-pcie", "a30", "h100-sxm", "h200", "b200")
SCALE = {"a100-sxm": 0.045, "a40": 0.018, "odd": 0.045}  # an iteration of 0.2 s on either

Make = Callable[[float, int], Plant]


def plants(stages: int, microbatches: int, data: Path) -> Iterator[tuple[str, Make, float | None]]:
    """(name, plant by jitter and seed, blocking power or None for the card's)."""
    for card in SWEEPS:

        def simulated(jitter: float, seed: int, card: str = card) -> Plant:
            skus = [find(card, "card")] * stages
            noise = Noise(operation=jitter)
            return Plant(skus, microbatches, time_scale=SCALE[card], noise=noise, seed=seed)

        yield card, simulated, None
    for card, name in SWEEPS.items():
        path = data / "perseus" / "stage_profile" / name
        if not path.exists():
            print(f"# sweep {card}: left out, {path} is not there")
            continue
        sweep = read(path)

        def replayed(jitter: float, seed: int, card: str = card, sweep: object = sweep) -> Plant:
            return ReplayPlant(
                find(card, "card"),
                sweep,  # type: ignore[arg-type]
                stages,
                microbatches,
                time_scale=SCALE[card],
                noise=Noise(operation=jitter),
                seed=seed,
            )

        yield f"sweep {card}", replayed, None

    def odd(jitter: float, seed: int) -> Plant:
        noise = Noise(operation=jitter)
        return OddPlant(stages, microbatches, time_scale=SCALE["odd"], noise=noise, seed=seed)

    yield "odd", odd, None
    for card in OTHERS:

        def drawn(jitter: float, seed: int, card: str = card) -> Plant:
            return CardPlant(card, stages, microbatches, noise=Noise(operation=jitter), seed=seed)

        yield f"job {card}", drawn, None


@dataclass(frozen=True, slots=True)
class Cell:
    """A line of the table: a plant, what it tells, and how it noisy."""

    plant: str
    level: str
    percent: str
    kind: str
    budget: float
    shape: str


def cluster(jitter: float, seed: int) -> Plant:
    drawn = case(seed)
    noise = Noise(operation=jitter)
    return DrawnPlant(drawn.stages, drawn.microbatches, noise=noise, seed=seed)


def clusters(levels: list[str], seeds: range) -> Iterator[tuple[Cell, int]]:
    """A line for every level and seed."""
    for seed in seeds:
        drawn = case(seed)
        shape, percent = f"{drawn.stages}x{drawn.microbatches}", f"{drawn.jitter_percent:g}"
        for level in levels:
            name = f"cluster {seed}"
            yield Cell(name, level, percent, "operation", drawn.budget_percent, shape), seed


@dataclass(frozen=True, slots=True)
class Run:
    """One seed of a cell. `think_s` is what simulation, advice and verdict took together."""

    outcome: Outcome
    think_s: float


class Log:
    """Runs made so far, by cell and seed; kept in a file where one is named."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.runs: dict[tuple[Cell, int], Run] = {}
        for text in path.read_text().splitlines() if path is not None and path.exists() else ():
            held = json.loads(text)
            self.runs[Cell(**held["cell"]), held["seed"]] = Run(
                Outcome(**held["outcome"]), held["think_s"]
            )

    def add(self, cell: Cell, seed: int, run: Run) -> None:
        self.runs[cell, seed] = run
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"cell": asdict(cell), "seed": seed, **asdict(run)}) + "\n")


def line(cell: Cell, runs: list[Run]) -> str:
    outcomes = [run.outcome for run in runs]
    shares = [outcome.share for outcome in outcomes]
    windows = sum(outcome.windows for outcome in outcomes)
    think_s = sum(run.think_s for run in runs)
    noise = f"{cell.percent} % {cell.kind}"
    reached = [outcome.reached_s for outcome in outcomes if math.isfinite(outcome.reached_s)]
    after = f"{statistics.fmean(reached):.0f} s {len(reached)}/{len(runs)}" if reached else "never"
    return (
        f"{cell.plant:15s} {cell.level} {cell.shape:5s} {cell.budget:4g} % {noise:15s} "
        f"{statistics.fmean(o.possible for o in outcomes):7.1%} "
        f"{statistics.fmean(shares):7.1%} {min(shares):7.1%} "
        f"{sum(share >= 0.95 for share in shares):3d}/{len(shares):<3d}"
        f"{max(o.over_points for o in outcomes):6.2f} {max(o.over_in_row for o in outcomes):6d} "
        f"{after:>12s} "
        f"{statistics.fmean(o.settled_s for o in outcomes):9.0f} s {think_s / windows:8.3f} s"
    )


def run(cell: Cell, make: Make, blocking_w: float | None, seed: int) -> Run:
    spread, whole = float(cell.percent) / 100.0, cell.kind == "iteration"
    course = Course(
        make,
        jitter=0.005 if whole else spread,
        seed=seed,
        budget=cell.budget / 100.0,
        detailed=cell.level == "L2",
        wobble=spread if whole else 0.0,
        blocking_power_w=blocking_w,
    )
    began_s = time.perf_counter()
    course.run()
    return Run(course.outcome(), time.perf_counter() - began_s)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1, help="how many (20 for the record)")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--budget", type=float, default=5.0, help="slowdown budget in percent")
    parser.add_argument(
        "--noise", default="1,4", help="spreads in percent (0.5,1,2,4 for the record)"
    )
    parser.add_argument("--kind", default="operation", choices=("operation", "iteration"))
    parser.add_argument("--plants", default="", help="only plants whose name begins so")
    parser.add_argument("--levels", default="L1,L2")
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=24)
    parser.add_argument("--log", type=Path, help="runs are kept here, and not made again")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("JOULECUT_DATA", DATA)))
    return parser.parse_args()


def main() -> None:
    args = parsed()
    seeds, levels = range(args.first_seed, args.first_seed + args.seeds), args.levels.split(",")
    asked: dict[Cell, tuple[Make, float | None, list[int]]] = {}
    for name, make, blocking_w in plants(args.stages, args.microbatches, args.data):
        if not name.startswith(args.plants):
            continue
        for level in levels:
            for percent in args.noise.split(","):
                shape = f"{args.stages}x{args.microbatches}"
                cell = Cell(name, level, percent, args.kind, args.budget, shape)
                asked[cell] = (make, blocking_w, list(seeds))
    if "cluster".startswith(args.plants):
        for cell, seed in clusters(levels, seeds):
            asked[cell] = (cluster, None, [seed])
    log = Log(args.log)
    for seed in seeds:
        for cell, (make, blocking_w, its_seeds) in asked.items():
            if seed in its_seeds and (cell, seed) not in log.runs:
                log.add(cell, seed, run(cell, make, blocking_w, seed))
    print(f"# seeds {seeds[0]} to {seeds[-1]}, simulated")
    print(
        "plant           on shape budget noise           possible   share   worst  >=95 %   "
        "over in row   90 % after     settled  a window"
    )
    for cell, (_, _, its_seeds) in asked.items():
        print(line(cell, [log.runs[cell, seed] for seed in its_seeds]))


if __name__ == "__main__":
    main()
