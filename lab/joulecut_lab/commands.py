"""The lab's subcommands, which `joulecut` finds by the entry-point group `joulecut.commands`."""

from joulecut_cli.commands import Command, Group

COMMANDS = Group(
    "Lab: before and beside a cluster",
    {
        "demo": Command(
            "joulecut_lab.demo.command:run", "the whole system on a simulated cluster", "sim"
        ),
        "audit": Command(
            "joulecut_lab.audit.command:run", "energy wasted by a cluster today", "check"
        ),
        "model": Command(
            "joulecut_lab.model_command.command:run",
            "time, memory and energy of a training run",
            "lab",
        ),
        "compare": Command(
            "joulecut_lab.compare.command:run", "savings of other systems' rules for clocks", "lab"
        ),
        "fit": Command(
            "joulecut_lab.fit.command:run", "time and power at every clock from a few probes", "lab"
        ),
        "study": Command(
            "joulecut_lab.study.command:run",
            "decoder layers over clocks: sweep, report, fit; talks",
            "lab",
        ),
    },
)
