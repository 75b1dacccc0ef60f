"""Seeded random walks over real agents and keepers on the fake driver, judged from outside.

    python tests/walks --seed 7 --steps 1250 [--site child|unit|locked|capped]

Prints the seed, and of a walk that breaks a promise what was broken, and the shrunk walk.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "fake_nvml")]

from node import SITES  # noqa: E402 - found by the line above
from shrink import shrunk  # noqa: E402
from steps import FAULTS, Step, drawn  # noqa: E402
from walk import Outcome, walk  # noqa: E402

PRINTED_MAX = 60  # steps of a walk that was not shrunk further; its file has all


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--steps", type=int, default=1250)
    parser.add_argument("--site", choices=sorted(SITES), action="append")
    parser.add_argument("--only", choices=sorted(FAULTS), action="append", help="these faults")
    parser.add_argument("--shrink-s", type=float, default=120.0, help="0: does not shrink")
    parser.add_argument("--replay", type=Path, help="steps as printed, one JSON object a line")
    parser.add_argument("--keep", action="store_true", help="leaves the node's folder")
    arguments = parser.parse_args(argv)
    failed = [site for site in arguments.site or sorted(SITES) if not _passes(site, arguments)]
    return 1 if failed else 0


def _passes(site: str, arguments: argparse.Namespace) -> bool:
    steps = _steps(site, arguments)
    print(f"site {site}, seed {arguments.seed}, {len(steps)} steps", flush=True)
    outcome = _walked(site, steps, arguments.keep)
    faults = Counter(step.name for step in steps if step.name in FAULTS)
    print(
        f"{outcome.taken_s:.0f} s, settled in {outcome.end_s:.0f} s; {outcome.accepted} commands"
        f" accepted; {faults.total()} faults of {len(faults)} kinds", flush=True,
    )  # fmt: skip
    if not outcome.failed:
        return True
    _print(outcome)
    wanted = {violation["what"] for violation in outcome.violations}
    at = min(outcome.step_of(violation) for violation in outcome.violations)

    def fails(shorter: list[Step]) -> bool:
        again = walk(site, shorter)
        shutil.rmtree(again.home, ignore_errors=True)
        return any(violation["what"] in wanted for violation in again.violations)

    if arguments.shrink_s:
        steps = shrunk(steps, at, fails, arguments.shrink_s)
    lines = [json.dumps(asdict(step)) for step in steps]
    file = Path(tempfile.gettempdir()) / f"walk-{site}-{arguments.seed}.json"
    file.write_text("\n".join(lines) + "\n")
    print(f"shrunk to {len(steps)} steps; to take it again: --site {site} --replay {file}")
    print("\n".join(lines[-PRINTED_MAX:]))
    print("what the whole walk broke:")
    _print(outcome)
    return False


def _print(outcome: Outcome) -> None:
    for violation in outcome.violations[:PRINTED_MAX]:
        print(json.dumps(violation))
    print(f"log and output of the node: {outcome.home}")


def _steps(site: str, arguments: argparse.Namespace) -> list[Step]:
    if arguments.replay:
        lines = arguments.replay.read_text().splitlines()
        return [Step(**json.loads(line)) for line in lines if line.startswith("{")]
    off = frozenset(FAULTS) - frozenset(arguments.only or FAULTS)
    return drawn(
        arguments.seed + sorted(SITES).index(site), arguments.steps, off, led=SITES[site].led
    )


def _walked(site: str, steps: list[Step], keep: bool) -> Outcome:
    outcome = walk(site, steps)
    if keep or outcome.failed:
        print(f"kept: {outcome.home}")
    else:
        shutil.rmtree(outcome.home, ignore_errors=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
