"""Clocks of a study through the node's agent: one GPU under a lease of the study."""

from joulecut_cli.agent_lease import AgentLease, agent_at, holder
from joulecut_lab.study.bench import DEFAULT_CLOCK
from joulecut_wire.errors import Unavailable

JOB = "joulecut-study"


class AgentClocks:
    """The clock of one GPU of the agent at `address` (unix:PATH), for as long as this lives.

    Raises BadInput on an address that is none, Unavailable where there is no such agent, the
    GPU is not controllable, or a job holds it.
    """

    def __init__(self, address: str, uuid: str) -> None:
        agent = agent_at("--lock-via", address)
        if held := holder(agent, uuid):
            raise Unavailable(held)
        gpu = next(gpu for gpu in agent.describe().gpus if gpu.uuid == uuid)
        highest = gpu.clock_max_mhz or gpu.clocks_mhz[-1]
        self._clocks = tuple(c for c in gpu.clocks_mhz if gpu.clock_min_mhz <= c <= highest)
        self._uuid = uuid
        self._lease = AgentLease(agent, JOB, (uuid,))

    def choices_mhz(self) -> tuple[int, ...]:
        return self._clocks

    def ask(self, clock_mhz: int) -> None:
        assert clock_mhz != DEFAULT_CLOCK
        if refused := self._lease.lock({self._uuid: (0, clock_mhz)}):
            raise Unavailable(f"the agent refuses {clock_mhz} MHz: {refused}")

    def check(self) -> None:
        self._lease.check()

    def close(self) -> None:
        self._lease.close()
