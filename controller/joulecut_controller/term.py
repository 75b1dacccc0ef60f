"""One leadership term, and the wait for it: from a standby that only watches to giving back.

Leads for as long as it can prove that it may; without the leader lock it is a standby, warm, which
commands nothing.
"""

import asyncio
import signal
import time

from joulecut_controller.board import standby_board
from joulecut_controller.election.fenced_fleet import FencedFleet
from joulecut_controller.reconcile.pacing import Pacing, renewal_s
from joulecut_controller.reconcile.reconciler import Reconciler
from joulecut_controller.reconcile.solving import Solving
from joulecut_controller.reconcile.terms import Absurd, absurd
from joulecut_controller.service_context import NAME, Office, log, say
from joulecut_engine.estimate.adaptive import AdaptiveEstimator
from joulecut_engine.graph.pipeline import Granularity
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.problem import Problem
from joulecut_engine.optimize.solver import Solver, frontier, prepared
from joulecut_engine.optimize.straggler import Kept
from joulecut_wire.errors import BadInput, Unavailable

STOP_LIMIT_S = 10.0  # for giving everything back; what does not answer runs out by itself
# A new leader clears what the one before left, waits until agents have shown that (a second),
# and plans: no reason to wait a whole interval for each.
HURRY_S = 1.0
HURRIED_PASSES = 8


async def elected(office: Office) -> bool:
    """Waits until this controller may lead; False where it is told to stop before that."""
    said, tries = "", 0
    while not office.stopping.is_set():
        if await office.leadership.try_once():
            return True
        tries += 1
        # Reports that only a standby saw would be taken for new ones by its first pass.
        office.fleet.take_reports()
        board = standby_board(
            office.fleet.observe(time.monotonic()),
            office.leadership.waiting,
            leader=office.leadership.leader,
            number=tries,
            interval_s=office.config.interval_s,
            now_s=time.monotonic(),
            unix_s=time.time(),
        )
        office.publisher.publish(board)
        office.metrics.stand_by(board)
        office.sweeper.tend()
        if not said:
            say(f"{NAME} standby {office.address}")
        if office.leadership.waiting != said:
            said = office.leadership.waiting
            log(said)
        await office.unless_told(asyncio.sleep(office.config.timing.check_s))
    return False


async def reign(office: Office) -> None:
    """The term itself, from its number to its end; afterwards the leader lock is free."""
    try:
        reconciler = _begin(office)
    except Unavailable as error:
        log(f"no term can be begun: {error}")
        await office.leadership.release()
        await office.unless_told(asyncio.sleep(office.config.timing.check_s))
        return
    office.metrics.show(reconciler, office.leadership)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reconciler.ask_reload)
    say(f"{NAME} ready {office.address} epoch={reconciler.epoch}")
    office.desk.open(reconciler.commands.obey)
    office.sweeper.settle()  # of the term before, nothing is held any more
    try:
        await _lead(office, reconciler)
    finally:
        office.policy = reconciler.policy
        office.desk.close()
        await office.leadership.release()


def _begin(office: Office) -> Reconciler:
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
    office.store.fence(0)
    epoch = office.store.next_epoch(max(node.epoch_seen for node in nodes))
    office.store.fence(epoch)
    reconciler = Reconciler(
        fleet=FencedFleet(office.fleet, lambda: office.leadership.proven),
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


async def _lead(office: Office, reconciler: Reconciler) -> None:
    """Passes and heartbeats, until told to stop; then everything is given back. Or until the
    leader lock is lost: then nothing more is sent, and leases run out or are another leader's.
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
        log(held.result())
    for task in (*tasks, stop):
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    try:
        async with asyncio.timeout(STOP_LIMIT_S):
            await reconciler.stop("the controller stops")
    except TimeoutError:
        log("not all GPUs could be given back in time; their leases run out")
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _passes(office: Office, reconciler: Reconciler) -> None:
    """A pass every interval, whatever the one before took; the first few of a term sooner."""
    due_s, interval_s = time.monotonic(), office.config.interval_s
    error, hurried = "", HURRIED_PASSES
    while True:
        board = await reconciler.run_pass()
        office.publisher.publish(board)
        office.sweeper.tend()
        if board.sentence not in {"nothing to do", error}:
            log(f"pass {board.pass_number}: {board.sentence}")
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
