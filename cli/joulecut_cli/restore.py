"""`joulecut restore`: reset GPUs to their default now and keep them there.

The controller resets them and changes no clock until `joulecut resume`. Where no controller
answers or leads, the agents are called directly; --agents or --config names their addresses.
"""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from joulecut_cli.controller_client import (
    DEFAULT_URL,
    Controller,
    Gone,
    Json,
    Standby,
    has_node,
    understood,
)
from joulecut_cli.orders import add_certificate_flags, add_order_flags, agent_of, print_result
from joulecut_wire.command import FAILED, FINE, Parser
from joulecut_wire.errors import BadInput, JoulecutError

if TYPE_CHECKING:
    from joulecut_cli.agent_client import Agent

AGENTS_AT_ONCE = 32  # each call is a handshake and a wait; a thousand nodes take some seconds
WAYS = "--agents HOST:PORT,... or --config controller.yaml calls the agents directly"


@understood
def run(argv: list[str]) -> int:
    """Raises BadInput for a bad flag or an unknown name, Unavailable where nothing answers."""
    parser = _parser()
    given = parser.parse_args(argv)
    named = [name for name in (given.job, given.only_job, given.only_node) if name]
    if len(named) + given.all != 1:
        what = "more than one thing named" if named else "nothing named"
        raise BadInput(parser.prog, what, "JOB, NODE or --all")
    agents = _agents(given)
    if given.direct:
        if not agents:
            raise BadInput(parser.prog, "--direct without agents", WAYS)
        return _directly(agents, given)
    controller = Controller(given.controller or DEFAULT_URL)
    try:
        done = controller.order("restore", reason=given.reason, **_what(controller, given))
    except (Gone, Standby) as error:
        if not agents:
            raise type(error)(f"{error}; {WAYS}") from None
        if not given.json:
            count = f"{len(agents)} agent{'s' if len(agents) != 1 else ''}"
            print(f"{error}\nCalling {count} directly.", flush=True)
        return _directly(agents, given)
    return print_result(done, given)


def _parser() -> Parser:
    parser = Parser(
        "joulecut restore",
        "Resets the GPUs of a job, of a node, or all of them to their default now, and keeps "
        "them there until `joulecut resume`.",
    )
    add_order_flags(parser, "JOB|NODE")
    parser.add_argument(
        "--job",
        dest="only_job",
        metavar="JOB",
        default="",
        help="a job, if a node has that name too",
    )
    parser.add_argument(
        "--node",
        dest="only_node",
        metavar="NODE",
        default="",
        help="a node, if a job has that name too",
    )
    parser.add_argument(
        "--agents", metavar="A,B", default="", help="agents to call if no controller answers"
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="the controller's configuration: its agents",
    )
    parser.add_argument("--direct", action="store_true", help="do not ask the controller first")
    add_certificate_flags(parser)
    parser.set_defaults(controller="")
    return parser


def _what(controller: Controller, given: argparse.Namespace) -> dict[str, str | bool]:
    """The API's keys for the target. A bare word names a job or a node, not both."""
    if given.all:
        return {"all": True}
    if given.only_job:
        return {"job": given.only_job}
    if given.only_node:
        return {"node": given.only_node}
    known = controller.brief()
    is_job = any(job["name"] == given.job for job in known["jobs"])
    is_node = has_node(known, given.job)
    if is_job and is_node:
        allowed = f"--job {given.job} or --node {given.job}"
        raise BadInput("joulecut restore", f"{given.job} is a job and a node", allowed)
    return {"node": given.job} if is_node else {"job": given.job}


# -- without a controller --------------------------------------------------------------------


def _agents(given: argparse.Namespace) -> dict[str, "Agent"]:
    """The agents that the flags name, by address. A configuration also says where its controller
    is, unless the flags do. Raises BadInput before any call.
    """
    files = {"cert": given.cert, "key": given.key, "ca": given.ca}
    server_name = given.server_name
    addresses = [one for one in given.agents.split(",") if one]
    if given.agents and not addresses:
        raise BadInput("--agents", f'"{given.agents}" names none', "HOST:PORT,...")
    if given.config is not None:
        from joulecut_controller import config

        settings = config.read(given.config)
        addresses += settings.agents.addresses()
        host, port = settings.http
        if port and settings.web_config is None:
            given.controller = given.controller or f"http://{host}:{port}"
        server_name = server_name or settings.server_name
        if settings.tls is not None and not any(files.values()):
            files = {"cert": settings.tls.cert, "key": settings.tls.key, "ca": settings.tls.ca}
    asked = {"server_name": server_name, **files}
    return {one: agent_of(argparse.Namespace(node=one, **asked)) for one in addresses}


def _directly(agents: dict[str, "Agent"], given: argparse.Namespace) -> int:
    """Clears every target agent; a job may run on any of them."""
    word = given.only_node or ("" if given.only_job else given.job)
    here = [address for address in agents if word and word in (address, address.rpartition(":")[0])]
    if word and not here:  # an agent's address need not have its node's name in it
        here = _on_node(agents, word)
    job = "" if here or given.all or given.only_node else given.only_job or given.job
    if given.only_node and not here:
        allowed = ", ".join(sorted(agents)[:20])
        raise BadInput("joulecut restore", f"no agent at {given.only_node}", allowed)
    reason = given.reason or "joulecut restore"

    def cleared(address: str) -> Json:
        try:
            results = agents[address].clear(job, reason)
        except JoulecutError as error:
            return {"agent": address, "gpus": [], "refused": [str(error)], "kept": ""}
        refused = [f"{one.uuid}: {one.reason}" for one in results if not one.accepted]
        gpus = [one.uuid for one in results if one.accepted and one.uuid]
        kept = agents[address].kept_limits()
        return {"agent": address, "gpus": gpus, "refused": refused, "kept": kept}

    with ThreadPoolExecutor(AGENTS_AT_ONCE) as pool:
        answers = list(pool.map(cleared, here or list(agents)))
    complete = not any(answer["refused"] for answer in answers)
    if given.json:
        print(json.dumps({"complete": complete, "agents": answers}, indent=2))
    else:
        print("\n".join(_lines(answers, job)))
    return FINE if complete else FAILED


def _on_node(agents: dict[str, "Agent"], name: str) -> list[str]:
    """The agents that report this node name; an agent that does not answer is left out."""

    def is_there(address: str) -> bool:
        try:
            return agents[address].describe().node == name
        except JoulecutError:
            return False

    with ThreadPoolExecutor(AGENTS_AT_ONCE) as pool:
        return [one for one, there in zip(agents, pool.map(is_there, agents), strict=True) if there]


def _lines(answers: Sequence[Json], job: str) -> list[str]:
    lines = []
    for answer in answers:
        count = len(answer["gpus"])
        done = f"{count} GPU{'s' if count != 1 else ''} reset" if count else "nothing to reset"
        lines += [f"{answer['agent']}: NOT reset: {why}" for why in answer["refused"]] or [
            f"{answer['agent']}: {done}"
        ]
        lines += [answer["kept"]] if answer["kept"] else []
    if job and not any(answer["gpus"] or answer["refused"] for answer in answers):
        lines.append(
            f"No GPU there is leased to a job named {job}. `--all` resets every leased GPU."
        )
    lines.append("A running controller may set clocks again; `joulecut pause --all` stops it.")
    return lines
