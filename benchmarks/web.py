"""How fast the controller answers with 1,250 nodes of eight GPUs, while passes run.

Prints milliseconds (p50, p99, longest) of each address, asked by several clients at once (each a
process of its own) while the controller's own loop observes the fleet, publishes a board every
interval, and a thread solves a pipeline as planning does; how often garbage was looked for among
everything that lives, and for how long; then the first screen of the page in Chromium (from
navigation until power, jobs, nodes and chart are drawn; each time without a cache, and with one
client only), and the wall time of `joulecut status`, from the shell's point of view, beside that of
a Python that does nothing. The fleet is made up.

    python benchmarks/web.py [--nodes 1250] [--seconds 30] [--clients 4]
"""

import argparse
import asyncio
import gc
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("boards", "worlds")]

import boards  # noqa: E402 -- found there
import large  # noqa: E402
from prometheus_client import CollectorRegistry, generate_latest  # noqa: E402

from joulecut_controller.board import Board  # noqa: E402
from joulecut_controller.election.claims import Claims  # noqa: E402
from joulecut_controller.garbage import Sweeper  # noqa: E402
from joulecut_controller.metrics.collector import BoardCollector  # noqa: E402
from joulecut_controller.policy.policy import GpuRef, JobPolicy, Policy  # noqa: E402
from joulecut_controller.ports import ArrivedReport, FleetState  # noqa: E402
from joulecut_controller.reconcile.pacing import Pacing  # noqa: E402
from joulecut_controller.reconcile.planning_step import SolverFunctions  # noqa: E402
from joulecut_controller.reconcile.reconciler import Reconciler  # noqa: E402
from joulecut_controller.store.database import open_store  # noqa: E402
from joulecut_controller.view import GpuView  # noqa: E402
from joulecut_controller.web.app import build  # noqa: E402
from joulecut_controller.web.board_cache import Publisher  # noqa: E402
from joulecut_controller.web.server import Server  # noqa: E402
from joulecut_engine.estimate.online import OnlineEstimator  # noqa: E402
from joulecut_engine.graph.pipeline import Pipeline  # noqa: E402
from joulecut_engine.optimize.check import check  # noqa: E402
from joulecut_engine.optimize.formulation import problem as problem_of  # noqa: E402
from joulecut_engine.optimize.problem import Goal  # noqa: E402
from joulecut_engine.optimize.solver import Solver  # noqa: E402
from joulecut_wire.messages import Result  # noqa: E402

INTERVAL_S = 5.0  # the default
REPEATS = 7
PATHS = ("/api/v1/brief", "/api/v1/board", "/api/v1/jobs/job007", "/api/v1/events", "/", "/metrics")
WARM_S = 12.0  # two boards published
SCREENS = 9  # first screens, each in a browser context of its own
# Milliseconds since the navigation began, once everything above the fold and both tables stand.
DRAWN = """() => document.querySelector(".stat .big")?.textContent
  && document.querySelectorAll(".paged").length === 2
  && [...document.querySelectorAll(".paged")].every((one) => one.querySelector("tbody tr"))
  && document.querySelector(".chart") && performance.now()"""
OLDEST = 2  # generation: all that lives, but for what was frozen
PAUSE_S = 0.05  # a board of ten megabytes twenty times a second would measure the loopback


class StillFleet:
    """A fleet that always says the same, as fresh as can be, and takes no command."""

    def __init__(self, board: Board) -> None:
        self._nodes, self._gpus = board.view.nodes, tuple(board.view.gpus.values())

    def observe(self, *_: object) -> FleetState:
        gpus = (GpuView(g.description, g.address, g.node, g.snapshot, 0.5) for g in self._gpus)
        return FleetState(self._nodes, tuple(gpus))

    def take_reports(self) -> tuple[ArrivedReport, ...]:
        return ()

    async def apply(self, *_: Any) -> tuple[Result, ...]:
        return ()

    async def renew(self, *_: Any) -> tuple[Result, ...]:
        return ()

    async def clear(self, *_: Any) -> tuple[Result, ...]:
        return ()


class StillPolicy:
    """A policy in memory that never changes."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def load(self) -> Policy:
        return self._policy

    def changed(self) -> bool:
        return False


def policy_of(board: Board) -> Policy:
    """An entry for each job of the board, by node and index."""
    jobs: list[JobPolicy] = []
    for job in board.jobs:
        gpus = [board.view.gpus[uuid] for stage in job.view.placement.stages for uuid in stage]
        refs = tuple(GpuRef(gpu.node, gpu.description.index) for gpu in gpus)
        jobs.append(replace(job.view.policy, mode="recommend", gpus=refs))
    return Policy(jobs=tuple(jobs), source="benchmark", digest="0")


class Halts:
    """Seconds of each full collection: nobody is answered meanwhile."""

    def __init__(self) -> None:
        self.taken_s: list[float] = []
        self._begun_s = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < OLDEST:
            return
        if phase == "start":
            self._begun_s = time.perf_counter()
        else:
            self.taken_s.append(time.perf_counter() - self._begun_s)


class Serving:
    """A reconciler on a still fleet, and the page, as the controller's process runs them."""

    def __init__(self, nodes: int, folder: Path) -> None:
        self._board = large.board(nodes)
        self._store = open_store(f"sqlite:///{folder}/controller.db")
        self.passes_s: list[float] = []
        self.url = ""
        self._ready, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> "Serving":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._store.close()

    async def _run(self) -> None:
        policy = policy_of(self._board)
        reconciler = Reconciler(
            fleet=StillFleet(self._board),
            store=self._store,
            source=StillPolicy(policy),
            policy=policy,
            learner=OnlineEstimator({}),
            solver=SolverFunctions(prepare=Solver, check=check, frontier=lambda *_: ()),
            planners=ThreadPoolExecutor(1),
            background=ThreadPoolExecutor(1),
            claims=Claims(8),
            pacing=Pacing(INTERVAL_S, 1.0),
            now_s=time.monotonic,
            unix_s=time.time,
        )
        publisher, shown = Publisher(), [self._board]
        registry = CollectorRegistry()
        registry.register(
            BoardCollector(
                lambda: shown[-1], reconciler.metrics, epoch=lambda: 8, leads=lambda: True
            )
        )
        app = build(publisher, metrics=lambda _: generate_latest(registry), store=self._store)
        server = Server(app, "127.0.0.1", 0)
        await server.start()
        self.url = server.url
        solving = threading.Thread(target=self._solve, daemon=True)
        solving.start()
        sweeper = Sweeper()
        sweeper.settle()
        while not self._done.is_set():
            begun_s = time.monotonic()
            seen = await reconciler.run_pass()
            self.passes_s.append(time.monotonic() - begun_s)
            # The pass of a still fleet decides nothing; what is shown is a board with plans.
            shown[:] = [replace(self._board, at_unix_s=seen.at_unix_s, pass_number=seen.pass_number,
                                interval_s=INTERVAL_S)]  # fmt: skip
            publisher.publish(shown[0])
            sweeper.tend()
            self._ready.set()
            while not self._done.is_set() and time.monotonic() - begun_s < INTERVAL_S:
                await asyncio.sleep(0.05)
        publisher.close()
        await server.stop()
        solving.join()

    def _solve(self) -> None:
        pipeline = Pipeline("1f1b", boards.STAGES, 48)
        problem = problem_of(pipeline, boards.profile(), boards.BLOCKING_W)
        while not self._done.is_set():
            solver = Solver(problem, "gpu")
            for percent in range(1, 6):
                solver.solve(Goal(solver.fastest_s * (1.0 + percent / 100.0)))


def asked(url: str, seconds: float) -> dict[str, list[float]]:
    """One client, one address after another on one connection."""
    taken: dict[str, list[float]] = {path: [] for path in PATHS}
    host, port = url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for path in PATHS:
            begun_s = time.perf_counter()
            connection.request("GET", path)
            connection.getresponse().read()
            taken[path].append(time.perf_counter() - begun_s)
            time.sleep(PAUSE_S)
    return taken


def asked_by(clients: int, url: str, seconds: float) -> dict[str, list[float]]:
    """Clients in processes of their own: they must not wait for the server's interpreter."""
    words = [sys.executable, __file__, "--ask", url, "--seconds", f"{seconds:g}"]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(clients)]
    told = [json.loads(one.communicate()[0]) for one in running]
    return {path: [value for one in told for value in one[path]] for path in PATHS}


def screens(url: str) -> list[float]:
    """Seconds until the first screen is drawn; 1600 x 900 pixels."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 -- only with a browser

    found = []
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for _ in range(SCREENS):
            context = browser.new_context(viewport={"width": 1600, "height": 900})
            page = context.new_page()
            page.goto(url, wait_until="commit")
            found.append(page.wait_for_function(DRAWN).json_value() / 1e3)
            context.close()
        browser.close()
    return found


def screens_by_browser(url: str) -> list[float]:
    """In a process of its own; empty without a browser."""
    if shutil.which("chromium") is None:
        return []
    words = [sys.executable, __file__, "--screens", url]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else []


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def wall_s(*words: str) -> tuple[float, float, float]:
    """Median and longest wall time of a command, and its mean processor time."""
    taken, before = [], os.times()
    for _ in range(REPEATS):
        begun_s = time.perf_counter()
        subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
        taken.append(time.perf_counter() - begun_s)
    spent = os.times()
    used_s = spent.children_user + spent.children_system
    used_s -= before.children_user + before.children_system
    return statistics.median(taken), max(taken), used_s / REPEATS


def main() -> int:
    parser = argparse.ArgumentParser(description="How fast the page, API and status answer.")
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--ask", metavar="URL", default="", help=argparse.SUPPRESS)
    parser.add_argument("--screens", metavar="URL", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    for name in ("nodes", "seconds", "clients"):
        if not getattr(given, name) >= 1:
            parser.error(f"--{name} {getattr(given, name)}: 1 or more is needed")
    if given.ask:
        print(json.dumps(asked(given.ask, given.seconds)))
        return 0
    if given.screens:
        print(json.dumps(screens(given.screens)))
        return 0
    with tempfile.TemporaryDirectory() as folder, Serving(given.nodes, Path(folder)) as served:
        asked(served.url, WARM_S)
        halts = Halts()
        taken = asked_by(given.clients, served.url, given.seconds)
        halted_s = sum(halts.taken_s)
        load, cores = os.getloadavg()[0], os.cpu_count()
        print(f"load {load:.1f} on {cores} cores; the bar for page and API is 100 ms at p99")
        print(f"{given.nodes} nodes, {8 * given.nodes} GPUs; {given.clients} clients")
        print(f"  a pass takes {statistics.median(served.passes_s):.3f} s (median)")
        print(f"  full collections: {len(halts.taken_s)}, together {halted_s:.3f} s")
        print(f"  {'address':<22} {'asked':>6} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}")
        for path, values in taken.items():
            figures = (percentile(values, 0.5), percentile(values, 0.99), max(values))
            row = " ".join(f"{1e3 * value:8.1f}" for value in figures)
            print(f"  {path:<22} {len(values):>6} {row}")
        if drawn_s := screens_by_browser(served.url):
            figures = f"median of {SCREENS}; {min(drawn_s):.2f} to {max(drawn_s):.2f} s"
            print(f"  first screen in Chromium: {statistics.median(drawn_s):.2f} s ({figures})")
            print("  the bar for the first screen is 1 s")
        status = wall_s("-m", "joulecut_cli.main", "status", "--controller", served.url)
    idle = wall_s("-c", "pass")
    for name, (median_s, longest_s, used_s) in {"status": status, "nothing": idle}.items():
        figures = f"longest {longest_s:.3f} s; of a processor {used_s:.3f} s"
        print(f"  {name:<22} {median_s:.3f} s ({figures})")
    print("  the bar for status is 0.5 s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
