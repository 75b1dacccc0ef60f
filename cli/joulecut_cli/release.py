"""`joulecut release` and `joulecut resume`: a node without any open device handle, for a while.

A GPU reset, a MIG change or a driver upgrade must wait for every client of the driver; this
makes ours leave, after it has given every GPU back.
"""

import time

from joulecut_cli.agent_client import Agent, add_flags
from joulecut_wire import duration
from joulecut_wire.command import FINE, Parser

WINDOW_S_MAX = 3600.0  # the keeper's own bound: a forgotten window must end


def run(argv: list[str]) -> int:
    """Raises BadInput for a bad flag or address, Unavailable where the agent cannot do it."""
    parser = Parser(
        "joulecut release",
        "Gives every GPU of a node back, and drops every device handle until the time is over.",
    )
    add_flags(parser)
    parser.add_argument(
        "--for", dest="duration", metavar="TIME", required=True, help="90s, 10m, up to 1h"
    )
    given = parser.parse_args(argv)
    window_s = duration.seconds(given.duration, "--for", WINDOW_S_MAX)
    agent = Agent(given)
    left_s = agent.release(window_s, given.reason)
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + left_s))
    print(f"{agent.address} released until {until}: no device is read or set, no handle is open")
    return FINE


def resume(argv: list[str]) -> int:
    """Ends a window early. Raises BadInput, Unavailable."""
    parser = Parser("joulecut resume", "Ends a release window of a node before its time is over.")
    add_flags(parser)
    given = parser.parse_args(argv)
    agent = Agent(given)
    agent.resume(given.reason)
    print(f"{agent.address} resumed")
    return FINE
