"""A training job on simulated GPUs: a process of its own, independent of Joulecut.

It runs iteration after iteration at the current clocks of its GPUs, hands the work to the state
files, and reports it to each node's agent by datagrams, as a real job does. It keeps a virtual
schedule: an iteration ends at its simulated time, however busy the machine is. A change of clock
counts at once, also for the rest of an operation; one of a power limit from the next iteration on.

    python -m joulecut_sim.job --config job.yaml
"""

import contextlib
import json
import math
import random
import signal
import socket
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from joulecut_sim.card import StateFile, now_s
from joulecut_sim.execution import Execution
from joulecut_sim.jobfile import JobFile, read
from joulecut_sim.physics import Card, Work, lock_at, power_limit_w
from joulecut_sim.plant import Iteration, Plant
from joulecut_sim.results import Record, Results
from joulecut_wire.command import FINE, Parser, guarded
from joulecut_wire.errors import BadInput, Unavailable

BEGIN_S = 0.2  # a job needs some time before its first iteration
SLICE_S = 0.05  # between two looks at the clocks: work is handed in that late
MARK_SLICE_S = 0.005  # where operations are marked: as late as a mark is
LAST_SLICE_S = 0.002  # with the last operations: an iteration is reported when it ends
ROUNDING_S = 1e-9
LATE_S_MAX = 1.5  # later than this (a suspended machine), the lost time is really lost
NAP_S = 0.2  # the longest a stop signal has to wait
MEMORY_USED_BYTES = 60 << 30  # assumed: a full 80 GB card, less what frameworks leave


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
            [state.sku for state in self._states], job.microbatches, schedule=job.schedule,
            time_scale=job.time_scale, noise=job.noise, seed=job.seed,
        )  # fmt: skip
        self._results = Results(job.results)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._outbox: list[tuple[float, bytes, str]] = []  # (when to send, datagram, socket)
        self._dice = random.Random(f"reports {job.seed}")
        self._stopping = False

    @property
    def name(self) -> str:
        return self._job.job

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def run(self) -> None:
        """Until stopped, or all iterations of the file are done. Raises Unavailable."""
        self._hold_memory(MEMORY_USED_BYTES)
        begin_s = now_s() + BEGIN_S
        number = 0
        while number != self._job.iterations:
            if now_s() > begin_s + LATE_S_MAX:
                begin_s = now_s()
            ended = self._iterate(number, begin_s)
            if ended is None:
                break
            self._report(*ended)
            begin_s += ended[0].duration_s
            number += 1
        self._sleep_until(max([when_s for when_s, _, _ in self._outbox], default=0.0))
        self._hold_memory(0)
        self._results.close()

    def _iterate(self, number: int, begin_s: float) -> tuple[Record, Iteration] | None:
        """One iteration, in slices: each at the clocks that were in effect. None if stopped."""
        cards = self._cards()
        clocks_mhz = tuple(
            round(self._clock(cards, stage, begin_s)[0]) for stage in range(len(cards))
        )
        limits_w = tuple(map(power_limit_w, [state.sku for state in self._states], cards))
        peer_s = self._peer_s()
        execution = Execution(self._plant, peer_s, limits_w, partial(self._mark, number))
        slice_s_max = MARK_SLICE_S if self._job.reports.marks else SLICE_S
        at_s, spent_j = 0.0, execution.energy_j
        counters_j: tuple[float, ...] = ()
        while at_s < execution.duration_s:
            last = execution.operations_left <= self._plant.stages
            self._sleep_until(begin_s + at_s + (LAST_SLICE_S if last else slice_s_max))
            if self._stopping:
                return None
            cards, until_s = self._cards(), now_s() - begin_s
            execution.advance(until_s, partial(self._clock_of, cards, begin_s))
            until_s = min(until_s, execution.duration_s)
            if until_s - at_s < ROUNDING_S and math.isinf(execution.duration_s):
                continue
            slice_j = [now - then for now, then in zip(execution.energy_j, spent_j, strict=True)]
            slice_s = (begin_s + at_s, begin_s + until_s)
            found_j = self._hand_in(execution, clocks_mhz, slice_s, slice_j)
            counters_j = counters_j or found_j
            at_s, spent_j = until_s, execution.energy_j
        done = execution.iteration()
        record = Record(
            number, begin_s, done.duration_s, done.own_s, done.energy_j, clocks_mhz, counters_j,
            peer_s,
        )  # fmt: skip
        return record, done

    def _hand_in(
        self, execution: Execution, clocks_mhz: tuple[int, ...], slice_s: tuple[float, float],
        energies_j: list[float],
    ) -> tuple[float, ...]:  # fmt: skip
        """A slice of work of every GPU; their counters at its begin."""
        works: dict[StateFile, dict[int, Work]] = defaultdict(dict)
        for stage, (state, gpu) in enumerate(zip(self._states, self._job.gpus, strict=True)):
            cap_mhz = execution.capped_mhz(stage, clocks_mhz[stage])
            works[state][gpu.index] = Work(*slice_s, energies_j[stage], cap_mhz)
        counters = {state: state.deposit(mine) for state, mine in works.items()}
        return tuple(
            counters[state][gpu.index]
            for state, gpu in zip(self._states, self._job.gpus, strict=True)
        )

    def _cards(self) -> tuple[Card, ...]:
        """Raises Unavailable if one is lost."""
        cards = []
        for state, gpu in zip(self._states, self._job.gpus, strict=True):
            card = state.card(gpu.index)
            if card.lost:
                raise Unavailable(f"{self._job.job} died: GPU {state.uuid(gpu.index)} was lost")
            cards.append(card)
        return tuple(cards)

    def _clock_of(
        self, cards: tuple[Card, ...], begin_s: float, stage: int, at_s: float
    ) -> tuple[float, float]:
        """The clock of a stage in an iteration, and until when it stays."""
        clock_mhz, until_s = self._clock(cards, stage, begin_s + at_s)
        return clock_mhz, until_s - begin_s

    def _clock(self, cards: tuple[Card, ...], stage: int, when_s: float) -> tuple[float, float]:
        reached_s = when_s + ROUNDING_S
        _, high = lock_at(cards[stage], reached_s)
        changes_s = [change.effective_s for change in cards[stage].changes]
        next_s = min([at_s for at_s in changes_s if at_s > reached_s], default=math.inf)
        return high or self._states[stage].sku.clock_max_mhz, next_s

    def _peer_s(self) -> float:
        """How long the slowest sibling takes now, 0 while all keep up."""
        if self._job.control is None:
            return 0.0
        try:
            control = json.loads(self._job.control.read_bytes())
            return max(0.0, float(control.get("peer_iteration_time_s") or 0.0))
        except (OSError, ValueError, TypeError, AttributeError):
            return 0.0  # absent, or half written

    def _report(self, record: Record, done: Iteration) -> None:
        """Reports an iteration that has ended, as late as the file says; some are lost."""
        late_s = abs(self._dice.gauss(0.0, self._job.reports.jitter_s))
        sent_s = record.begin_s + record.duration_s + late_s
        for stage, (state, gpu) in enumerate(zip(self._states, self._job.gpus, strict=True)):
            if gpu.socket is None:
                continue
            report: dict[str, Any] = {
                "v": 1,
                "job": self._job.job,
                "uuid": state.uuid(gpu.index),
                "stage": stage,
                "iteration": record.iteration,
                "duration_s": record.duration_s,
                "ops": [
                    {"kind": kind, "count": self._job.microbatches, "busy_s": busy_s}
                    for kind, busy_s in done.stages[stage].busy_s.items()
                ],
            }
            if record.peer_s > 0.0:
                report["peer_iteration_time_s"] = record.peer_s
            if self._dice.random() >= self._job.reports.lost:
                self._outbox.append((sent_s, json.dumps(report).encode(), str(gpu.socket)))
        self._outbox.sort(key=lambda one: one[0])
        self._send_due()
        self._results.write(record)

    def _mark(self, iteration: int, stage: int, step: int, _: float) -> None:
        """Marks an operation that begins, if the file says so."""
        gpu, work = self._job.gpus[stage], self._plant.steps[step]
        if gpu.socket is None or not self._job.reports.marks:
            return
        mark = {
            "v": 1,
            "job": self._job.job,
            "uuid": self._states[stage].uuid(gpu.index),
            "stage": stage,
            "mark": "begin",
            "kind": work.instruction,
            "microbatch": work.microbatch,
            "iteration": iteration,
            "t_ns": time.monotonic_ns(),
        }
        with contextlib.suppress(OSError):
            self._socket.sendto(json.dumps(mark).encode(), str(gpu.socket))

    def _send_due(self) -> None:
        while self._outbox and self._outbox[0][0] <= now_s():
            _, raw, path = self._outbox.pop(0)
            # No agent, or one that is busy: a training job never waits for its observers.
            with contextlib.suppress(OSError):
                self._socket.sendto(raw, path)

    def _hold_memory(self, used_bytes: int) -> None:
        for state, gpu in zip(self._states, self._job.gpus, strict=True):
            state.put(gpu.index, memory_used_bytes=used_bytes)

    def _sleep_until(self, when_s: float) -> None:
        while not self._stopping and (left_s := when_s - now_s()) > 0.0:
            due_s = self._outbox[0][0] - now_s() if self._outbox else NAP_S
            time.sleep(max(0.0, min(left_s, due_s, NAP_S)))
            self._send_due()


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
