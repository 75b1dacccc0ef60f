"""The controller at work: knows every part, starts them in order, and stops them in reverse.

Serves its page first, then waits for the seat (`lead`), and leads in a new term for as long as
it can prove that it may; without the seat it is a standby that watches, warm, and commands
nothing. SIGHUP reads the policy again; SIGTERM and SIGINT give every GPU back and end with
status 0.
"""

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from joulecut_controller.board import Board
from joulecut_controller.config import Config
from joulecut_controller.exposition import Exposition, written
from joulecut_controller.fleet import GrpcFleet
from joulecut_controller.garbage import Sweeper
from joulecut_controller.lead.file_seat import FileSeat
from joulecut_controller.lead.leadership import Leadership
from joulecut_controller.lead.led_fleet import LedFleet
from joulecut_controller.lead.postgres_seat import PostgresSeat
from joulecut_controller.lead.seat import Seat
from joulecut_controller.lead.standby import standing_by
from joulecut_controller.policy.policy import Policy
from joulecut_controller.predict.adaptive import AdaptiveEstimator
from joulecut_controller.reconcile.pacing import Pacing, renewal_s
from joulecut_controller.reconcile.reconciler import Reconciler, Solving
from joulecut_controller.reconcile.terms import Absurd, absurd
from joulecut_controller.reconcile.warming import Warming
from joulecut_controller.solve.opinion import check
from joulecut_controller.solve.problem import Problem
from joulecut_controller.solve.solver import Solver, frontier, prepared
from joulecut_controller.solve.straggler import Kept
from joulecut_controller.sources.policy_file import PolicyFile
from joulecut_controller.store.database import DatabaseStore, open_store
from joulecut_controller.store.place import PREFIX as POSTGRESQL
from joulecut_controller.store.place import place_of
from joulecut_controller.store.sqlite import file_of
from joulecut_controller.telemetry import BoardCollector, StandbyCollector
from joulecut_controller.web.app import build
from joulecut_controller.web.commands import OrderDesk
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
# A new leader clears what the one before left, waits until agents have shown that (a second),
# and plans: no reason to wait a whole interval for each.
HURRY_S = 1.0
HURRIED_PASSES = 8
WATCH_S_MAX = 1.0  # agents sample once a second
WATCH_S_MIN = 0.1


def run(config: Config) -> int:
    """Runs until told to stop. Raises BadInput, Unavailable."""
    source = PolicyFile(config.policy)
    policy = source.load()
    store = open_store(
        config.store,
        base=config.base,
        password_file=config.store_password_file,
        timeout_s=config.timing.timeout_s,
    )
    try:
        asyncio.run(_serve(config, source, policy, store))
    finally:
        store.close()
    return FINE


@dataclass(slots=True)
class _Office:
    """What stays while leaders come and go; `policy` is the last one that was in force."""

    config: Config
    source: PolicyFile
    policy: Policy
    store: DatabaseStore
    fleet: GrpcFleet
    watch_s: float
    leadership: Leadership
    publisher: Publisher
    face: "_Face"
    desk: OrderDesk
    address: str
    warming: Warming
    sweeper: Sweeper
    stopping: asyncio.Event


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
    desk = OrderDesk()
    app = build(publisher, metrics_text=face.metrics_text, web=web, store=store, desk=desk)
    server = Server(app, *config.http, web)
    await server.start()
    watch_s = min(max(config.interval_s / 2, WATCH_S_MIN), WATCH_S_MAX)
    fleet = GrpcFleet(config.agents, watch_s=watch_s, tls=tls, server_name=config.server_name)
    await fleet.start()
    scheme, _, address = server.url.partition("://")
    leadership = Leadership(_seat(config, server.port), config.timing)
    warming = Warming()
    sweeper = Sweeper()
    warmed = asyncio.create_task(_warmed(warming, sweeper), name="warm-up")
    office = _Office(
        config=config,
        source=source,
        policy=policy,
        store=store,
        fleet=fleet,
        watch_s=watch_s,
        leadership=leadership,
        publisher=publisher,
        face=face,
        desk=desk,
        address=f"{scheme}={address}",
        warming=warming,
        sweeper=sweeper,
        stopping=stopping,
    )
    try:
        await _first(stopping, fleet.described(DESCRIBE_LIMIT_S))
        while await _elected(office):
            await _reign(office)
    finally:
        warmed.cancel()
        await asyncio.gather(warmed, return_exceptions=True)
        publisher.close()
        await fleet.stop()
        await server.stop()
        await leadership.leave()


async def _warmed(warming: Warming, sweeper: Sweeper) -> None:
    await warming.run()
    sweeper.settle()  # machine code and all it hangs on stays for good


def _seat(config: Config, port: int) -> Seat:
    name = f"{NAME} {socket.gethostname()}:{port}"
    if config.store.startswith(POSTGRESQL):
        place = place_of(config.store, config.base, config.store_password_file)
        return PostgresSeat(place, config.timing, name)
    return FileSeat(file_of(config.store), name)


async def _elected(office: _Office) -> bool:
    """Waits until this controller may lead; False where it is told to stop before that."""
    said, tries = "", 0
    while not office.stopping.is_set():
        if await office.leadership.try_once():
            return True
        tries += 1
        # Reports that only a standby saw would be taken for new ones by its first pass.
        office.fleet.take_reports()
        board = standing_by(
            office.fleet.observe(time.monotonic()),
            office.leadership.waiting,
            leader=office.leadership.leader,
            number=tries,
            interval_s=office.config.interval_s,
            now_s=time.monotonic(),
            unix_s=time.time(),
        )
        office.publisher.publish(board)
        office.face.stand_by(board)
        office.sweeper.tend()
        if not said:
            _say(f"{NAME} standby {office.address}")
        if office.leadership.waiting != said:
            said = office.leadership.waiting
            _log(said)
        await _first(office.stopping, asyncio.sleep(office.config.timing.check_s))
    return False


async def _reign(office: _Office) -> None:
    """One term, from its number to its end; afterwards the seat is free."""
    try:
        reconciler = _begin(office)
    except Unavailable as error:
        _log(f"no term can be begun: {error}")
        await office.leadership.leave()
        await _first(office.stopping, asyncio.sleep(office.config.timing.check_s))
        return
    office.face.show(reconciler, office.leadership)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reconciler.ask_reload)
    _say(f"{NAME} ready {office.address} epoch={reconciler.epoch}")
    office.desk.open(reconciler.commands.obey)
    office.sweeper.settle()  # of the term before, nothing is held any more
    try:
        await _lead(office, reconciler)
    finally:
        office.policy = reconciler.policy
        office.desk.close()
        await office.leadership.leave()


def _begin(office: _Office) -> Reconciler:
    """A controller of a new term. Raises Unavailable where none can be had."""
    nodes = office.fleet.observe(time.monotonic()).nodes
    strange = absurd(nodes)
    if strange:
        raise Absurd(strange)  # only a person can mend that
    broken = False
    try:
        office.policy = office.source.load()
    except BadInput:
        broken = True
    office.store.hold_to(0)
    epoch = office.store.next_epoch(max(node.epoch_seen for node in nodes))
    office.store.hold_to(epoch)
    reconciler = Reconciler(
        fleet=LedFleet(office.fleet, lambda: office.leadership.proven),
        store=office.store,
        source=office.source,
        policy=office.policy,
        learner=AdaptiveEstimator({}),
        solving=Solving(prepare=Solver, check=check, frontier=frontier, keep=_keep),
        epoch=epoch,
        pacing=Pacing(office.config.interval_s, office.watch_s, office.config.ttl_s),
        now_s=time.monotonic,
        unix_s=time.time,
        unready=lambda: office.warming.wait,
    )
    if broken:
        reconciler.ask_reload()  # the first pass says what is wrong with it
    return reconciler


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
    """What /metrics shows: the leader's figures, or that this one is a standby."""

    def __init__(self) -> None:
        self._text: Callable[[], bytes] = bytes  # nothing yet

    def show(self, reconciler: Reconciler, leadership: Leadership) -> None:
        collector = BoardCollector(
            lambda: reconciler.board,
            reconciler.meters,
            epoch=reconciler.epoch,
            leads=lambda: reconciler.leads and leadership.proven,
        )
        self._text = Exposition(collector).text

    def stand_by(self, board: Board) -> None:
        self._text = lambda: written(StandbyCollector(board).collect())

    def metrics_text(self) -> bytes:
        return self._text()


async def _lead(office: _Office, reconciler: Reconciler) -> None:
    """Passes and heartbeats, until told to stop; then everything is given back. Or until the
    seat is lost: then nothing more is sent, and leases run out or are another leader's.
    """
    tasks = [
        asyncio.create_task(_passes(office, reconciler), name="passes"),
        asyncio.create_task(_beats(reconciler), name="heartbeat"),
    ]
    held = asyncio.create_task(office.leadership.hold(), name="leadership")
    stop = asyncio.create_task(office.stopping.wait())
    await asyncio.wait([*tasks, held, stop], return_when=asyncio.FIRST_COMPLETED)
    if held.done() and not stop.done():
        reconciler.stand_down(held.result())
        _log(held.result())
    for task in (*tasks, stop):
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    try:
        async with asyncio.timeout(STOP_LIMIT_S):
            await reconciler.stop("the controller stops")
    except TimeoutError:
        _log("not all GPUs could be given back in time; their leases run out")
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _passes(office: _Office, reconciler: Reconciler) -> None:
    """A pass every interval, whatever the one before took; the first few of a term sooner."""
    due_s, interval_s = time.monotonic(), office.config.interval_s
    error, hurried = "", HURRIED_PASSES
    while True:
        board = await reconciler.run_pass()
        office.publisher.publish(board)
        office.sweeper.tend()
        if board.sentence not in {"nothing to do", error}:
            _log(f"pass {board.pass_number}: {board.sentence}")
        error = board.sentence
        wait_s = min(interval_s, HURRY_S) if hurried > 0 else interval_s
        hurried -= 1
        due_s = max(due_s + wait_s, time.monotonic())
        await reconciler.commands.rest(due_s - time.monotonic())
        due_s = min(due_s, time.monotonic())  # an order may have called the pass early


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
