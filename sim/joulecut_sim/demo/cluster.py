"""The demo's processes on their two simulated nodes, from the first to the last.

Two agents, each with the keeper it starts, one controller and one job. Ports are free ones,
found once and kept, so that a restarted process is found where it was.
"""

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from joulecut_sim.card import StateFile
from joulecut_sim.demo import layout
from joulecut_sim.demo.layout import Folder
from joulecut_sim.demo.settings import CARDS_PER_NODE, NODES, STAGES, Settings
from joulecut_sim.demo.supervisor import BACK_S, Child, Recipe, Witness, children
from joulecut_wire.errors import BadInput, not_installed

ANY_PORT = "127.0.0.1:0"
STOP_S_MAX = 15.0  # an agent restores its GPUs on the way out; a busy machine takes its time

_AGENT_READY = re.compile(
    r"joulecut-agent ready node=(?P<node>\S+) metrics=(?P<metrics>\S+) grpc=(?P<grpc>\S+) "
    r"socket=\S+ keeper_pid=(?P<keeper>\d+|-) grpc_socket=(?P<grpc_socket>\S+)"
)
_CONTROLLER_READY = re.compile(r"joulecut-controller ready http=(?P<http>\S+)")
_JOB_READY = re.compile(r"joulecut-sim-job ready")

Say = Callable[[str], None]
Pause = Callable[[float], None]


class Cluster:
    """Starts, watches and ends the processes. `say` prints a line; `pause` sleeps."""

    def __init__(self, folder: Folder, settings: Settings, say: Say, pause: Pause) -> None:
        self._folder = folder
        self._settings = settings
        self._say = say
        self._pause = pause
        self.states = {
            node: StateFile.open(
                folder.state(node), cards=CARDS_PER_NODE, sku=settings.sku.name, node=node
            )
            for node in NODES
        }
        self._agents = {node: Child(self._agent(node)) for node in NODES}
        self._keepers: dict[str, Witness] = {}
        self._controller = Child(
            Recipe(
                "controller",
                (*_command("joulecut-controller"), "--config", str(folder.controller)),
                _CONTROLLER_READY,
            )
        )
        self._job = Child(
            Recipe(
                "job",
                (sys.executable, "-m", "joulecut_sim.job", "--config", str(folder.job)),
                _JOB_READY,
            )
        )
        self._starting: list[Child] = []
        self.metrics: dict[str, str] = {}
        self.page = ""

    def _agent(self, node: str) -> Recipe:
        command = (*_command("joulecut-agent"), "run", "--config", str(self._folder.agent(node)))
        return Recipe(f"agent {node}", command, _AGENT_READY)

    @property
    def _children(self) -> tuple[Child, ...]:
        return (self._job, self._controller, *self._agents.values())

    # -- starting ------------------------------------------------------------------------

    def start(self) -> None:
        """Everything, in order. Raises Unavailable with what a process said before it died."""
        for node, agent in self._agents.items():
            layout.write_agent(self._folder, node, self._settings, ANY_PORT, ANY_PORT)
            agent.start()
        agents = []
        for node, agent in self._agents.items():
            ready = agent.wait_ready(self._pause)
            layout.write_agent(self._folder, node, self._settings, ready["metrics"], ready["grpc"])
            self.metrics[node] = ready["metrics"]
            agents.append(f"unix:{ready['grpc_socket']}")
            if ready["keeper"].isdigit():
                self._keepers[node] = Witness.of(int(ready["keeper"]))
            self._say(f"  agent {node}    pid {agent.pid}")
            self._say(f"  keeper {node}   pid {ready['keeper']}")
        layout.write_controller(self._folder, agents, f"127.0.0.1:{self._settings.port}")
        self._controller.start()
        ready = self._controller.wait_ready(self._pause)
        self.page = ready["http"]
        layout.write_controller(self._folder, agents, self.page)
        self._say(f"  controller      pid {self._controller.pid}")
        self._job.start()
        self._job.wait_ready(self._pause)
        self._say(f"  job             pid {self._job.pid}")

    # -- watching ------------------------------------------------------------------------

    def watch(self) -> None:
        """Restarts dead processes after their delay. Quick; call it often."""
        for child in self._children:
            if how := child.died():
                self._say(f"! {child.recipe.name} {how}; it is started again in {BACK_S:g} s")
            elif child.due():
                child.start()
                self._starting.append(child)
        for child in [child for child in self._starting if child.ready or not child.alive]:
            self._starting.remove(child)
            if child.ready:
                self._say(f"  {child.recipe.name} is back, pid {child.pid}")
        for node, keeper in self._keepers.items():
            if not keeper.alive:
                self._look_for_keeper(node, keeper)

    def _look_for_keeper(self, node: str, before: Witness) -> None:
        """Prints the pid of a keeper that its agent has restarted."""
        pid = next(iter(children(self._agents[node].pid)), 0)
        if pid and pid != before.pid:
            self._keepers[node] = Witness.of(pid)
            self._say(f"! keeper {node} pid {before.pid} is gone; the agent started pid {pid}")

    def at_default(self) -> int:
        """How many GPUs are under no lock, by the simulated cards themselves."""
        return sum(
            state.asked_mhz(index) == (0, 0)
            for state in self.states.values()
            for index in range(state.cards)
        )

    def stop_job(self) -> None:
        self._job.stop(STOP_S_MAX)

    # -- ending --------------------------------------------------------------------------

    def stop(self) -> int:
        """Ends everything in order; how many GPUs are at default then.

        A process that was killed meanwhile left its GPUs to us: what is still locked is
        reset by the same command an operator would type.
        """
        for child in self._children:
            if not child.stop(STOP_S_MAX):
                self._say(f"! {child.recipe.name} did not end by itself and was killed")
        for keeper in self._keepers.values():
            keeper.stop(STOP_S_MAX)
        if self.at_default() < STAGES:
            for node in NODES:
                restore = (*_command("joulecut-agent"), "restore", "--config")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run(  # noqa: S603 -- our own command
                        (*restore, str(self._folder.agent(node))),
                        capture_output=True, check=False, start_new_session=True,
                        timeout=STOP_S_MAX,
                    )  # fmt: skip
        restored = self.at_default()
        for state in self.states.values():
            state.close()
        return restored


def _command(name: str) -> tuple[str, ...]:
    """A command of this installation, independent of PATH."""
    beside = Path(sys.executable).with_name(name)
    if not beside.exists():
        raise not_installed(f"{name} is not installed here", "")
    return (str(beside),)


def check_port(port: int) -> None:
    """Raises BadInput where the page's port is taken; 0 is any and never is."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            what = f"{port}: {error.strerror}"
            raise BadInput("--port", what, "a free port, or 0 for any") from None
