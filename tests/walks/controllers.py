"""Two real controllers that both lead, each with a store of its own, and the job they command.

As two primaries of one database would: neither knows of the other, and both command the same agent.
Each reaches it through a cable of its own. The job reports what its iterations take at the clocks
that the driver has.
"""

import csv
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from cable import Cable

from fixture import FakeNvml
from joulecut import Reporter
from joulecut_sim.profile import rows, write
from joulecut_sim.skus import find

STAGES, MICROBATCHES = 4, 16
SCALE = 0.04  # an iteration of some 0.15 s
NAMES = ("first", "second")
INTERVAL_S = 0.5
CONTACT_S = 0.05  # contacts closer than that are one
BIN = Path(sys.executable).parent


class Controllers:
    """What two controllers need; the node starts and restarts them."""

    def __init__(
        self, home: Path, driver: FakeNvml, ttl_s: float, contact: Callable[[], None]
    ) -> None:
        """`contact` is called when bytes of a controller reach the agent."""
        self._home, self._driver = home, driver
        self._contact, self._contact_s = contact, 0.0
        self._over = threading.Event()
        agent = home / "agent.sock"
        self.cables = {name: Cable(home / f"{name}.sock", agent, self._passed) for name in NAMES}
        with (home / "profile.csv").open("w") as out:
            write(rows(find("a100-sxm", ""), STAGES, scale=SCALE, noise=0.0, seed=1), out)
        self._write_policy()
        for name in NAMES:
            self._write_config(name, ttl_s)
        self._times_s = self._read_times()
        self._job = threading.Thread(target=self._train, name="job", daemon=True)
        self._job.start()

    def argv(self, name: str) -> list[str]:
        return [str(BIN / "joulecut-controller"), "--config", str(self._home / f"{name}.yaml")]

    def close(self) -> None:
        self._over.set()
        self._job.join()
        for cable in self.cables.values():
            cable.close()

    def _passed(self) -> None:
        now_s = time.monotonic()
        if now_s - self._contact_s > CONTACT_S:
            self._contact_s = now_s
            self._contact()

    def _write_policy(self) -> None:
        pipeline = {
            "schedule": "1f1b", "stages": STAGES, "microbatches": MICROBATCHES,
            "profile": "profile.csv", "blocking_power_w": 83.64,
        }  # fmt: skip
        job = {
            "name": "demo", "mode": "enforce", "match": {"gpus": [f"n1/0-{STAGES - 1}"]},
            "slo": {"max_slowdown": "5%", "rate": "hook"},
            "clocks": {"granularity": "gpu", "min_mhz": 900, "min_dwell": "1s"},
            "pipeline": pipeline,
        }  # fmt: skip
        policy = {"apiVersion": "joulecut/v1", "kind": "Policy", "jobs": [job]}
        (self._home / "policy.yaml").write_text(yaml.safe_dump(policy))

    def _write_config(self, name: str, ttl_s: float) -> None:
        config: dict[str, Any] = {
            "agents": [f"unix:{self._home}/{name}.sock"],
            "policy": "policy.yaml",
            "store": f"sqlite:///{name}.db",
            "listen": {"http": "127.0.0.1:0"},
            "interval_s": INTERVAL_S,
            "lease": {"ttl_s": ttl_s},
        }
        (self._home / f"{name}.yaml").write_text(yaml.safe_dump(config))

    # -- the job ----------------------------------------------------------------------------------

    def _read_times(self) -> dict[tuple[int, str, int], float]:
        with (self._home / "profile.csv").open() as file:
            return {
                (int(row["stage"]), row["instruction"], int(row["frequency"])): float(row["time"])
                for row in csv.DictReader(file)
            }

    def _train(self) -> None:
        """Iterations of one process on all its GPUs, until the walk is over."""
        uuids = self._driver.uuids[:STAGES]
        socket = str(self._home / "jobs.sock")
        reporters = [Reporter("demo", uuid, n, socket=socket) for n, uuid in enumerate(uuids)]
        highest_mhz = max(mhz for _, _, mhz in self._times_s)
        lowest_mhz = min(mhz for _, _, mhz in self._times_s)
        iteration = 0
        while not self._over.is_set():
            locks = self._driver.locks()[:STAGES]
            clocks = [max(lowest_mhz, lock[1]) if lock else highest_mhz for lock in locks]
            busy_s = [
                [self._times_s[stage, kind, mhz] for kind in ("forward", "backward")]
                for stage, mhz in enumerate(clocks)
            ]
            sums_s = [sum(times_s) for times_s in busy_s]
            duration_s = sum(sums_s) + (MICROBATCHES - 1) * max(sums_s)
            self._over.wait(duration_s)
            for reporter, (forward_s, backward_s) in zip(reporters, busy_s, strict=True):
                ops = {
                    "forward": (MICROBATCHES, MICROBATCHES * forward_s),
                    "backward": (MICROBATCHES, MICROBATCHES * backward_s),
                }
                reporter.iteration(iteration, duration_s, ops)
            iteration += 1
