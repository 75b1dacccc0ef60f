"""Writes a stage profile of simulated GPUs, as a profiling run of a real job would.

    python -m joulecut_sim.profile --card a100-sxm --stages 8 --out simulated.csv

The columns are those of the public sweeps: stage, instruction, frequency (MHz), time (s),
energy (J). Simulated, hence to be named so: nothing inside the file says it.
"""

import csv
import random
import sys
from pathlib import Path
from typing import TextIO

from joulecut_sim.gpt3 import CLOCK_SWEPT_MIN_MHZ, INSTRUCTIONS, Instruction, curve
from joulecut_sim.skus import CARDS, Sku, find
from joulecut_wire.command import FINE, Parser, guarded
from joulecut_wire.errors import BadInput
from joulecut_wire.flags import number, whole

STAGES_MAX = 256  # the reader's limit
EVERY_MAX = 16  # fewer clocks than that leaves are no sweep
SCALE_MIN, SCALE_MAX = 1e-6, 1e6  # times from 50 ns to half a day, in joules that have a number
# Neighbouring clocks of the public sweeps differ by this much for no reason.
NOISE_TIME = 0.002
NOISE_POWER = 0.005

Row = tuple[int, Instruction, int, float, float]


def rows(sku: Sku, stages: int, *, scale: float, noise: float, seed: int) -> list[Row]:
    """One row per stage, instruction and swept clock, highest clock first.

    `scale` multiplies times (and so energies); `noise` the measurement noise of the public
    sweeps, 0 for none.
    """
    dice = random.Random(f"profile {seed}")
    swept = [clock for clock in reversed(sku.clocks_mhz) if clock >= CLOCK_SWEPT_MIN_MHZ]
    made: list[Row] = []
    for stage in range(stages):
        for clock in swept:
            for instruction in INSTRUCTIONS:
                shape = curve(sku.name, stage, stages, instruction)
                time_s = shape.time_s(clock) * scale * dice.gauss(1.0, noise * NOISE_TIME)
                power_w = shape.power_w(clock) * dice.gauss(1.0, noise * NOISE_POWER)
                made.append((stage, instruction, clock, time_s, time_s * power_w))
    return made


def write(made: list[Row], out: TextIO) -> None:
    table = csv.writer(out, lineterminator="\n")
    table.writerow(("stage", "instruction", "frequency", "time", "energy"))
    # Seven digits are far below the noise of a sweep.
    table.writerows((*key, f"{time_s:.7g}", f"{energy_j:.7g}") for *key, time_s, energy_j in made)


def run(argv: list[str]) -> int:
    parser = Parser("python -m joulecut_sim.profile", "Writes a simulated stage profile.")
    parser.add_argument("--card", default="a100-sxm", help=", ".join(CARDS))
    parser.add_argument("--stages", type=whole(1, STAGES_MAX), default=8)
    parser.add_argument("--out", type=Path, help="file to write; standard output without it")
    scale = number(SCALE_MIN, SCALE_MAX)
    parser.add_argument("--scale", type=scale, default=1.0, help="factor on all times")
    every = whole(1, EVERY_MAX)
    parser.add_argument(
        "--every", type=every, default=1, help="of so many clocks one, the highest too"
    )
    noise = number(0.0, 20.0)
    parser.add_argument("--noise", type=noise, default=0.0, help="1: as rough as a real sweep")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    sku = find(args.card, "--card")
    made = rows(sku, args.stages, scale=args.scale, noise=args.noise, seed=args.seed)
    kept = set(sku.clocks_mhz[:: -args.every])
    made = [row for row in made if row[2] in kept]
    if args.out is None:
        write(made, sys.stdout)
        return FINE
    try:
        with args.out.open("w", newline="") as file:
            write(made, file)
    except OSError as error:
        raise BadInput("--out", f"{args.out}: {error.strerror}", "a writable file") from None
    return FINE


if __name__ == "__main__":
    sys.exit(guarded("joulecut_sim.profile", lambda: run(sys.argv[1:])))
