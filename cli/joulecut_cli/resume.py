"""`joulecut resume`: ends what a person, or the breaker, holds a job with; or a release window.

Two things are resumed under one word: a job, at the controller, and a node, at its agent. An
address, or a certificate to show there, means the node; a bare word means the job.
"""

from joulecut_cli import release
from joulecut_cli.controller_client import Controller, quoted
from joulecut_cli.pause import add_order_flags, told
from joulecut_wire.command import Parser
from joulecut_wire.errors import BadInput

AGENT = "--agent"
NODE_FLAGS = (AGENT, "--cert", "--key", "--ca", "--server-name")
JOB_FLAGS = ("--all", "--controller", "--json")
ALLOWED = (
    "JOB or --all (a paused job), or the node whose release window ends: HOST:PORT, unix:PATH, "
    "--agent ADDRESS, or HOST with --cert, --key, --ca"
)


def run(argv: list[str]) -> int:
    """Raises BadInput where it cannot be told what is meant, Unavailable where nobody takes it."""
    names = [word.partition("=")[0] for word in argv]
    for_node = [name for name in names if name in NODE_FLAGS]
    for_job = [name for name in names if name in JOB_FLAGS]
    if for_node and for_job:
        raise BadInput("joulecut resume", f"{for_node[0]} and {for_job[0]}", ALLOWED)
    if for_node or (not for_job and _address(argv)):
        return release.resume(_named(argv))
    parser = Parser(
        "joulecut resume",
        "Ends a pause or a restore, and arms a tripped breaker again. With a node's address "
        "(HOST:PORT, unix:PATH, --agent ADDRESS; or --cert, --key, --ca, --server-name) it ends "
        "its release window instead.",
    )
    add_order_flags(parser)
    given = parser.parse_args(argv)
    if bool(given.job) == given.all:
        what = "a name and --all" if given.job else "nothing named"
        raise BadInput(parser.prog, what, ALLOWED)
    path = "resume" if given.all else f"jobs/{quoted(given.job)}/resume"
    controller = Controller(given.controller)
    try:
        done = controller.order(path, all=given.all, reason=given.reason)
    except BadInput:
        _no_node(controller, given.job)
        raise
    return told(done, given)


def _no_node(controller: Controller, name: str) -> None:
    """Raises BadInput where the name is a node's: `restore NODE` takes one, and this does not."""
    board = controller.brief()
    if name in board["node_names"]:
        jobs = ", ".join(sorted({hold["job"] for hold in board["holds"]} - {""})[:10])
        held = f"the jobs that are held: {jobs}" if jobs else "no job is held"
        allowed = f"JOB or --all ({held}); or HOST:PORT for a release window"
        raise BadInput("joulecut resume", f"{name} is a node, and jobs are resumed", allowed)


def _named(argv: list[str]) -> list[str]:
    """The line with `--agent ADDRESS` as the word it stands for."""
    left: list[str] = []
    for word in argv:
        name, equals, value = word.partition("=")
        if name != AGENT:
            left.append(word)
        elif equals:
            left.append(value)
    return left


def _address(argv: list[str]) -> bool:
    """Whether a word that is no flag, nor a flag's value, is the address of an agent."""
    words = [word for before, word in zip(["", *argv], argv, strict=False) if before != "--reason"]
    bare = next((word for word in words if not word.startswith("-")), "")
    host, colon, port = bare.rpartition(":")
    is_port = bool(colon and host) and port.isascii() and port.isdigit()
    return bare.startswith("unix:") or is_port or bare in ("localhost", "127.0.0.1", "[::1]", "::1")
