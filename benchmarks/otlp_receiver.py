"""Processor time of the OpenTelemetry receiver: 8 ranks x 100 spans a second on one node.

Measured on this machine: CPU seconds of this process for SECONDS of such traffic, sent as fast as
it goes, in requests of 5 s each as exporters batch them, by a process of its own.
"""

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "agents"))
from otlp_exporter import Rank, send_grpc, send_http

from joulecut_agent.counters import Counters
from joulecut_agent.jobs.binding import Binding
from joulecut_agent.jobs.gpu_of_process import GpuOfProcess
from joulecut_agent.jobs.inventory import Inventory
from joulecut_agent.jobs.loopback_peer import LoopbackPeers
from joulecut_agent.jobs.otlp_receiver import OtlpReceiver
from joulecut_agent.jobs.processes import Processes
from joulecut_agent.jobs.report_queue import ReportQueue
from joulecut_agent.jobs.report_socket import ReportSocket
from joulecut_wire.metrics import REPORTS

RANKS, SPANS_PER_S, BATCH_S = 8, 100, 5.0
PROC = Path("/proc")


def _export(grpc_port: int, http_port: int, batches: int) -> None:
    """Iterations of 0.5 s with 49 microbatch spans and their own: 100 spans a second."""
    kinds = ("forward",) * 24 + ("backward",) * 25
    ranks = [
        Rank(
            {"service.name": "bench", "dl.rank": r, "dl.world_size": RANKS, "nv.gpu.uuid": f"G{r}"}
        )
        for r in range(RANKS)
    ]
    begun_s = time.time() - batches * BATCH_S
    for batch in range(batches):
        for number, rank in enumerate(ranks):
            for i in range(round(BATCH_S * SPANS_PER_S / (len(kinds) + 1))):
                ended_s = begun_s + batch * BATCH_S + 0.5 * (i + 1)
                rank.iteration(batch * 10 + i, ended_s, 0.5, kinds)
            send = (send_grpc, grpc_port) if number % 2 else (send_http, http_port)
            send[0](send[1], rank.taken())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of traffic")
    batches = round(parser.parse_args().seconds / BATCH_S)
    pids: list[int | None] = []
    uuids = {r: f"G{r}" for r in range(RANKS)}
    processes, counters = Processes(PROC), Counters()
    binding = Binding(
        processes, lambda _: (), lambda _: (os.getpid(),), lambda: None, lambda _: False
    )
    with tempfile.TemporaryDirectory() as home:
        inbox = ReportSocket(
            Path(home) / "s",
            uuids.values,
            ReportQueue(),
            counters,
            lambda *_: None,
            binding=binding,
        )
        receiver = OtlpReceiver(
            ("127.0.0.1", 0), ("127.0.0.1", 0), inbox, counters,
            peers=LoopbackPeers(PROC, processes),
            gpus=GpuOfProcess(processes, lambda: Inventory(uuids), lambda _: (), lambda _: ()),
            likely=lambda: pids, owner=lambda _: "",
        )  # fmt: skip
        inbox.start()
        receiver.start()
        sender = multiprocessing.get_context("spawn").Process(
            target=_export, args=(receiver.grpc_port, receiver.http_port, batches)
        )
        before_s = _used_s()
        sender.start()
        pids.append(sender.pid)  # on a GPU, as ranks are
        sender.join()
        used_s = _used_s() - before_s
        receiver.close()
        inbox.close()
    counted = {labels[0]: count for labels, count in counters.counts(REPORTS.name)}
    print(f"{RANKS} ranks x {SPANS_PER_S} spans/s for {batches * BATCH_S:g} s: {counted}")
    print(f"{used_s:.2f} s of a core = {100 * used_s / (batches * BATCH_S):.2f} % (bar: 3 %)")


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
