"""Ranks of a Megatron job on simulated GPUs: a process that exports their spans, nothing else.

    python megatron_ranks.py RESULTS OTLP_HTTP_PORT STAGES MICROBATCHES

Iterations are those that a simulated job without reports writes to RESULTS. The process knows its
GPUs by CUDA_VISIBLE_DEVICES, one a local rank, as a launcher sets it.
"""

import json
import os
import sys
import time
from pathlib import Path

from otlp_exporter import Rank, send_http

EXPORT_S = 1.0  # OTEL_BSP_SCHEDULE_DELAY


def one_f_one_b(stage: int, stages: int, microbatches: int) -> tuple[str, ...]:
    ahead = min(stages - stage - 1, microbatches)
    steady = ("forward", "backward") * (microbatches - ahead)
    return ("forward",) * ahead + steady + ("backward",) * ahead


def main(results: Path, port: int, stages: int, microbatches: int) -> None:
    about = {"service.name": "megatron-lm", "dl.world_size": stages, "process.pid": os.getpid()}
    sizes = {"dl.pipeline_parallel.size": stages, "dl.tensor_parallel.size": 1}
    ranks = [Rank({**about, **sizes, "dl.rank": i, "dl.local_rank": i}) for i in range(stages)]
    while not results.exists():
        time.sleep(0.1)
    unix_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    with results.open() as file:
        while True:
            for line in file:
                done = json.loads(line)
                ended_s = unix_s + done["begin_s"] + done["duration_s"]
                for stage, rank in enumerate(ranks):
                    kinds = one_f_one_b(stage, stages, microbatches)
                    rank.iteration(done["iteration"], ended_s, done["duration_s"], kinds)
            for rank in ranks:
                send_http(port, rank.taken())
            time.sleep(EXPORT_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
