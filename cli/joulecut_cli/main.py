"""`joulecut`: finds the module of a subcommand and hands it the rest of the line.

A command is `run(argv) -> exit status` in a module of its own, imported once the command is
known, so that `--help` is fast and a missing extra is one line.
"""

import importlib
import sys
from dataclasses import dataclass

from joulecut_wire.command import FINE, guarded
from joulecut_wire.errors import BadInput, not_installed


@dataclass(frozen=True, slots=True)
class Command:
    """`module:function`, its line in the overview, and the extra that installs its imports."""

    target: str
    summary: str
    extra: str = "all"


# What only the engine brings: a policy that names a run file needs it for its prediction.
NUMERIC = ("numba", "numpy", "scipy", "sklearn")
WITH_ENGINE = ("all", "lab", "sim")  # extras that bring more than the engine, which a command needs
GRPC = ("google", "grpc")  # an audit of agents needs them, one of a Prometheus does not

HELP = {"-h", "--help", "help"}
COMMANDS: dict[str, Command] = {
    "plan": Command("joulecut_cli.plan:run", "clocks of least energy within a deadline", "engine"),
    "frontier": Command(
        "joulecut_cli.frontier:run", "energy against iteration time of a job", "engine"
    ),
    "compare": Command(
        "joulecut_lab.compare.command:run", "savings of other systems' rules for clocks", "engine"
    ),
    "fit": Command(
        "joulecut_cli.fit.command:run", "time and power at every clock from a few probes", "engine"
    ),
    "model": Command(
        "joulecut_cli.model.command:run", "time, memory and energy of a training run", "engine"
    ),
    "policy": Command(
        "joulecut_cli.policy:run", "check a policy file, or compare it; profiles", "check"
    ),
    "audit": Command("joulecut_cli.audit.command:run", "energy wasted by a cluster today", "check"),
    "report": Command("joulecut_cli.report.command:run", "measured savings; receipts of jobs"),
    "status": Command("joulecut_cli.status:run", "fleet and jobs on one screen"),
    "explain": Command("joulecut_cli.explain:run", "why a job has its clocks"),
    "doctor": Command("joulecut_cli.doctor:run", "what a job or an installation lacks"),
    "selftest": Command(
        "joulecut_cli.selftest.command:run", "whether what is assumed of a card holds here", "agent"
    ),
    "profile": Command(
        "joulecut_cli.profile:run", "stage profile of a running job, as measured", "engine"
    ),
    "recommend": Command("joulecut_cli.recommend:run", "clock changes of a job's newest plan"),
    "pause": Command("joulecut_cli.orders:pause", "reset a job's clocks and change none"),
    "resume": Command("joulecut_cli.orders:resume", "end a pause, or a node's release window"),
    "restore": Command(
        "joulecut_cli.restore:run", "reset GPUs to default clocks and keep them there", "agent"
    ),
    "adopt": Command("joulecut_cli.orders:adopt", "GPUs that two nodes show belong to this one"),
    "clear": Command("joulecut_cli.orders:clear", "reset the GPUs of a node once", "agent"),
    "release": Command(
        "joulecut_cli.orders:release", "close all device handles of a node for a while", "agent"
    ),
    "run": Command("joulecut_cli.run:run", "a training command that reports its iterations", ""),
    "deploy": Command("joulecut_cli.deploy:run", "write units, chart, manifests or dashboards"),
    "completion": Command("joulecut_cli.completion:run", "completion for bash, zsh or fish"),
    "demo": Command("joulecut_cli.demo:run", "the whole system on a simulated cluster", "sim"),
    "study": Command(
        "joulecut_lab.study.command:run", "decoder layers over clocks: sweep, report, fit", "lab"
    ),
}


def main() -> int:
    return guarded("joulecut", lambda: dispatch(sys.argv[1:]))


def dispatch(argv: list[str]) -> int:
    """Runs one subcommand. Raises BadInput, Unavailable."""
    if not argv:
        raise BadInput("joulecut", "no command", f"{', '.join(COMMANDS)}; see joulecut --help")
    name, rest = argv[0], argv[1:]
    if rest and name in {*HELP, "--version"}:
        raise BadInput(name, f'"{rest[0]}" behind it', "nothing; joulecut COMMAND --help")
    if name in HELP:
        print(_overview())
        return FINE
    if name == "--version":
        print(_version())
        return FINE
    if name not in COMMANDS:
        raise BadInput(f'"{name}"', "no such command", ", ".join(COMMANDS))
    command = COMMANDS[name]
    module, _, function = command.target.partition(":")
    try:
        status: int = getattr(importlib.import_module(module), function)(rest)
    except ModuleNotFoundError as error:  # also where the command itself imports later
        if (error.name or "").startswith("joulecut"):
            raise
        extra = command.extra
        if error.name in NUMERIC and extra not in WITH_ENGINE:
            extra = "engine"
        elif error.name in GRPC and extra == "check":
            extra = "controller"
        what = f"{name} needs {error.name}, which is not installed"
        raise not_installed(what, extra) from None
    return status


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {one.summary}" for name, one in COMMANDS.items()]
    return (
        "usage: joulecut COMMAND ...\n\n"
        + "\n".join(lines)
        + "\n\njoulecut COMMAND --help shows its flags."
    )


def _version() -> str:
    from importlib.metadata import version

    return f"joulecut {version('joulecut')}"


if __name__ == "__main__":
    sys.exit(main())
