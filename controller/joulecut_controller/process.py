"""The controller at work: knows every part, starts them in order, and stops them in reverse.

Leads first (a term larger than any seen), then serves the page, then passes begin. SIGHUP
reads the policy again; SIGTERM and SIGINT give every GPU back and end with status 0.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from joulecut_controller.config import Config
from joulecut_controller.fleet import GrpcFleet
from joulecut_controller.policy.policy import Policy
from joulecut_controller.predict.adaptive import AdaptiveEstimator
from joulecut_controller.reconcile.pacing import Pacing, renewal_s
from joulecut_controller.reconcile.reconciler import Reconciler, Solving
from joulecut_controller.reconcile.terms import absurd
from joulecut_controller.reconcile.warming import Warming
from joulecut_controller.solve.opinion import check
from joulecut_controller.solve.problem import Problem
from joulecut_controller.solve.solver import Solver, frontier, prepared
from joulecut_controller.solve.straggler import Kept
from joulecut_controller.sources.policy_file import PolicyFile
from joulecut_controller.store.database import DatabaseStore, open_store
from joulecut_controller.telemetry import BoardCollector
from joulecut_controller.web.app import build
from joulecut_controller.web.guard import is_loopback
from joulecut_controller.web.publisher import Publisher
from joulecut_controller.web.server import Server
from joulecut_controller.workload import Granularity
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput, Unavailable
from joulecut_wire.tls import rotating
from joulecut_wire.web_config import WebConfig

NAME = "joulecut-controller"
# Agents that do not answer by then are looked for on; only their epochs are not known yet,
# and a larger one found later makes this controller stand back.
DESCRIBE_LIMIT_S = 10.0
STOP_LIMIT_S = 10.0  # for giving everything back; what does not answer runs out by itself
WATCH_S_MAX = 1.0  # agents sample once a second
WATCH_S_MIN = 0.1


def run(config: Config) -> int:
    """Runs until told to stop. Raises BadInput, Unavailable."""
    source = PolicyFile(config.policy)
    policy = source.load()
    store = open_store(config.store)
    try:
        asyncio.run(_serve(config, source, policy, store))
    finally:
        store.close()
    return FINE


async def _serve(config: Config, source: PolicyFile, policy: Policy, store: DatabaseStore) -> None:
    """Everything from listening to giving back."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # nothing read yet that could be stale
    tls = rotating(config.tls, _log) if config.tls else None
    publisher, face = Publisher(), _Face()
    # First, since it can fail: a controller without a page must not take a term.
    web = _protection(config)
    app = build(publisher, metrics_text=face.metrics_text, web=web)
    server = Server(app, *config.http, web)
    await server.start()
    watch_s = min(max(config.interval_s / 2, WATCH_S_MIN), WATCH_S_MAX)
    fleet = GrpcFleet(config.agents, watch_s=watch_s, tls=tls, server_name=config.server_name)
    await fleet.start()
    warming = Warming()
    warmed = asyncio.create_task(warming.run(), name="warm-up")
    try:
        await _first(stopping, fleet.described(DESCRIBE_LIMIT_S))
        if stopping.is_set():
            return
        nodes = fleet.observe(time.monotonic()).nodes
        strange = absurd(nodes)
        if strange:
            raise Unavailable(strange)
        seen = max(node.epoch_seen for node in nodes)
        reconciler = Reconciler(
            fleet=fleet,
            store=store,
            source=source,
            policy=policy,
            learner=AdaptiveEstimator({}),
            solving=Solving(prepare=Solver, check=check, frontier=frontier, keep=_keep),
            epoch=store.next_epoch(seen),
            pacing=Pacing(config.interval_s, watch_s, config.ttl_s),
            now_s=time.monotonic,
            unix_s=time.time,
            unready=lambda: warming.wait,
        )
        face.show(reconciler)
        loop.add_signal_handler(signal.SIGHUP, reconciler.ask_reload)
        scheme, _, address = server.url.partition("://")
        _say(f"{NAME} ready {scheme}={address} epoch={reconciler.epoch}")
        await _lead(config, reconciler, publisher, stopping)
    finally:
        warmed.cancel()
        await asyncio.gather(warmed, return_exceptions=True)
        publisher.close()
        await fleet.stop()
        await server.stop()


def _keep(problem: Problem, granularity: Granularity) -> Kept:
    return Kept(prepared(problem, granularity))


def _protection(config: Config) -> WebConfig | None:
    """Raises BadInput where the page would be open to a network."""
    web = WebConfig(config.web_config, _log) if config.web_config else None
    if not is_loopback(config.http[0]):
        if web is None or web.context() is None:
            allowed = "a loopback address, or TLS by web_config"
            raise BadInput("listen.http", f"{config.http[0]} without encryption", allowed)
        if not web.authenticates:
            _log("warning: the page asks nobody who he is; see client_auth_type, basic_auth_users")
    return web


class _Face:
    """What /metrics shows: nothing before this controller leads."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

    def show(self, reconciler: Reconciler) -> None:
        collector = BoardCollector(
            lambda: reconciler.board,
            reconciler.meters,
            epoch=reconciler.epoch,
            leads=lambda: reconciler.leads,
        )
        self._registry.register(collector)

    def metrics_text(self) -> bytes:
        return generate_latest(self._registry)


async def _lead(
    config: Config, reconciler: Reconciler, publisher: Publisher, stopping: asyncio.Event
) -> None:
    """Passes and heartbeats, until told to stop; then everything is given back."""
    tasks = [
        asyncio.create_task(_passes(config, reconciler, publisher), name="passes"),
        asyncio.create_task(_beats(reconciler), name="heartbeat"),
    ]
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
    for task in (*tasks, stop):
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    try:
        await asyncio.wait_for(reconciler.stop("the controller stops"), STOP_LIMIT_S)
    except TimeoutError:
        _log("not all GPUs could be given back in time; their leases run out")
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _passes(config: Config, reconciler: Reconciler, publisher: Publisher) -> None:
    """A pass every interval, whatever the one before took."""
    due_s = time.monotonic()
    error = ""
    while True:
        board = await reconciler.run_pass()
        publisher.publish(board)
        if board.sentence not in {"nothing to do", error}:
            _log(f"pass {board.pass_number}: {board.sentence}")
        error = board.sentence
        due_s = max(due_s + config.interval_s, time.monotonic())
        await asyncio.sleep(due_s - time.monotonic())


async def _beats(reconciler: Reconciler) -> None:
    while True:
        await asyncio.sleep(renewal_s(reconciler.ttl_s()))
        await reconciler.beat()


async def _first(stopping: asyncio.Event, work: Coroutine[Any, Any, Any]) -> None:
    """Waits for the work, or for the order to stop."""
    tasks = [asyncio.create_task(work), asyncio.create_task(stopping.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _log(line: str) -> None:
    sys.stderr.write(f"{NAME}: {line}\n")
    sys.stderr.flush()
