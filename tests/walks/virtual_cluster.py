"""A cluster on a virtual clock: real controllers and a standby, simulated agents and outside world.

Controllers are put together as the product does it, with the real client of agents; its messages
are encoded and decoded. Around them stand agents of which one lies, a lock server that takes the
lock from a silent leader, a disk that fails, a Prometheus that is hostile, and a network that can
be cut. What the judge needs is written down as it happens.
"""

import asyncio
import contextvars
import json
import random
import resource
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpc.aio
from agent_farm import CARD, Job
from at_once import AtOnce
from lying_node import WalkedNode
from virtual_time import Busy, Clock, Loop, Owner

from joulecut_controller import config, process
from joulecut_controller.cluster.history import History
from joulecut_controller.election.claim_table import ClaimTable
from joulecut_controller.election.leader_lock import Timing
from joulecut_controller.election.leadership import Leadership
from joulecut_controller.fleet.grpc_fleet import MESSAGE_BYTES_MAX, GrpcFleet
from joulecut_controller.garbage import Sweeper
from joulecut_controller.metrics.collector import MetricsEndpoint
from joulecut_controller.ports import Event, Record
from joulecut_controller.service_context import ServiceContext
from joulecut_controller.solver_warmup import SolverWarmup
from joulecut_controller.sources.policy_file import PolicyFile
from joulecut_controller.sources.prometheus import Access, Prometheus
from joulecut_controller.store.database import DatabaseStore, open_store
from joulecut_controller.term import lead_term, wait_for_leadership
from joulecut_controller.view import BUDGET_JOB
from joulecut_controller.web.board_cache import Publisher
from joulecut_controller.web.commands import CommandChannel
from joulecut_sim.plant import Iteration, Noise, Plant
from joulecut_sim.profile import rows, write
from joulecut_sim.skus import find
from joulecut_wire.errors import Unavailable, described
from joulecut_wire.http_client import Answer

GPUS, STAGES, MICROBATCHES, SCALE = 2, 2, 4, 0.6  # an iteration of 0.8 s
HONEST, LIAR = ("n0", "n1", "n2", "n4"), "n3"
JOBS = {"blue": ("n0", "n1"), "red": ("n2", LIAR), "green": ("n4",)}
INTERVAL_S, TTL_S = 4.0, 12.0
WATCH_S = 1.0
TIMING = Timing(check_s=1.0, hold_s=8.0, timeout_s=2.0)
BUDGET_W, NODE_W = 3400.0, 1000.0  # ten cards of 500 W
LATENCY_S = 0.02
RESTART_S = 1.0
STUDIED_EACH = 20  # of the questions beside plans one is answered: each takes a tenth of a second
DISK = "the disk is full: free space"
WRITES = ("next_", "record", "keep_", "remove_", "writing")
DEEP = '{"a":' * 3000
GARBAGE = ("", "{", "null", "[]", "7", '{"a": [1]}', '{"a": {"b": "c"}}', "[[[[1]]]]", DEEP)
ANSWERS = ("right", "nested", "nan", "many", "silent", "slow", "page", "huge")
Note = Callable[..., None]


class Ended(Exception):
    """A simulated agent ends a call."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self.code = code


class Call:
    """What an agent sees of a call."""

    async def abort(self, code: grpc.StatusCode, _: str) -> None:
        raise Ended(code)


def _failed(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details="of the walk")


class Stream:
    """The messages of one agent, as the client of gRPC gives them."""

    def __init__(self, cable: "Cable", messages: Any) -> None:
        self._cable, self._messages = cable, messages
        self._reading: asyncio.Task[Any] | None = None

    async def read(self) -> Any:
        with self._cable.errors():
            self._reading = self._cable.on_node(self._next())
            message = await self._reading
            self._cable.check()
            return message if message is grpc.aio.EOF else _carried(message)

    async def _next(self) -> Any:
        return await anext(self._messages, grpc.aio.EOF)

    def cancel(self) -> None:
        if self._reading is not None:
            self._reading.cancel()


def _carried(message: Any) -> Any:
    raw = message.SerializeToString()
    if len(raw) > MESSAGE_BYTES_MAX:
        raise Ended(grpc.StatusCode.RESOURCE_EXHAUSTED)
    return type(message).FromString(raw)


class Cable:
    """The stub of one agent, for one controller."""

    def __init__(self, world: "World", controller: "Controller", address: str) -> None:
        self._world, self._controller, self._address = world, controller, address

    def check(self) -> None:
        if self._controller.dead or self._address in self._controller.cut:
            raise Ended(grpc.StatusCode.UNAVAILABLE)

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except Ended as ended:
            raise _failed(ended.code) from None
        except TimeoutError:
            raise _failed(grpc.StatusCode.DEADLINE_EXCEEDED) from None

    def on_node(self, work: Any) -> asyncio.Task[Any]:
        """The work as the node's own, with the node's clock."""
        return asyncio.get_running_loop().create_task(work, context=self._world.context.copy())

    def _node(self) -> WalkedNode:
        self.check()
        node = self._world.at.get(self._address)
        if node is None:
            raise Ended(grpc.StatusCode.UNAVAILABLE)
        return node

    async def _ask(self, name: str, request: Any, timeout: float) -> Any:
        with self.errors():
            async with asyncio.timeout(timeout):
                job = getattr(request, "job", "") if name != "Clear" else ""
                may = self._world.may(self._controller, job, self._address)
                await asyncio.sleep(LATENCY_S)
                call = getattr(self._node(), name)
                if name in ("Apply", "Renew", "Clear"):
                    self._world.note(
                        "sent",
                        node=self._node().name,
                        leads=may,
                        ttl_s=getattr(request, "ttl_s", 0.0),
                    )
                return _carried(await self.on_node(call(_carried(request), Call())))

    async def Describe(self, request: Any, timeout: float) -> Any:
        return await self._ask("Describe", request, timeout)

    async def Apply(self, request: Any, timeout: float) -> Any:
        return await self._ask("Apply", request, timeout)

    async def Renew(self, request: Any, timeout: float) -> Any:
        return await self._ask("Renew", request, timeout)

    async def Clear(self, request: Any, timeout: float) -> Any:
        return await self._ask("Clear", request, timeout)

    def Watch(self, request: Any) -> Stream:
        async def messages() -> Any:
            async for message in self._node().Watch(request, Call()):
                yield message

        return Stream(self, messages())


class Channel:
    async def close(self) -> None:
        """Nothing is open."""


class Fleet(GrpcFleet):
    """The real client of agents, on cables instead of sockets."""

    def __init__(self, world: "World", controller: "Controller", addresses: Any) -> None:
        self._world, self._controller = world, controller
        super().__init__(addresses, watch_s=WATCH_S)

    def _open(self, address: str) -> None:
        self._channels[address] = Channel()
        self._stubs[address] = Cable(self._world, self._controller, address)


class LockServer:
    """A database's session locks: a number for each controller, and the leader's. A controller
    that is silent for `hold_s` loses both.
    """

    def __init__(self, world: "World") -> None:
        self._world, self.leader, self._numbers = world, 0, 0
        self.sessions: dict[int, Controller] = {}
        self._heard_s: dict[int, float] = {}

    def number(self, controller: "Controller") -> int:
        """Of its living session; 0 without one."""
        for number, heard_s in list(self._heard_s.items()):
            if self._world.clock.now_s - heard_s > TIMING.hold_s:
                self.end(number)
        return next((n for n, one in self.sessions.items() if one is controller), 0)

    def end(self, number: int) -> None:
        if self.sessions.pop(number, None) is not None:
            del self._heard_s[number]
            self._world.note("started")  # another may take its jobs, in a new epoch
            self.leader = 0 if self.leader == number else self.leader

    def drop(self, controller: "Controller") -> None:
        self.end(self.number(controller))

    def begin(self, controller: "Controller") -> int:
        number = self.number(controller)
        if not number:
            self._numbers = number = self._numbers + 1
            self.sessions[number] = controller
            self._world.note("started")
        self.hear(number)
        return number

    def hear(self, number: int) -> None:
        self._heard_s[number] = self._world.clock.now_s
        self.leader = self.leader or number

    def living(self, _: Any) -> tuple[dict[int, int], int]:
        """As the claims of jobs ask for it; a session is its number here."""
        self.number(None)  # type: ignore[arg-type]
        return {number: number for number in self.sessions}, self.leader


class Lock:
    """Implements `LeaderLock` for one controller."""

    holder = "joulecut-controller other:1"

    def __init__(self, server: LockServer, controller: "Controller") -> None:
        self._server, self._controller = server, controller
        self.number, self._joined = 0, False

    @property
    def lost(self) -> bool:
        return not self.number or self._server.number(self._controller) != self.number

    def _ask(self) -> None:
        if self._controller.dead or self._controller.disk == "down":
            raise Unavailable("the database does not answer")

    def acquire(self) -> bool:
        self._ask()
        self.number = self._server.begin(self._controller)
        self._joined = self._server.leader == self.number
        return self._joined

    def join(self) -> bool:
        self._joined = True
        return self.check()

    def check(self) -> bool:
        self._ask()
        if self.lost or not self._joined:
            return False
        self._server.hear(self.number)
        return True

    def release(self) -> None:
        self._joined = False
        self._server.drop(self._controller)


class Store:
    """A controller's view of the one database: `full` writes nothing, `down` answers nothing, and
    of a `corrupt` one half of the texts are garbage.
    """

    def __init__(self, real: DatabaseStore, controller: "Controller", rng: random.Random) -> None:
        self._real, self._controller, self._rng = real, controller, rng
        self._number = 0

    def fence(self, term: int, number: int = 0) -> None:
        self._number = number
        self._real.fence(0 if number else term)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name == "close" or not callable(found):
            return found

        def call(*given: Any, **more: Any) -> Any:
            disk, writes = self._controller.disk, name.startswith(WRITES)
            if self._controller.dead or disk == "down" or (disk == "full" and writes):
                raise Unavailable(f"store: {DISK}")
            if writes and self._number not in (0, self._controller.number):
                raise Unavailable("store: the database has ended this controller's session")
            answer = found(*given, **more)
            return self._garbled(answer) if disk == "corrupt" else answer

        return call

    def _garbled(self, answer: Any) -> Any:
        if isinstance(answer, tuple):
            return tuple(map(self._garbled, answer))
        if self._rng.random() < 0.5:
            return answer
        if isinstance(answer, Record):
            return replace(answer, content=self._garbled_text(answer.content))
        if isinstance(answer, Event):
            return replace(answer, detail=self._garbled_text(answer.detail))
        return self._garbled_text(answer) if isinstance(answer, str) else answer

    def _garbled_text(self, text: str) -> str:
        if self._rng.random() < 0.4:
            return self._rng.choice(GARBAGE)
        number = self._rng.choice(("NaN", "1e999", "-5", "null", '"x"', "1" + "0" * 400))
        digits = [i for i, letter in enumerate(text) if letter.isdigit()]
        if self._rng.random() < 0.3 or not digits:
            return text[: self._rng.randrange(len(text) + 1)]
        at = self._rng.choice(digits)
        return text[:at] + number + text[at + 1 :]


class HostilePrometheus:
    """Stands for `RateServer` and its HTTP: the client that reads the answer is the real one."""

    def __init__(self, world: "World") -> None:
        self._world, self.answer = world, "right"

    def connect(self) -> Prometheus:
        client = Prometheus("http://127.0.0.1:9", Access(), timeout_s=5.0)
        client._server = self
        return client

    def ask(self, path: str, *, within_s: float, **_: Any) -> Answer:
        rate = f"{1.0 / self._world.period_s('green'):.9g}"
        if self.answer in ("silent", "slow"):
            self._world.clock.late_s = within_s if self.answer == "silent" else 0.9 * within_s
        if self.answer == "silent":
            raise TimeoutError("no answer within 5 s")
        deep = "[" * 50_000 + "]" * 50_000
        begin, end = '{"data": {"resultType": "vector", "result": [', "]}}"
        body = {
            "nested": begin + deep + end,
            "nan": begin + '{"value": [1, "NaN"]}' + end,
            "many": begin + ", ".join(['{"value": [1, "1"]}'] * 3) + end,
            "page": "<html>",
            "huge": '{"data": {"resultType": "scalar", "result": [1, 1' + "0" * 400 + end,
        }.get(self.answer, f'{begin}{{"value": [1, "{rate}"]}}{end}')
        return Answer(200, "OK", None, body.encode())


class Controller(Owner):
    """One controller process: stopped, killed, started again; `disk` is how its store fails."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__()
        self.world, self.name = world, name
        self.dead, self.disk = False, ""
        self.cut: frozenset[str] = frozenset()  # addresses of agents that it does not reach
        self._stopping: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def number(self) -> int:
        return self.world.lock.number(self)

    def start(self) -> None:
        token = Owner.current.set(self)
        self._task = asyncio.create_task(self._live(), name=f"controller {self.name}")
        Owner.current.reset(token)

    def kill(self) -> None:
        """Nothing of it has an effect from now on; the kernel ends its sessions."""
        self.dead = True
        self.world.lock.drop(self)
        self.go_on(asyncio.get_running_loop())
        if self._stopping is not None:
            self._stopping.set()

    async def ended(self) -> None:
        assert self._task is not None
        await self._task

    async def _live(self) -> None:
        try:
            await self._serve()
        except Exception as error:
            if not self.dead:
                self.world.note("ended", wanted=False, status=described(error))
                self.world.fallen(self)
        else:
            if not self.dead:
                self.world.note("ended", wanted=False, status="0")
                self.world.fallen(self)

    async def _serve(self) -> None:
        """As `joulecut_controller.process` does it, without page, sockets and worker processes."""
        world = self.world
        made = config.read(world.folder / "c.yaml")
        made = replace(made, timing=TIMING, prometheus=world.prometheus)
        real = open_store(made.store, base=made.base)
        store: Any = Store(real, self, random.Random(world.rng.random()))
        source, self._stopping = PolicyFile(made.policy), asyncio.Event()
        fleet = Fleet(world, self, made.agents.addresses())
        await fleet.start()
        following = asyncio.create_task(process._follow_agents(made.agents, fleet))
        warming = SolverWarmup()
        warming.wait = ""
        channel = CommandChannel()
        context = ServiceContext(
            config=made, source=source, policy=source.load(), store=store, fleet=fleet,
            watch_s=WATCH_S, leadership=Leadership(Lock(world.lock, self), TIMING),
            publisher=Publisher(), history=History(store), metrics=MetricsEndpoint(),
            commands=channel, planners=AtOnce(), background=world.studies, address="http=walk",
            warming=warming, sweeper=world.sweeper, stopping=self._stopping,
            claims=ClaimTable(store, world.lock.living),
        )  # fmt: skip
        try:
            while (ready := await wait_for_leadership(context)) is not None:
                await lead_term(context, ready)
                context.metrics.text(False)
                world.sweeper.settle()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await fleet.stop()
            real.close()


class World:
    """Nodes, jobs, controllers and what fails around them."""

    def __init__(self, folder: Path, seed: int, note: Note) -> None:
        self.folder, self.rng, self.clock = folder, random.Random(seed), Clock()
        self._note = note
        self.begun_s, self.context = self.clock.now_s, contextvars.copy_context()
        self.lock = LockServer(self)
        self.prometheus = HostilePrometheus(self)
        self.studies = Busy(STUDIED_EACH)
        self.at: dict[str, WalkedNode] = {}
        self.nodes: dict[str, WalkedNode] = {}
        self.controllers: list[Controller] = []
        self._plants: dict[str, Plant] = {}
        self._jobs: dict[str, Job] = {}
        self._numbers = 0  # of the liar's addresses
        self._tasks: list[asyncio.Task[None]] = []

    def note(self, what: str, **more: Any) -> None:
        self._note({"at_s": self.clock.now_s - self.begun_s, "what": what, **more})

    @property
    def contract(self) -> dict[str, Any]:
        return {
            "gpus": {name: list(node.gpus) for name, node in self.nodes.items()},
            "protected": list(JOBS["blue"]),
            "budget_w": BUDGET_W,
            "liar_w": GPUS * find(CARD, "card").power_limit_min_w,
            "interval_s": INTERVAL_S,
            "ttl_s": TTL_S,
        }

    @property
    def liar(self) -> WalkedNode:
        return self.nodes[LIAR]

    def holders(self) -> dict[str, int]:
        """The rows of the claims."""
        with sqlite3.connect(self.folder / "controller.db", timeout=60.0) as database:
            try:
                return dict(database.execute("SELECT job, holder FROM claim"))
            except sqlite3.OperationalError:  # no controller has made the table
                return {}

    def may(self, controller: Controller, job: str, address: str) -> bool:
        """Whether the database knows the controller, as the one with the job where it is one. A
        power limit is set by the leader, or by the controller of the GPUs' job.
        """
        number, holders = self.lock.number(controller), self.holders()
        if job == BUDGET_JOB:
            node = self.at[address].name if address in self.at else ""
            own = any(holders.get(name) == number for name, on in JOBS.items() if node in on)
            return number > 0 and (number == self.lock.leader or own)
        return number > 0 and (job not in JOBS or holders.get(job) == number)

    def held(self, job: str) -> bool:
        """Whether a plan is in force: a stage that no other waits for keeps its default clock."""
        return any(gpu.clock_mhz for name in JOBS[job] for gpu in self.nodes[name].gpus.values())

    def period_s(self, job: str) -> float:
        """What an iteration of the job takes at the clocks of now."""
        sku = find(CARD, "card")
        stages = self._jobs[job].gpus
        clocks = [min(g.clock_mhz or sku.clock_max_mhz for _, g in stage) for stage in stages]
        return self._plants[job].iterate(tuple(clocks)).duration_s

    async def start(self) -> None:
        self.sweeper = Sweeper()
        sku = find(CARD, "card")
        for name in (*HONEST, LIAR):
            node = self.nodes[name] = WalkedNode(name, self.note, self.rng.randrange(2**31), GPUS)
            self.at[f"unix:/walk/{name}.sock"] = node
        del self.at[f"unix:/walk/{LIAR}.sock"]
        self.liar.others = tuple(self.nodes["n0"].gpus)
        for name, nodes in JOBS.items():
            even = Noise(operation=0.0, gpu_time=0.0, gpu_power=0.0)
            cards = [sku] * STAGES
            plant = _Remembered(cards, MICROBATCHES, time_scale=SCALE, seed=1, noise=even)
            flat = [(self.nodes[n], gpu) for n in nodes for gpu in self.nodes[n].gpus.values()]
            job = Job(name, [flat[stage::STAGES] for stage in range(STAGES)], plant)
            self._jobs[name], self._plants[name] = job, plant
            self._tasks.append(asyncio.create_task(_run(job, sku, reports=name != "green")))
        self._write()
        self._move_liar()
        self._tasks.append(asyncio.create_task(self._look()))
        for name in ("first", "second"):
            self.add(name)

    def add(self, name: str) -> None:
        controller = Controller(self, name)
        self.controllers.append(controller)
        controller.start()

    def fallen(self, controller: Controller) -> None:
        """It ended by itself: the supervisor starts it again."""
        controller.dead = True
        self.lock.drop(controller)
        token = Owner.current.set(None)
        asyncio.get_running_loop().call_later(RESTART_S, self._replace, controller)
        Owner.current.reset(token)

    def _replace(self, controller: Controller) -> None:
        if controller in self.controllers:
            self.controllers.remove(controller)
            self.add(controller.name)

    async def kill(self, controller: Controller) -> None:
        controller.kill()
        if controller not in self.controllers:
            return
        self.controllers.remove(controller)
        await asyncio.sleep(self.rng.uniform(0.5, 5.0))
        self.add(controller.name)

    def renumber(self) -> None:
        """The liar's agent is another one from now on, at a new address: it is heard again."""
        self.liar.lie = ""
        self._move_liar()

    def _move_liar(self) -> None:
        self._numbers += 1
        for address in [one for one, node in self.at.items() if node is self.liar]:
            del self.at[address]
        self.at[f"unix:/walk/{LIAR}-{self._numbers}.sock"] = self.liar
        (self.folder / "agents.txt").write_text("".join(f"{one}\n" for one in self.at))

    async def stop(self) -> None:
        for controller in list(self.controllers):
            controller.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(60.0):
                    await controller.ended()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _look(self) -> None:
        number = 0
        while True:
            await asyncio.sleep(0.25)
            now_s, number = self.clock.now_s, number + 1
            for node in self.nodes.values():
                node.expire(now_s)
            honest = [self.nodes[name] for name in HONEST]
            sum_w = sum(sum(node.limit_w.values()) for node in honest)
            drawn_w = sum(node.drawn_w(gpu) for node in honest for gpu in node.gpus.values())
            if number % 4 == 0:
                holders = self.holders()
                alive = [job for job in JOBS if holders.get(job) in self.lock.sessions]
                shares = [sum(one == n for one in holders.values()) for n in self.lock.sessions]
                self.note("claims", held=len(alive) == len(JOBS), shares=shares)
            self.note("limits", sum_w=sum_w, drawn_w=drawn_w, held=self.held("blue"))
            if number % 100 == 0:
                kib = Path("/proc/self/statm").read_text().split()[1]
                mib = int(kib) * resource.getpagesize() / 2**20
                self.note("memory", pid=1, mib=mib)

    def policy(self, *, broken: bool = False, slowdown: str = "5%") -> None:
        sku = find(CARD, "card")
        pipeline = {
            "schedule": "1f1b", "stages": STAGES, "microbatches": MICROBATCHES, "data_parallel": 2,
            "profile": "profile.csv", "blocking_power_w": sku.blocking_power_w,
        }  # fmt: skip
        jobs: list[dict[str, Any]] = [
            {
                "name": name, "mode": "enforce", "slo": {"max_slowdown": slowdown},
                "match": {"gpus": [f"{node}/0-{GPUS - 1}" for node in nodes]},
                "clocks": {"min_mhz": 900, "granularity": "gpu", "min_dwell": "1s"},
                "verify": {"holdout": "0%"},
            }
            for name, nodes in JOBS.items()
        ]  # fmt: skip
        for job in jobs[:2]:
            job |= {"pipeline": pipeline, "ranks": {"source": "hook"}}
        jobs[2]["pipeline"] = {"schedule": "1f1b", "stages": STAGES, "microbatches": MICROBATCHES}
        jobs[2]["slo"]["rate"] = {"promql": "sum(rate(steps_total[10s]))"}
        policy = {
            "apiVersion": "joulecut/v1", "kind": "Policy", "mode": "enforce", "jobs": jobs,
            "cluster": {"node_power_w": NODE_W, "power_budget_w": BUDGET_W},
        }  # fmt: skip
        text = json.dumps(policy)
        (self.folder / "policy.yaml").write_text(text[: len(text) // 2] if broken else text)

    def _write(self) -> None:
        sku = find(CARD, "card")
        with (self.folder / "profile.csv").open("w", newline="") as file:
            write(rows(sku, STAGES, scale=SCALE, noise=0.0, seed=1), file)
        self.policy()
        made = {
            "agents": {"file": "agents.txt"}, "policy": "policy.yaml",
            "store": "sqlite:///controller.db", "listen": {"http": "127.0.0.1:0"},
            "interval_s": INTERVAL_S, "lease": {"ttl_s": TTL_S},
        }  # fmt: skip
        (self.folder / "c.yaml").write_text(json.dumps(made))


class _Remembered(Plant):
    """Without noise an iteration at the same clocks is the same."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.iterate = lru_cache(4096)(self.iterate)


async def _run(job: Job, sku: Any, *, reports: bool) -> None:
    """The job, reporting or not."""
    if reports:
        await job.run(sku)
    while True:
        clocks = tuple(
            min(g.clock_mhz or sku.clock_max_mhz for _, g in stage) for stage in job.gpus
        )
        done: Iteration = job.plant.iterate(clocks)
        for stage, run in zip(job.gpus, done.stages, strict=True):
            for _, gpu in stage:
                gpu.draw(run.energy_j / done.duration_s, time.monotonic())
        await asyncio.sleep(done.duration_s)


def loop_of(world: World) -> Loop:
    """An event loop on the world's clock; what no task awaits is noted."""
    loop = Loop(world.clock)

    def crashed(_: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        error, task = about.get("exception"), about.get("task")
        if error is None and isinstance(task, asyncio.Task) and task.get_name() == "studies":
            return  # forgotten with its controller: most of its questions have no answer (Busy)
        owner = Owner.current.get()
        if isinstance(owner, Controller) and owner.dead:
            return
        message = f"{about.get('message', '')}: {task}"
        what = described(error) if isinstance(error, Exception) else message
        world.note("crashed", text=what)

    loop.set_exception_handler(crashed)
    return loop
