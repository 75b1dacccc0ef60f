"""One walk: takes the steps of a seed on a node, and has the checker judge the driver's log."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checker import TRACEBACK
from node import SITES, Node
from steps import Step, Steps

CHECKER = Path(__file__).with_name("checker.py")


@dataclass(frozen=True)
class Outcome:
    """What became of a walk. `began_s`: when each step began, of the monotonic clock."""

    violations: list[dict[str, Any]]
    began_s: list[float]
    accepted: int
    home: Path
    taken_s: float
    end_s: float
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return bool(self.violations)

    def step_of(self, violation: dict[str, Any]) -> int:
        """How many steps had begun when it happened; all of them where it has no time."""
        at_s = float(violation["at_s"])
        before = sum(began_s <= at_s for began_s in self.began_s)
        return before or len(self.began_s)


def walk(site: str, steps: list[Step]) -> Outcome:
    """Takes the steps, lets the node come to rest, and judges. Leaves the folder of the node."""
    begun_s = time.monotonic()
    began_s = []
    with Node(SITES[site]) as node:
        taken = Steps(node)
        try:
            for step in steps:
                began_s.append(time.monotonic())
                node.log.add(step=str(step))
                taken.take(step)
                if node.failure is not None:
                    raise node.failure
            taken_s = time.monotonic() - begun_s
            node.settle()
        finally:
            taken.close()
        end_s = time.monotonic() - begun_s - taken_s
        contract = node.home / "contract.json"
        contract.write_text(json.dumps(node.contract()))
    violations = judged(node.log.path, contract)
    if TRACEBACK.search(node.output):
        violations.append({"at_s": "nan", "what": "a traceback in the output", "gpu": -1})
    return Outcome(violations, began_s, taken.accepted, node.home, taken_s, end_s)


def judged(log: Path, contract: Path) -> list[dict[str, Any]]:
    """By the checker, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-I", str(CHECKER), str(log), str(contract)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in {0, 1} or done.stderr:
        raise AssertionError(f"the checker failed: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]
