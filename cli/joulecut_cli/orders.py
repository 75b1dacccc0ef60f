"""Orders to a controller (`pause`, `resume`, `adopt`) and an agent (`release`, `resume`).

`pause` and `resume` need the standard library alone; gRPC is loaded once an agent is called.
"""

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from joulecut_cli.controller_client import (
    DEFAULT_URL,
    Controller,
    Json,
    has_node,
    quoted,
    understood,
)
from joulecut_cli.status import add_controller_flags
from joulecut_wire import duration
from joulecut_wire.command import FAILED, FINE, Parser
from joulecut_wire.errors import BadInput

if TYPE_CHECKING:
    from joulecut_cli.agent_client import Agent

DEFAULT_NODE = "unix:/run/joulecut/agent.sock"  # of the units; over TCP: with a certificate
WINDOW_S_MAX = 3600.0  # the keeper's own bound: a forgotten window must end
NODE_FLAGS = ("agent", "cert", "key", "ca", "server_name")
RESUMABLE = (
    "JOB or --all (a paused job), or the node whose release window ends: HOST:PORT, unix:PATH, "
    "--agent ADDRESS, or HOST with --cert, --key, --ca"
)


@understood
def pause(argv: list[str]) -> int:
    """Raises BadInput for a bad flag or an unknown job, Unavailable without a leader."""
    parser = Parser(
        "joulecut pause",
        "Resets a job's clocks and changes none of them until `joulecut resume`.",
    )
    add_order_flags(parser)
    given = parser.parse_args(argv)
    _check_named(parser, given, "JOB or --all")
    controller = Controller(given.controller)
    path = "pause" if given.all else f"jobs/{quoted(given.job)}/pause"
    return print_result(controller.order(path, all=given.all, reason=given.reason), given)


@understood
def resume(argv: list[str]) -> int:
    """Resumes a job at its controller, or ends the release window of a node at its agent.

    An address of an agent, or a flag for its certificate, means the node; a bare word the job.
    Raises BadInput where the words fit neither, Unavailable where nothing answers.
    """
    parser = Parser(
        "joulecut resume",
        "Ends a pause or a restore and re-arms a tripped breaker. With a node's address it ends "
        "that node's release window instead.",
    )
    add_order_flags(parser)
    parser.add_argument("--agent", metavar="ADDRESS", default="", help="the node, as HOST:PORT")
    add_certificate_flags(parser)
    parser.set_defaults(controller="")
    given = parser.parse_args(argv)
    of_node = [f"--{name.replace('_', '-')}" for name in NODE_FLAGS if getattr(given, name)]
    of_job = [f"--{name}" for name in ("all", "controller", "json") if getattr(given, name)]
    if of_node and of_job:
        raise BadInput(parser.prog, f"{of_node[0]} and {of_job[0]}", RESUMABLE)
    if of_node or (not of_job and _is_agent_address(given.job)):
        given.node = given.agent or given.job or DEFAULT_NODE
        agent = agent_of(given)
        agent.resume(given.reason)
        print(f"{agent.address} resumed")
        return FINE
    _check_named(parser, given, RESUMABLE)
    path = "resume" if given.all else f"jobs/{quoted(given.job)}/resume"
    controller = Controller(given.controller or DEFAULT_URL)
    try:
        done = controller.order(path, all=given.all, reason=given.reason)
    except BadInput:
        _raise_if_node(controller, given.job)
        raise
    return print_result(done, given)


def adopt(argv: list[str]) -> int:
    """Raises BadInput where the node shows no such GPU, Unavailable without a leader."""
    parser = Parser(
        "joulecut adopt",
        "Assigns to a node the GPUs that it and another node report, after a repair, a move or a "
        "new name.",
    )
    parser.add_argument("node", metavar="NODE", help="as `joulecut status` names it")
    parser.add_argument("--reason", metavar="TEXT", default="", help="recorded in the audit log")
    add_controller_flags(parser)
    given = parser.parse_args(argv)
    done = Controller(given.controller).order("adopt", reason=given.reason, node=given.node)
    return print_result(done, given)


def release(argv: list[str]) -> int:
    """A GPU reset, a MIG change and a driver upgrade wait for every client of the driver.

    Raises BadInput for a bad flag or address, Unavailable where the agent refuses.
    """
    parser = Parser(
        "joulecut release",
        "Resets the clocks of every GPU of a node and closes all device handles for a while, so "
        "that the driver or a GPU can be reset.",
    )
    parser.add_argument(
        "node", metavar="NODE", nargs="?", default=DEFAULT_NODE,
        help=f"the agent's gRPC address: HOST, HOST:PORT or unix:PATH; default {DEFAULT_NODE}",
    )  # fmt: skip
    parser.add_argument("--reason", metavar="TEXT", default="", help="recorded in the audit log")
    add_certificate_flags(parser)
    parser.add_argument(
        "--for", dest="duration", metavar="TIME", required=True, help="90s, 10m, up to 1h"
    )
    given = parser.parse_args(argv)
    window_s = duration.seconds(given.duration, "--for", WINDOW_S_MAX)
    agent = agent_of(given)
    left_s = agent.release(window_s, given.reason)
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + left_s))
    print(f"{agent.address} released until {until}: no device is read or set, no handle is open")
    return FINE


def add_order_flags(parser: Parser, metavar: str = "JOB") -> None:
    """The flags of every order to a controller."""
    parser.add_argument(
        "job", metavar=metavar, nargs="?", default="", help="as `joulecut status` names it"
    )
    parser.add_argument("--all", action="store_true", help="every job")
    parser.add_argument("--reason", metavar="TEXT", default="", help="recorded in the audit log")
    add_controller_flags(parser)


def _check_named(parser: Parser, given: argparse.Namespace, allowed: str) -> None:
    """Raises BadInput unless either a job is named or all are."""
    if bool(given.job) == given.all:
        what = "a name and --all" if given.job else "nothing named"
        raise BadInput(parser.prog, what, allowed)


def add_certificate_flags(parser: Parser) -> None:
    parser.add_argument("--cert", metavar="FILE", type=Path, help="client certificate (TLS)")
    parser.add_argument("--key", metavar="FILE", type=Path, help="its private key")
    parser.add_argument("--ca", metavar="FILE", type=Path, help="CA certificate of the agents")
    parser.add_argument(
        "--server-name", metavar="NAME", default="", help="in the agent's certificate, if not HOST"
    )


def agent_of(given: argparse.Namespace) -> "Agent":
    """The agent that `node` and the certificate flags name. Raises BadInput."""
    from joulecut_cli.agent_client import Agent

    return Agent(given)


def print_result(done: Json, given: argparse.Namespace) -> int:
    """Prints the controller's answer; FAILED where an agent did not carry out its part."""
    print(json.dumps(done, indent=2) if given.json else f"{done['sentence']}.")
    return FINE if done["complete"] else FAILED


def _raise_if_node(controller: Controller, name: str) -> None:
    """Raises BadInput for the name of a node: `restore` takes one, `resume` takes jobs."""
    board = controller.brief()
    if has_node(board, name):
        jobs = ", ".join(sorted({hold["job"] for hold in board["holds"]} - {""})[:10])
        held = f"the jobs that are held: {jobs}" if jobs else "no job is held"
        allowed = f"JOB or --all ({held}); or HOST:PORT for a release window"
        raise BadInput("joulecut resume", f"{name} is a node, and jobs are resumed", allowed)


def _is_agent_address(word: str) -> bool:
    host, colon, port = word.rpartition(":")
    is_port = bool(colon and host) and port.isascii() and port.isdigit()
    return word.startswith("unix:") or is_port or word in {"localhost", "127.0.0.1", "[::1]", "::1"}
