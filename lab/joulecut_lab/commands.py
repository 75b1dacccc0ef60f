"""The lab's subcommands, which `joulecut` finds by the entry-point group `joulecut.commands`."""

from joulecut_cli.commands import Command, Group

COMMANDS = Group(
    "Lab: before and beside a cluster",
    {
        name: Command(f"joulecut_lab.{module}.command:run", summary, "")
        for name, module, summary in (
            ("demo", "demo", "the whole system on a simulated cluster"),
            ("audit", "audit", "energy wasted by a cluster today"),
            ("model", "model_command", "time, memory and energy of a training run"),
            ("compare", "compare", "savings of other systems' rules for clocks"),
            ("fit", "fit", "time and power at every clock from a few probes"),
            ("study", "study", "decoder layers over clocks: sweep, report, fit; talks"),
        )
    },
)
