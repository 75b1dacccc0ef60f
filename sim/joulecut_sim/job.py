"""A training job on simulated GPUs: a process of its own, independent of Joulecut.

It runs iteration after iteration at the current clocks of its GPUs, hands the work to the state
files, and reports it to each node's agent by datagrams, as a real job does. It keeps a virtual
schedule: an iteration ends at its simulated time, however busy the machine is. A change of clock
or power limit counts from the next iteration on.

    python -m joulecut_sim.job --config job.yaml
"""

import contextlib
import json
import signal
import socket
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from joulecut_sim.card import StateFile, now_s
from joulecut_sim.gpt3 import INSTRUCTIONS
from joulecut_sim.jobfile import JobFile, read
from joulecut_sim.physics import Work, power_limit_w
from joulecut_sim.plant import Iteration, Plant
from joulecut_sim.results import Record, Results
from joulecut_wire.command import FINE, Parser, guarded
from joulecut_wire.errors import BadInput, Unavailable

LEAD_S = 0.1  # work is handed in this early, so that a busy machine leaves no hole in it
LATE_S_MAX = 1.5  # later than this (a suspended machine), the lost time is really lost
NAP_S = 0.2  # the longest a stop signal has to wait
MEMORY_USED_BYTES = 60 << 30  # assumed: a full 80 GB card, less what frameworks leave


@dataclass(frozen=True, slots=True)
class Ended:
    """An iteration that was handed in, to be reported at its end."""

    record: Record
    iteration: Iteration


class Job:
    """The job's loop: read the clocks, work, report."""

    def __init__(self, job: JobFile) -> None:
        self._job = job
        opened = {path: StateFile.open(path) for path in sorted({gpu.state for gpu in job.gpus})}
        self._states = tuple(opened[gpu.state] for gpu in job.gpus)
        for state, gpu in zip(self._states, job.gpus, strict=True):
            if gpu.index >= state.cards:
                raise BadInput(str(gpu.state), f"no GPU {gpu.index}", f"0 to {state.cards - 1}")
        self._plant = Plant(
            [state.sku for state in self._states],
            job.microbatches,
            schedule=job.schedule,
            time_scale=job.time_scale,
            noise=job.noise,
            seed=job.seed,
        )
        self._results = Results(job.results)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._stopping = False

    @property
    def name(self) -> str:
        return self._job.job

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def run(self) -> None:
        """Until stopped, or all iterations of the file are done. Raises Unavailable."""
        self._hold_memory(MEMORY_USED_BYTES)
        begin_s = now_s() + 2.0 * LEAD_S
        ended: Ended | None = None
        number = 0
        while not self._stopping and number != self._job.iterations:
            self._sleep_until(begin_s - LEAD_S)
            if now_s() > begin_s + LATE_S_MAX:
                begin_s = now_s()
            begun = self._begin(number, begin_s)
            self._sleep_until(begin_s)
            if ended is not None:
                self._report(ended)
            ended = begun
            begin_s += begun.record.duration_s
            number += 1
        self._sleep_until(begin_s)
        if ended is not None and not self._stopping:
            self._report(ended)
        self._hold_memory(0)
        self._results.close()

    def _begin(self, number: int, begin_s: float) -> Ended:
        clocks = self._clocks_mhz(begin_s)
        peer_s = self._peer_s()
        limits_w = [
            power_limit_w(state.sku, state.card(gpu.index))
            for state, gpu in zip(self._states, self._job.gpus, strict=True)
        ]
        done = self._plant.iterate(clocks, peer_s, limits_w)
        works: dict[StateFile, dict[int, Work]] = defaultdict(dict)
        for state, gpu, stage in zip(self._states, self._job.gpus, done.stages, strict=True):
            works[state][gpu.index] = Work(
                begin_s, begin_s + done.duration_s, stage.energy_j, stage.clock_cap_mhz
            )
        counters = {state: state.deposit(mine) for state, mine in works.items()}
        record = Record(
            iteration=number,
            begin_s=begin_s,
            duration_s=done.duration_s,
            own_s=done.own_s,
            energy_j=done.energy_j,
            clocks_mhz=clocks,
            counters_j=tuple(
                counters[state][gpu.index]
                for state, gpu in zip(self._states, self._job.gpus, strict=True)
            ),
            peer_s=peer_s,
        )
        return Ended(record, done)

    def _clocks_mhz(self, when_s: float) -> tuple[int, ...]:
        clocks = []
        for state, gpu in zip(self._states, self._job.gpus, strict=True):
            if state.card(gpu.index).lost:
                raise Unavailable(f"{self._job.job} died: GPU {state.uuid(gpu.index)} was lost")
            _, high = state.lock_mhz(gpu.index, when_s)
            clocks.append(high or state.sku.clock_max_mhz)
        return tuple(clocks)

    def _peer_s(self) -> float:
        """How long the slowest sibling takes now, 0 while all keep up."""
        if self._job.control is None:
            return 0.0
        try:
            control = json.loads(self._job.control.read_bytes())
            return max(0.0, float(control.get("peer_iteration_time_s") or 0.0))
        except (OSError, ValueError, TypeError, AttributeError):
            return 0.0  # absent, or half written

    def _report(self, ended: Ended) -> None:
        for stage, (state, gpu) in enumerate(zip(self._states, self._job.gpus, strict=True)):
            if gpu.socket is None:
                continue
            report: dict[str, Any] = {
                "v": 1,
                "job": self._job.job,
                "uuid": state.uuid(gpu.index),
                "stage": stage,
                "iteration": ended.record.iteration,
                "duration_s": ended.record.duration_s,
                "ops": [
                    {
                        "kind": kind,
                        "count": self._job.microbatches,
                        "busy_s": ended.iteration.stages[stage].busy_s[kind],
                    }
                    for kind in INSTRUCTIONS
                ],
            }
            if ended.record.peer_s > 0.0:
                report["peer_iteration_time_s"] = ended.record.peer_s
            # No agent, or one that is busy: a training job never waits for its observers.
            with contextlib.suppress(OSError):
                self._socket.sendto(json.dumps(report).encode(), str(gpu.socket))
        self._results.write(ended.record)

    def _hold_memory(self, used_bytes: int) -> None:
        for state, gpu in zip(self._states, self._job.gpus, strict=True):
            state.set_memory(gpu.index, used_bytes)

    def _sleep_until(self, when_s: float) -> None:
        while not self._stopping and (left_s := when_s - now_s()) > 0.0:
            time.sleep(min(left_s, NAP_S))


def run(argv: list[str]) -> int:
    parser = Parser("python -m joulecut_sim.job", "Runs a simulated training job.")
    parser.add_argument("--config", type=Path, required=True, help="job file (YAML)")
    args = parser.parse_args(argv)
    job = Job(read(args.config))
    signal.signal(signal.SIGTERM, job.stop)
    signal.signal(signal.SIGINT, job.stop)
    sys.stdout.write(f"joulecut-sim-job ready job={job.name}\n")
    sys.stdout.flush()
    job.run()
    return FINE


if __name__ == "__main__":
    sys.exit(guarded("joulecut_sim.job", lambda: run(sys.argv[1:])))
