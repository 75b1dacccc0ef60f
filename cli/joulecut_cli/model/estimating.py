"""`joulecut model RUN.yaml`: one estimate, printed, drawn and traced."""

import json
from argparse import Namespace

from joulecut_cli.model import shown
from joulecut_cli.model.runfile import RunFile, read
from joulecut_engine.model.estimate import Estimate
from joulecut_wire.command import FINE


def run(options: Namespace) -> int:
    """Raises BadInput, Unavailable."""
    picture = track = None
    if options.plot is not None:
        from joulecut_cli import plot

        picture = plot.target(options.plot)
    if options.timeline is not None:
        from joulecut_cli import timeline

        track = timeline.target(options.timeline)
    file = read(options.run)
    found = estimate(file, options.level)
    if picture is not None:
        from joulecut_cli.model import pictures

        pictures.estimate(picture, file, found)
    if track is not None:
        from joulecut_cli.model import timelines

        timelines.write(track, file)
    if options.json:
        more = {"run_totals": shown.totals(file.cost, file.run, found)}
        print(json.dumps({**found.as_dict(), **more}, allow_nan=False, indent=1))
    else:
        print("\n".join(shown.as_text(file, found, _advice(file, found))))
    return FINE


def estimate(file: RunFile, level: str) -> Estimate:
    """At one of the three levels."""
    if level == "table":
        from joulecut_engine.model.table import table

        return table(file.architecture, file.system, file.run)
    if level == "graph":
        from joulecut_engine.model.graph_level import simulate

        return simulate(file.architecture, file.system, file.run)[0]
    from joulecut_engine.model import formula

    return formula.estimate(file.architecture, file.system, file.run)


def _advice(file: RunFile, found: Estimate) -> list[str]:
    if found.fits:
        return []
    from joulecut_engine.model.memory import advice

    needed_bytes = max(stage.total_bytes for stage in found.memory)
    knobs = advice(file.architecture, file.system, file.run)
    return shown.advice_of(file.system, needed_bytes, knobs)
