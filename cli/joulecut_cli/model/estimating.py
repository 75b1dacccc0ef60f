"""`joulecut model RUN.yaml`: one estimate, printed and drawn."""

import json
from argparse import Namespace

from joulecut_cli.model import shown
from joulecut_cli.model.runfile import read
from joulecut_engine.model import formula
from joulecut_wire.command import FINE


def run(options: Namespace) -> int:
    """Raises BadInput, Unavailable."""
    picture = None
    if options.plot is not None:
        from joulecut_cli import plot

        picture = plot.target(options.plot)
    file = read(options.run)
    found = formula.estimate(file.architecture, file.system, file.run)
    if picture is not None:
        from joulecut_cli.model import pictures

        pictures.estimate(picture, file, found, None)
    if options.json:
        more = {"run_totals": shown.totals(file.cost, file.run, found)}
        print(json.dumps({**found.as_dict(), **more}, allow_nan=False, indent=1))
    else:
        print("\n".join(shown.as_text(file, found, [])))
    return FINE
