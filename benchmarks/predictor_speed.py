"""How long the estimator takes, measured on this machine, now.

    python benchmarks/predictor_speed.py [--samples 2000] [--gpus 128]

A job of `--gpus` GPUs in 8 stages, forward and backward, at 8 clocks (synthetic physics with
1 % noise) with a profile: one fit after `--samples` samples, 81 clocks for all GPUs (first, with
every curve evaluated; then again), one sample learnt, state and restore. Times are CPU time of
this process, so that what else runs on the machine does not count.
"""

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

from joulecut_engine.estimate.estimator import Sample, Subject
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Profile

CLOCKS = (1410, 1350, 1275, 1200, 1140, 1065, 990, 900)
GRID = tuple(range(210, 1411, 15))
STAGES = 8
KINDS: tuple[Kind, ...] = ("forward", "backward")
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--gpus", type=int, default=128)
    args = parser.parse_args()
    for workloads in (1, 2, 4):
        samples = _samples(args.samples, args.gpus, workloads)
        profiles = {f"job-{i}": _profile(i) for i in range(workloads)}
        estimator = OnlineEstimator(profiles)
        learn_s = _once(lambda: estimator.learn(samples))  # noqa: B023 -- called at once
        fit_s = _once(estimator.fit)
        subjects = [
            Subject("job-0", f"GPU-{i}", i % STAGES, KINDS[i // STAGES % 2])
            for i in range(args.gpus)
        ]
        cold_s = _once(lambda: [estimator.predict(one, GRID) for one in subjects])  # noqa: B023
        warm_s = _best(lambda: [estimator.predict(one, GRID) for one in subjects])  # noqa: B023
        text = json.dumps(estimator.state())
        restored = OnlineEstimator(profiles)
        restore_s = _once(lambda: restored.restore(json.loads(text)))  # noqa: B023
        print(
            f"{workloads} workloads, {len(samples)} samples: fit of one {fit_s * 1e3:.1f} ms, "
            f"{len(GRID)} clocks x {len(subjects)} GPUs {cold_s * 1e3:.1f} ms first, "
            f"{warm_s * 1e3:.1f} ms after, learn {learn_s / len(samples) * 1e6:.0f} us each, "
            f"state {len(text) / 1e3:.0f} kB, restore {restore_s * 1e3:.0f} ms"
        )


def _samples(count: int, gpus: int, workloads: int) -> tuple[Sample, ...]:
    random = np.random.default_rng(0)
    found: list[Sample] = []
    for i in range(count):
        gpu, workload = i % gpus, i // gpus % workloads
        kind = KINDS[gpu // STAGES % 2]
        clock = CLOCKS[i // (gpus * workloads) % len(CLOCKS)]
        found.append(
            Sample(
                Subject(f"job-{workload}", f"GPU-{gpu}", gpu % STAGES, kind),
                clock,
                _time_s(workload, clock) * random.lognormal(0.0, 0.01),
                _power_w(clock) * random.lognormal(0.0, 0.01),
            )
        )
    return tuple(found)


def _profile(workload: int) -> Profile:
    options = tuple(
        ClockOption(mhz, _time_s(workload, mhz), _time_s(workload, mhz) * _power_w(mhz))
        for mhz in GRID
    )
    return Profile({(stage, kind): options for stage in range(STAGES) for kind in KINDS})


def _time_s(workload: int, clock_mhz: int) -> float:
    share = 0.6 + 0.1 * workload
    return 0.05 * (1.0 - share + share * 1410.0 / clock_mhz)


def _power_w(clock_mhz: int) -> float:
    voltage = 1.0 + 0.76 * max(0.0, clock_mhz - 1107.0) / 1000.0
    return 52.0 + 160.0 * clock_mhz / 1000.0 * voltage**2


def _once(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def _best(work: Callable[[], object]) -> float:
    return min(_once(work) for _ in range(REPEATS))


if __name__ == "__main__":
    main()
