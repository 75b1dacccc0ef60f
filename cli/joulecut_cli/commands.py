"""Subcommands by group: those of the service, and those that others bring by entry point.

A package brings a `Group` under the entry-point group `joulecut.commands`, as the lab does. Its
table is small: modules of commands are imported once one of them is asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points

from joulecut_wire.errors import Unavailable

ENTRY_POINTS = "joulecut.commands"
LAB = ("demo", "audit", "model", "compare", "fit", "study")  # of joulecut-lab, another distribution


@dataclass(frozen=True, slots=True)
class Command:
    """`module:function`, its line in the overview, and the extra that installs its imports."""

    target: str
    summary: str
    extra: str = "controller"


@dataclass(frozen=True, slots=True)
class Group:
    """A title of the overview, and its commands by name."""

    title: str
    commands: dict[str, Command]


SERVICE = (
    Group(
        "Cluster",
        {
            "status": Command("joulecut_cli.status:run", "fleet and jobs on one screen"),
            "report": Command("joulecut_cli.report.command:run", "measured savings, by the store"),
            "policy": Command("joulecut_cli.policy:run", "check a policy file", "check"),
            "adopt": Command(
                "joulecut_cli.orders:adopt", "GPUs that two nodes show belong to this one"
            ),
            "deploy": Command(
                "joulecut_cli.deploy:run", "write units, chart, manifests or dashboards"
            ),
        },
    ),
    Group(
        "Jobs",
        {
            "explain": Command("joulecut_cli.explain:run", "why a job has its clocks"),
            "doctor": Command("joulecut_cli.doctor:run", "what a job or this node lacks"),
            "pause": Command("joulecut_cli.orders:pause", "reset a job's clocks and change none"),
            "resume": Command(
                "joulecut_cli.orders:resume", "end a pause, or a node's release window"
            ),
            "run": Command(
                "joulecut_cli.run:run", "a training command that reports its iterations", ""
            ),
        },
    ),
    Group(
        "Node",
        {
            "restore": Command(
                "joulecut_cli.restore:run",
                "reset GPUs to default clocks and keep them there",
                "agent",
            ),
            "release": Command(
                "joulecut_cli.orders:release",
                "close all device handles of a node for a while",
                "agent",
            ),
            "selftest": Command(
                "joulecut_cli.selftest.command:run",
                "whether what is assumed of a card holds here",
                "agent",
            ),
        },
    ),
    Group(
        "Laptop: neither cluster nor GPU",
        {
            "plan": Command(
                "joulecut_cli.plan:run", "clocks of least energy within a deadline", "engine"
            ),
            "frontier": Command(
                "joulecut_cli.frontier:run", "energy against iteration time of a job", "engine"
            ),
        },
    ),
)


def groups() -> Iterator[Group]:
    """The service's own first. Raises Unavailable for an entry point that does not load."""
    yield from SERVICE
    for point in sorted(entry_points(group=ENTRY_POINTS)):
        try:
            yield point.load()
        except Exception as error:
            said = f"entry point {point.name} of {ENTRY_POINTS}: {error}"
            raise Unavailable(f"{said}; reinstall what brings {point.value}") from error


def all_commands() -> dict[str, Command]:
    """By name, in the order of the overview; the first group that has a name keeps it."""
    found: dict[str, Command] = {}
    for group in groups():
        for name, one in group.commands.items():
            found.setdefault(name, one)
    return found


def find(name: str) -> Command | None:
    """Entry points are read only for a name that the service does not have."""
    own = (group.commands[name] for group in SERVICE if name in group.commands)
    return next(own, None) or all_commands().get(name)
