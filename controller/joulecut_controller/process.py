"""The controller process: creates every part, starts them in order, stops them in reverse.

Serves its page first, then waits for the leader lock, and leads a term whenever it holds it.
SIGHUP reads the policy again; SIGTERM and SIGINT release every GPU and end with status 0.
"""

import asyncio
import contextlib
import resource
import signal
import socket
import time
from collections.abc import Callable

from joulecut_controller import workers
from joulecut_controller.cluster.history import History
from joulecut_controller.config import Config
from joulecut_controller.election.claim_table import ClaimTable
from joulecut_controller.election.file_lock import FileLock
from joulecut_controller.election.leader_lock import LeaderLock
from joulecut_controller.election.leadership import Leadership
from joulecut_controller.election.postgres_lock import PostgresLock
from joulecut_controller.fleet.grpc_fleet import GrpcFleet
from joulecut_controller.garbage import Sweeper
from joulecut_controller.log import NAME, log
from joulecut_controller.metrics.collector import MetricsEndpoint
from joulecut_controller.policy.policy import Policy
from joulecut_controller.service_context import ServiceContext
from joulecut_controller.solver_warmup import SolverWarmup
from joulecut_controller.sources.agents import AgentSource
from joulecut_controller.sources.policy_file import PolicyFile
from joulecut_controller.store.database import DatabaseStore, open_store
from joulecut_controller.store.postgres_url import PREFIX as POSTGRESQL
from joulecut_controller.store.postgres_url import parse_postgres_url
from joulecut_controller.store.sqlite import file_of
from joulecut_controller.term import lead_term, wait_for_leadership
from joulecut_controller.web.app import build
from joulecut_controller.web.board_cache import Publisher
from joulecut_controller.web.commands import CommandChannel
from joulecut_controller.web.server import Server
from joulecut_engine.optimize.warmup import warm_up
from joulecut_wire.address import is_loopback
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput, JoulecutError, Unavailable
from joulecut_wire.tls import Pem, Rotating, rotating
from joulecut_wire.web_config import WebConfig

WATCH_S_MAX = 1.0  # agents sample once a second
WATCH_S_MIN = 0.1
# Messages of all agents; each costs a fifth of a millisecond. A larger fleet is watched less often,
# but twice a pass at least.
MESSAGES_PER_S_MAX = 500.0
AGENTS_EVERY_S = 10.0  # a node that joins takes longer to boot
FILES_PER_AGENT = 2  # its socket, and one more while certificates change
FILES_OWN = 256  # store, pages and scrapes, workers


def run(config: Config) -> int:
    """Runs until stopped by a signal. Raises BadInput, Unavailable."""
    agents = _first_agents(config.agents)
    _raise_file_limit(len(agents))
    if config.profiles is not None and not config.profiles.is_dir():
        raise BadInput("profiles", f"no folder {config.profiles}", "a folder of profiles")
    # A policy that is refused leaves no store behind, a controller without a page takes no term.
    source = PolicyFile(config.policy, profiles=config.profiles)
    policy = source.load()
    tls = rotating(config.tls, log) if config.tls else None
    web = _protection(config)
    store = open_store(
        config.store,
        base=config.base,
        password_file=config.store_password_file,
        timeout_s=config.timing.timeout_s,
    )
    try:
        asyncio.run(_serve(config, source, policy, store, agents, tls=tls, web=web))
    finally:
        store.close()
    return FINE


def _first_agents(source: AgentSource) -> tuple[str, ...]:
    """The agents to begin with. Where they are found, waits until there are some: a term that
    begins without any would know no epoch.
    """
    said = ""
    while True:
        try:
            return source.addresses()
        except Unavailable as error:
            if not source.moves:
                raise
            if str(error) != said:
                said = str(error)
                log(f"waiting for agents: {said}")
        time.sleep(AGENTS_EVERY_S)


async def _serve(
    config: Config,
    source: PolicyFile,
    policy: Policy,
    store: DatabaseStore,
    agents: tuple[str, ...],
    *,
    tls: Rotating[Pem] | None,
    web: WebConfig | None,
) -> None:
    """Everything from listening to giving back."""
    stopping = asyncio.Event()
    loop, sweeper = asyncio.get_running_loop(), Sweeper()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # nothing read yet that could be stale
    certificates: dict[str, Callable[[], float | None]] = {}
    if tls:
        certificates["grpc"] = lambda: tls.current().expires_unix_s
    if web:
        certificates["http"] = lambda: web.expires_unix_s
    publisher, metrics = Publisher(), MetricsEndpoint(certificates)
    channel, asked = CommandChannel(), dict[str, float]()
    history = History(store)
    app = build(
        publisher,
        metrics=metrics.text,
        web=web,
        roles=config.roles,
        store=store,
        channel=channel,
        asked=asked,
        history=history,
        links=config.links,
    )
    server = Server(app, *config.http, web)
    await server.start()
    watch_s = _watch_s(config.interval_s, len(agents))
    fleet = GrpcFleet(
        agents, watch_s=watch_s, tls=tls, server_name=config.server_name, store=store.identity()
    )
    await fleet.start()
    following = asyncio.create_task(_follow_agents(config.agents, fleet), name="agents")
    scheme, _, address = server.url.partition("://")
    leadership = Leadership(_leader_lock(config, server.port), config.timing)
    plans, besides = workers.planners(), workers.background()
    warming = SolverWarmup(load=lambda: plans.submit(warm_up).result())
    warmed = asyncio.create_task(_warmed(warming, sweeper), name="warm-up")
    context = ServiceContext(
        config=config,
        source=source,
        policy=policy,
        store=store,
        fleet=fleet,
        watch_s=watch_s,
        leadership=leadership,
        publisher=publisher,
        history=history,
        metrics=metrics,
        commands=channel,
        planners=plans,
        background=besides,
        address=f"{scheme}={address}",
        warming=warming,
        sweeper=sweeper,
        stopping=stopping,
        claims=ClaimTable(store),
        asked=asked,
    )
    try:
        while (newest := await wait_for_leadership(context)) is not None:
            await lead_term(context, newest)
            if not stopping.is_set():
                sweeper.settle()  # much of the term is garbage now, and no lease waits
    finally:
        for task in (warmed, following):
            task.cancel()
        await asyncio.gather(warmed, following, return_exceptions=True)
        plans.end()
        besides.end()
        await fleet.stop()
        await server.stop()
        await leadership.release()


async def _follow_agents(source: AgentSource, fleet: GrpcFleet) -> None:
    """Agents that join or leave. While the source fails, the agents before stay."""
    said = ""
    while source.moves:
        await asyncio.sleep(AGENTS_EVERY_S)
        try:
            await fleet.follow(await asyncio.to_thread(source.addresses))
        except JoulecutError as error:
            if str(error) != said:
                said = str(error)
                log(f"{said}; the agents before stay", "warning")
        else:
            said = ""


def _watch_s(interval_s: float, agents: int) -> float:
    """Seconds between the messages of one agent."""
    wanted_s = min(max(interval_s / 2, WATCH_S_MIN), WATCH_S_MAX)
    return max(wanted_s, min(agents / MESSAGES_PER_S_MAX, interval_s / 2))


def _raise_file_limit(agents: int) -> None:
    """To what the system allows; a warning where that is too little for the agents."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # a sandbox may forbid it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    need = FILES_OWN + FILES_PER_AGENT * agents
    if resource.RLIM_INFINITY != soft < need:
        log(
            f"warning: {soft} open files are allowed, {agents} agents need {need}: LimitNOFILE",
            "warning",
        )


async def _warmed(warming: SolverWarmup, sweeper: Sweeper) -> None:
    await warming.run()
    sweeper.freeze()  # machine code and all it hangs on stays for good


def _leader_lock(config: Config, port: int) -> LeaderLock:
    name = f"{NAME} {socket.gethostname()}:{port}"
    if config.store.startswith(POSTGRESQL):
        place = parse_postgres_url(config.store, config.base, config.store_password_file)
        return PostgresLock(place, config.timing, name)
    return FileLock(file_of(config.store), name)


def _protection(config: Config) -> WebConfig | None:
    """Raises BadInput where the page would be open to a network."""
    web = WebConfig(config.web_config, log) if config.web_config else None
    if web and web.users and (missing := sorted({*config.roles.command} - web.users)):
        log(f"warning: roles: web_config has no user {', '.join(missing):.500}", "warning")
    if not is_loopback(config.http[0]):
        if web is None or web.context() is None:
            allowed = "a loopback address, or TLS by web_config"
            raise BadInput("listen.http", f"{config.http[0]} without encryption", allowed)
        if not web.authenticates:
            log(
                "warning: no authentication on the page; see client_auth_type, basic_auth_users",
                "warning",
            )
    return web
