"""Whether the promise holds for jobs that change: the real controller, a virtual clock.

    python benchmarks/closed_loop.py [--seeds 1] [--budget 5] [--cards a100-sxm,a40] [--kinds ...]

A job with a profile, at L2 or at L1 runs until its clocks are settled; then its iterations take
`change` percent longer (or shorter), at once or over five minutes (`creep`), or a fifth of them for
a minute (`phase`). Slowdown is against the same iterations at default clocks as the job is *then*.
`over` is the worst window (25 iterations) above the budget in points, `in row` how many windows in
a row were more than a point above it, `at default` the share of time at default clocks after the
change, `back` the saving at the end over that before. Simulated throughout.

    python benchmarks/closed_loop.py --long [--seeds 1] [--stages 4] [--sweeps DIR]

Jobs without a profile whose iterations take 7 s, with AR(1) noise of 2 %, drift, hiccups of 1 to
5 s and GPUs that throttle. `share` is the true saving after so many iterations over what one clock
per GPU could save, `90 % at` the iteration from which 90 % were saved for good, `over` the worst
setting above the budget in points, `in row` how many settings in a row were over. DIR has the
measured stage tables of a public sweep, which replace the simulator's curves.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

from joulecut_sim.plant import Noise

HERE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE / "tests" / "worlds")]
from changing import Change, ChangingWorld, longest_above  # noqa: E402
from long_iterations import Disturbance, LongIterationsWorld  # noqa: E402
from plant_variants import read  # noqa: E402
from worlds import Controller  # noqa: E402

from joulecut_controller.policy.policy import Slo  # noqa: E402
from joulecut_controller.store.database import open_store  # noqa: E402

SETTLED_S, AFTER_S, CREEP_S, PHASE_S = 300.0, 420.0, 300.0, 60.0
SCALES = {"a100-sxm": 0.045, "a40": 0.018}  # an iteration of 0.2 s on either
LONG_ITERATIONS = 250
SWEEPS = {"a100-sxm": "gpt3-175b+a100_sxm_bf16.csv", "a40": "gpt3-175b+a40_bf16.csv"}
KINDS = ("profile", "L2", "L1")
CHANGES = ("none", "-20", "-10", "-5", "+5", "+10", "+20", "creep-10", "creep+10", "phase")


def changes_of(name: str) -> tuple[Change, ...]:
    if name == "none":
        return ()
    if name == "phase":
        there, back = Change(SETTLED_S, 0.8), Change(SETTLED_S + PHASE_S, 1.25)
        return there, back
    if name.startswith("creep"):
        return (Change(SETTLED_S, 1.0 + float(name[5:]) / 100.0, CREEP_S),)
    return (Change(SETTLED_S, 1.0 + float(name) / 100.0),)


def run(card: str, kind: str, change: str, seed: int, budget: float, noise: float) -> str:
    world = ChangingWorld(card=card, seed=seed, noise=Noise(operation=noise),
                          scale=SCALES[card])  # fmt: skip
    world.changes, world.detailed = changes_of(change), kind != "L1"
    policy = (
        world.policy("enforce", slo=Slo(max_slowdown=budget))
        if kind == "profile"
        else world.unprofiled(budget=budget)
    )
    began_s = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/controller.db")
        controller = Controller(world, store, policy)
        controller.run(int(SETTLED_S))
        before = world.saved()
        controller.run(int(AFTER_S))
        store.close()
    slow = world.slowdowns(since_s=SETTLED_S)
    return (
        f"{card:9s} {kind:8s} {change:9s} {seed:4d} {100 * (max(slow) - budget):+7.2f} "
        f"{longest_above(slow, budget + 0.01):6d} {100 * (statistics.fmean(slow[-8:]) - budget):+7.2f} "  # noqa: E501
        f"{world.at_default_ratio(SETTLED_S):9.1%} {before:7.1%} {world.saved():7.1%} "
        f"{time.process_time() - began_s:6.1f} s"
    )


def long_iterations(
    card: str, *, detailed: bool, stages: int, seed: int, budget: float, sweeps: Path | None
) -> str:
    sweep = None if sweeps is None else read(sweeps / SWEEPS[card])
    world = LongIterationsWorld(Disturbance(), sweep=sweep, card=card, stages=stages, seed=seed)
    world.detailed = detailed
    began_s = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/controller.db")
        controller = Controller(world, store, world.unprofiled(budget=budget))
        while len(world.asked) < LONG_ITERATIONS:
            controller.run(5)
        store.close()
    spent_s, verdict = time.process_time() - began_s, world.verdict(budget)
    shares = " ".join(f"{verdict.share(at):6.0%}" for at in (60, 100, 150, LONG_ITERATIONS))
    return (
        f"{card:9s} {'L2' if detailed else 'L1'} {stages:3d} {seed:4d} {verdict.possible:8.1%} "
        f"{shares} {verdict.reached or 'never':>6} {100 * max(verdict.over):+6.2f} "
        f"{verdict.over_in_row:4d} {spent_s:5.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--budget", type=float, default=5.0, help="slowdown budget in percent")
    parser.add_argument("--noise", type=float, default=1.0, help="of an operation, in percent")
    parser.add_argument("--cards", default=",".join(SCALES))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--changes", default=",".join(CHANGES))
    parser.add_argument("--long", action="store_true", help="long iterations, no profile")
    parser.add_argument("--stages", type=int, default=4, help="with --long")
    parser.add_argument("--sweeps", type=Path, help="with --long")
    args = parser.parse_args()
    if args.long:
        print(
            "card    on stages seed possible  at 60    100    150    250 90 % at   over  row   CPU"
        )
        for card, kind in itertools.product(args.cards.split(","), args.kinds.split(",")):
            for seed in range(1, args.seeds + 1) if kind != "profile" else ():
                print(
                    long_iterations(
                        card,
                        detailed=kind == "L2",
                        stages=args.stages,
                        seed=seed,
                        budget=args.budget / 100.0,
                        sweeps=args.sweeps,
                    ),
                    flush=True,
                )
        return
    print("card      known as change    seed    over in row   end  default  before   after   CPU")
    for card in args.cards.split(","):
        for kind in args.kinds.split(","):
            for change in args.changes.split(","):
                for seed in range(1, args.seeds + 1):
                    budget, noise = args.budget / 100.0, args.noise / 100.0
                    print(run(card, kind, change, seed, budget, noise), flush=True)


if __name__ == "__main__":
    main()
