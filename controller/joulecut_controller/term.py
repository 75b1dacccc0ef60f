"""One leadership term and the wait for it.

The process leads as long as it can prove that it holds the leader lock. Otherwise it is a warm
standby and sends no commands.
"""

import asyncio
import json
import signal
import socket
import time
from contextlib import suppress
from dataclasses import asdict, replace

from joulecut_controller.board import Board, standby_board
from joulecut_controller.cluster.history import History
from joulecut_controller.cluster.summary import part_of, parts_of
from joulecut_controller.election.claims import Claims, Wish
from joulecut_controller.election.epoch import confirmed_epoch
from joulecut_controller.election.fenced_fleet import FencedFleet
from joulecut_controller.election.power_table import PowerTable
from joulecut_controller.fleet.gpu_owners import EQUAL_S
from joulecut_controller.log import NAME, EventLog, log
from joulecut_controller.ports import ArrivedReport
from joulecut_controller.reconcile.audit_log import SHOWN
from joulecut_controller.reconcile.cluster_step import profiles_of
from joulecut_controller.reconcile.pacing import Pacing
from joulecut_controller.reconcile.planning_step import SolverFunctions
from joulecut_controller.reconcile.reconciler import Reconciler
from joulecut_controller.service_context import ServiceContext, announce
from joulecut_controller.sources.prometheus_prices import PrometheusPrices
from joulecut_controller.sources.prometheus_rates import PrometheusRates
from joulecut_controller.web.cluster_json import STANDING
from joulecut_controller.web.job_json import job_json
from joulecut_engine.estimate.online import OnlineEstimator
from joulecut_engine.optimize.check import check
from joulecut_engine.optimize.solver import Solver, frontier
from joulecut_wire.errors import BadInput, Unavailable

STOP_LIMIT_S = 10.0  # for giving everything back; what does not answer runs out by itself
BEGUN_BOARDS = 8  # by then a term has made what it keeps
LAG_POLL_S = 0.1
OUTDATED_POLL_S = 5.0
OWNERS = "gpu-owners"  # which agent speaks for which GPU, as text in the store
OWNERS_EVERY_S = 10.0
HISTORY_POLL_S = 60.0  # of a standby; the leader writes a bucket every five minutes
SHOW_S = 3.0  # 40 kB for a hundred jobs
SHARE_CHECKS = 2.0  # of the lock, between two readings of the claims: a few milliseconds each
SHARE_S_MIN = 0.1  # between readings that news ask for
# Agents that do not answer by then are looked for on; only their epochs are not known yet, and one
# that shows a larger one later gets no commands.
FIRST_READING_S = 10.0


Newest = dict[str, ArrivedReport]  # of each GPU: it shows where jobs run


async def wait_for_leadership(context: ServiceContext) -> Newest | None:
    """Waits until this controller may lead; None where it is stopped before that. Returns the
    reports that came meanwhile.
    """
    newest: Newest = {}
    following = asyncio.create_task(_follow(context.history))
    try:
        # Before the leader lock, which is lost where its holder is busy.
        await context.until_stopped(context.fleet.all_read(FIRST_READING_S))
        return newest if await _wait(context, newest) else None
    finally:
        following.cancel()


async def _follow(history: History) -> None:
    """The page of a standby shows the history that the leader writes."""
    while True:
        await asyncio.to_thread(history.load, time.time())
        await asyncio.sleep(HISTORY_POLL_S)


async def _wait(context: ServiceContext, newest: Newest) -> bool:
    """Whether this controller leads now; False where it is stopped before that."""
    said, tries, due_s = "", 0, 0.0
    while not context.stopping.is_set():
        if context.apart and not _reaches_agents(context):
            context.leadership.waiting = "standby: it reaches no agent"
        elif await context.leadership.try_once() or await _joins(context):
            context.apart = False
            return True
        newest |= {one.report.uuid: one for one in context.fleet.take_reports()}
        now_s = time.monotonic()
        if now_s >= due_s or context.leadership.waiting != said:
            tries, due_s = tries + 1, now_s + context.config.interval_s
            board = standby_board(
                context.fleet.observe(now_s),
                context.leadership.waiting,
                leader=context.leadership.leader,
                number=tries,
                interval_s=context.config.interval_s,
                now_s=now_s,
                unix_s=time.time(),
            )
            context.publisher.publish(board)
            context.metrics.stand_by(board)
        context.sweeper.tend()
        if not said:
            announce(f"{NAME} standby {context.address}")
        if context.leadership.waiting != said:
            said = context.leadership.waiting
            log(said)
        await context.until_stopped(asyncio.sleep(context.config.timing.check_s))
    return False


def _reaches_agents(context: ServiceContext) -> bool:
    return any(node.connected for node in context.fleet.observe(time.monotonic()).nodes)


async def _joins(context: ServiceContext) -> bool:
    """Whether this controller is to have jobs of those that share the store."""
    if not context.leadership.number:
        return False
    try:
        context.store.fence(0, context.leadership.number)
        group = await asyncio.to_thread(context.claims.share, context.leadership.number)
    except Unavailable:
        return False
    return bool(group.among(group.wanted)) and await context.leadership.join()


async def lead_term(context: ServiceContext, newest: Newest) -> None:
    """The term itself, from its number to its end; afterwards the leader lock is free."""
    # From now on: to begin takes seconds, and the database ends a session that is silent.
    held = asyncio.create_task(context.leadership.hold(), name="leadership")
    try:
        rates = PrometheusRates(context.config.prometheus, time.monotonic)
        prices = PrometheusPrices(context.config.prometheus, time.time)
        reconciler = await _begin(context, rates, prices, newest)
    except Unavailable as error:
        log(f"no term can be begun: {error}", "error")
        held.cancel()
        await context.leadership.release()
        await context.until_stopped(asyncio.sleep(context.config.timing.check_s))
        return
    context.metrics.show(reconciler, context.leadership)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reconciler.ask_reload)
    announce(f"{NAME} ready {context.address} epoch={reconciler.epoch}")
    context.commands.open(reconciler.commands.execute)
    context.fleet.noticed = reconciler.notice
    loading = asyncio.create_task(asyncio.to_thread(context.history.load, time.time()))
    try:
        await _lead(context, reconciler, rates, prices, held)
    finally:
        await loading
        context.policy = reconciler.policy_read
        context.commands.close()
        context.fleet.watch(None)
        await context.leadership.release()


async def _begin(
    context: ServiceContext, rates: PrometheusRates, prices: PrometheusPrices, newest: Newest
) -> Reconciler:
    """A controller of a new term. Raises Unavailable where none can be had."""
    nodes = context.fleet.observe(time.monotonic()).nodes
    broken = False
    try:
        context.policy = await asyncio.to_thread(context.source.newest, context.policy)
    except BadInput:
        broken = True
    # A hundred profiles take some seconds to fit.
    learner = await asyncio.to_thread(OnlineEstimator, profiles_of(context.policy))
    context.store.fence(0)
    earlier, number, group = context.store.epoch(), context.leadership.number, None
    # One that enforces nothing sends nothing, and leaves agents to the controller that does.
    least = confirmed_epoch(nodes, earlier) if context.policy.enforces else 0
    if number:
        wish = Wish(above=least, most=context.capacity.most)
        group = await asyncio.to_thread(context.claims.share, number, wish)
    epoch = group.epoch if group else context.store.next_epoch(least)
    context.store.fence(epoch, number)
    claims = Claims(epoch, group)
    context.fleet.owners.restore(context.store.learnt(OWNERS), time.monotonic())

    async def epoch_above(known: int) -> bool:
        """Whether the database shows a newer epoch."""
        with suppress(Unavailable):
            await _share(context, reconciler, known)
        return claims.epoch > known

    reconciler = Reconciler(
        fleet=FencedFleet(
            context.fleet,
            lambda: context.leadership.proven,
            epoch,
            earlier=earlier,
            enforces=lambda: reconciler.policy.enforces,
            claims=claims,
            epoch_above=epoch_above if group else None,
        ),
        store=context.store,
        source=context.source,
        policy=context.policy,
        learner=learner,
        solver=SolverFunctions(prepare=Solver, check=check, frontier=frontier),
        planners=context.planners,
        background=context.background,
        claims=claims,
        pacing=Pacing(context.config.interval_s, context.watch_s, context.config.ttl_s),
        now_s=time.monotonic,
        unix_s=time.time,
        unready=lambda: context.warming.wait,
        rates=rates,
        prices=prices.asked,
        reports=tuple(newest.values()),
        adopt=context.fleet.owners.adopt,
        power_table=PowerTable(context.store) if group else None,
    )
    if broken:
        reconciler.ask_reload()  # the first pass says what is wrong with it
    return reconciler


async def _lead(
    context: ServiceContext,
    reconciler: Reconciler,
    rates: PrometheusRates,
    prices: PrometheusPrices,
    held: asyncio.Task[str],
) -> None:
    """Steps, boards and heartbeats until a signal stops the process, which then releases every GPU,
    or until the leader lock is lost (`held` ends): then nothing more is sent, and leases run out or
    pass to the next leader.
    """
    tasks = [
        asyncio.create_task(reconciler.run(), name="loop"),
        asyncio.create_task(_publish(context, reconciler), name="boards"),
        asyncio.create_task(reconciler.keep_leases(), name="heartbeat"),
        asyncio.create_task(reconciler.write_log(), name="log"),
        asyncio.create_task(_time_event_loop(context, reconciler), name="loop lag"),
        asyncio.create_task(rates.run(lambda: reconciler.policy.jobs), name="rates"),
        asyncio.create_task(prices.run(lambda: reconciler.policy), name="prices"),
        asyncio.create_task(_keep_owners(context, reconciler.claims), name="owners"),
    ]
    if reconciler.claims.group:
        tasks.append(asyncio.create_task(_follow(context.history), name="history"))
        tasks.append(asyncio.create_task(_keep_sharing(context, reconciler), name="claims"))
        tasks.append(asyncio.create_task(_show(context, reconciler), name="parts"))
    outdated = asyncio.create_task(_outdated(context, reconciler), name="newer terms")
    stop = asyncio.create_task(context.stopping.wait())
    await asyncio.wait([*tasks, held, outdated, stop], return_when=asyncio.FIRST_COMPLETED)
    ended = next((one for one in (held, outdated) if one.done()), None)
    if ended is not None and not stop.done():
        reconciler.stand_down(ended.result())
        log(ended.result())
    for task in (*tasks, outdated, stop):
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    try:
        async with asyncio.timeout(STOP_LIMIT_S):
            await reconciler.stop("the controller stops")
    except TimeoutError:
        log("not all GPUs were released in time; their leases run out", "error")
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _outdated(context: ServiceContext, reconciler: Reconciler) -> str:
    """Why this term ends: agents have to be told a newer one, or this controller reaches none of
    them, and another of the store may.
    """
    while True:
        await asyncio.sleep(OUTDATED_POLL_S)
        group = reconciler.claims.group
        if group and len(group.live) > 1 and reconciler.is_apart:
            context.apart = True
            return "it reaches no agent: its jobs are left to the other controllers of the store"
        if reconciler.policy.enforces and reconciler.leads and reconciler.claims.leads:
            now_s = time.monotonic()
            if why := context.comeback.due(reconciler.seen, reconciler.epoch, now_s):
                return why


async def _share(context: ServiceContext, reconciler: Reconciler, known: int = 0) -> None:
    """Divides the jobs with the other controllers of the store; of callers that wait for an epoch
    above `known`, the first asks. Raises Unavailable.
    """
    async with context.sharing:
        if not known or reconciler.epoch <= known:
            number = context.leadership.number
            wish = replace(reconciler.wish(), most=context.capacity.most)
            reconciler.follow(await asyncio.to_thread(context.claims.share, number, wish))
            context.fleet.watch(reconciler.agents())


async def _keep_sharing(context: ServiceContext, reconciler: Reconciler) -> None:
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(SHARE_CHECKS * context.config.timing.check_s):
                await reconciler.to_share.wait()
        reconciler.to_share.clear()
        with suppress(Unavailable):  # the lock's own check ends the term
            await _share(context, reconciler)
        await asyncio.sleep(SHARE_S_MIN)


def _part(board: Board, address: str, until_s: dict[str, float]) -> str:
    """This controller's part of the board, as JSON. `until_s`: jobs that this controller needs from
    others, each until that time.
    """
    asked = {name for _, part in parts_of(board) for name in part.asks}
    jobs = {job.view.policy.name: job for job in board.jobs}
    shown = replace(
        part_of(board),
        controller=address,
        rows=tuple(map(STANDING.json, board.jobs)),
        jobs={
            name: job_json(jobs[name], board.view, policy=board.policy)
            for name in asked & jobs.keys()
        },
        asks=tuple(name for name, at_s in until_s.items() if at_s > time.monotonic()),
    )
    return json.dumps(asdict(shown))


async def _show(context: ServiceContext, reconciler: Reconciler) -> None:
    """Shows this controller's jobs to the others of its store, and theirs here."""
    number, port = context.leadership.number, context.address.rpartition(":")[2]
    address = f"{socket.gethostname()}:{port}"
    while True:
        await asyncio.sleep(SHOW_S)
        if (board := reconciler.board) is not None:
            with suppress(Unavailable):  # tried again
                content = await asyncio.to_thread(_part, board, address, context.asked.copy())
                shown = await asyncio.to_thread(context.claims.show, number, content)
                events = await asyncio.to_thread(context.store.events, limit=SHOWN)
                reconciler.show_elsewhere(shown, events)


async def _publish(context: ServiceContext, reconciler: Reconciler) -> None:
    """Every board, to the page and the history; a line for each of its events."""
    events = EventLog()
    while True:
        board = await reconciler.next_board()
        context.publisher.publish(board)
        await asyncio.to_thread(context.history.add, board, reconciler.claims.leads)
        events.write(board.lines)
        if board.pass_number == BEGUN_BOARDS:
            context.sweeper.freeze()
        elif board.pass_number > BEGUN_BOARDS:
            context.sweeper.tend()


async def _keep_owners(context: ServiceContext, claims: Claims) -> None:
    """Which GPU is whose outlives this controller: a lie after a restart comes second as well.

    While this controller cannot know who was first it reads again what an earlier one left, and
    writes nothing over it: a store that answers garbage for a while costs no node its GPUs.
    """
    owners, store, kept = context.fleet.owners, context.store, ""
    begun_s = time.monotonic()
    while True:
        await asyncio.sleep(OWNERS_EVERY_S)
        now_s = time.monotonic()
        with suppress(Unavailable, ValueError):  # tried again
            if now_s - begun_s <= EQUAL_S or not claims.leads:
                text = await asyncio.to_thread(store.learnt, OWNERS)
                if text != kept:
                    owners.restore(text, now_s)
            elif (text := owners.text(now_s)) != kept:
                await asyncio.to_thread(store.keep_learnt, OWNERS, text)
            kept = text


async def _time_event_loop(context: ServiceContext, reconciler: Reconciler) -> None:
    """How late the event loop runs what is due: heartbeats and streams are as late."""
    while True:
        due_s = time.monotonic() + LAG_POLL_S
        await asyncio.sleep(LAG_POLL_S)
        now_s = time.monotonic()
        late_s = max(0.0, now_s - due_s)
        reconciler.run_late(late_s)
        context.capacity.run_late(late_s, reconciler.claims.count, now_s)
