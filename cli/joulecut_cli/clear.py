"""`joulecut clear`: gives a node's GPUs back now, for a person on call who may do just that.

It changes no plan: a controller that enforces may ask again with its next one. To keep GPUs
from being slowed, take the job out of enforcement, or release the node.
"""

from joulecut_cli.agent_client import Agent, add_flags
from joulecut_wire.command import FAILED, FINE, Parser


def run(argv: list[str]) -> int:
    """Raises BadInput for a bad flag or address, Unavailable where the agent does not do it."""
    parser = Parser("joulecut clear", "Gives the GPUs of a node back to their default now.")
    add_flags(parser)
    parser.add_argument("--job", metavar="NAME", default="", help="only this job's GPUs")
    given = parser.parse_args(argv)
    agent = Agent(given)
    results = agent.clear(given.job, given.reason)
    for result in results:
        done = "given back" if result.accepted else f"NOT given back: {result.reason}"
        print(f"{result.uuid or agent.address} {done}")
    if not results:
        print(f"{agent.address}: nothing to give back")
    return FINE if all(result.accepted for result in results) else FAILED
