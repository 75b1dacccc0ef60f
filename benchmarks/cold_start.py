"""How well clocks are chosen for a job that nobody profiled, after ten minutes of production.

    python benchmarks/cold_start.py [--seeds 1] [--budget 5] [--noise 1,4] [--data DIR]

From no profile at all, a virtual clock, the simulator as plant (it shares nothing with the
predictors): 10 simulated minutes or 200 iterations, whichever is later. L1 knows the rate and
the energy counters, L2 the busy times of operations too. `share` is what is saved over what
one clock per GPU could save with perfect knowledge at the same budget and jitter; `over` the
worst window above the budget in points of the default iteration time, `in row` how many windows
in a row were over. `operation` noise is the spread of every operation, `iteration` that of
whole iterations. Simulated throughout; `sweep` rows replay a public sweep (--data or
JOULECUT_DATA: the folder with `perseus/stage_profile`), `odd` is a card that no formula here
describes, `job CARD` a job drawn anew for each seed on a card without measured stages.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from joulecut_sim.odd_card import OddPlant
from joulecut_sim.plant import Noise, Plant
from joulecut_sim.replay import ReplayPlant, read
from joulecut_sim.skus import find

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE / "tests" / "worlds"))
from cards import CardPlant  # noqa: E402
from learning import Course, Outcome  # noqa: E402

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


def line(name: str, level: str, noise: str, outcomes: list[Outcome], think_s: float) -> str:
    shares = [outcome.share for outcome in outcomes]
    windows = sum(outcome.windows for outcome in outcomes)
    return (
        f"{name:15s} {level} {noise:15s} {statistics.fmean(o.possible for o in outcomes):7.1%} "
        f"{statistics.fmean(shares):7.1%} {min(shares):7.1%} "
        f"{sum(share >= 0.95 for share in shares):3d}/{len(shares):<3d}"
        f"{max(o.over_points for o in outcomes):6.2f} {max(o.over_in_row for o in outcomes):6d} "
        f"{statistics.fmean(o.settled_s for o in outcomes):9.0f} s {think_s / windows:8.3f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1, help="how many (20 for the record)")
    parser.add_argument("--budget", type=float, default=5.0, help="slowdown budget in percent")
    parser.add_argument(
        "--noise", default="1,4", help="spreads in percent (0.5,1,2,4 for the record)"
    )
    parser.add_argument("--kind", default="operation", choices=("operation", "iteration"))
    parser.add_argument("--plants", default="", help="only plants whose name begins so")
    parser.add_argument("--levels", default="L1,L2")
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=24)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("JOULECUT_DATA", DATA)))
    args = parser.parse_args()
    print(
        f"# budget {args.budget:g} %, {args.stages} stages x {args.microbatches} microbatches, "
        f"{args.seeds} seeds, simulated"
    )
    print(
        "plant           on noise           possible  share   worst  >=95 %   over in row   settled"
        "    a window"
    )
    for name, make, blocking_w in plants(args.stages, args.microbatches, args.data):
        if not name.startswith(args.plants):
            continue
        for level in args.levels.split(","):
            for percent in args.noise.split(","):
                spread = float(percent) / 100.0
                whole = args.kind == "iteration"
                outcomes, began_s = [], time.perf_counter()
                for seed in range(1, args.seeds + 1):
                    course = Course(
                        make,
                        jitter=0.005 if whole else spread,
                        seed=seed,
                        budget=args.budget / 100.0,
                        detailed=level == "L2",
                        wobble=spread if whole else 0.0,
                        blocking_power_w=blocking_w,
                    )
                    course.run()
                    outcomes.append(course.outcome())
                took_s = time.perf_counter() - began_s
                print(line(name, level, f"{percent} % {args.kind}", outcomes, took_s), flush=True)


if __name__ == "__main__":
    main()
