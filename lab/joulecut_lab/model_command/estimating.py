"""`joulecut model RUN.yaml`: one estimate, printed, drawn and traced."""

import json
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecut_cli import plot, timeline
from joulecut_engine.graph.pipeline import SENDS
from joulecut_lab.model.estimate import Estimate
from joulecut_lab.model_command import shown
from joulecut_lab.modelled import LEVELS
from joulecut_lab.run_file import RunFile, read
from joulecut_wire.command import FINE

if TYPE_CHECKING:
    from joulecut_lab.model.graph_level import Timeline

OPERATIONS_MAX = 200_000  # of a graph: some seconds; a picture of more shows nothing


def run(options: Namespace) -> int:
    """Raises BadInput, Unavailable."""
    picture, track = plot.target(options.plot), timeline.target(options.timeline)
    file = read(options.run)
    if options.level == "graph" or track is not None:
        _must_be_laid_out(file)
    found = LEVELS[options.level](file.architecture, file.system, file.run)
    if picture is not None:
        _draw(picture, file, found)
    if track is not None:
        timeline.write(track, *_traced(shown.title(file), _timeline(file)))
    if options.json:
        more: dict[str, Any] = {"run_totals": shown.totals(file.cost, file.run, found)}
        if file.stack:
            more["stack"] = {"name": file.stack, "defaults": [asdict(one) for one in file.defaults]}
        print(json.dumps({**found.as_dict(), **more}, allow_nan=False, indent=1))
    else:
        print("\n".join(shown.as_text(file, found)))
    return FINE


def _draw(picture: Path, file: RunFile, found: Estimate) -> None:
    """Bars, and in a page the pipeline over time where there is one."""
    from joulecut_lab.model_chart import estimate_figure, timeline_figure

    drawn = [estimate_figure(found, file.system.hbm_bytes)]
    if picture.suffix == ".html" and file.run.pipeline > 1 and _operations(file) <= OPERATIONS_MAX:
        drawn.append(timeline_figure(_timeline(file)))
    notes = [f"predicted at level {found.level}, not measured"]
    plot.write(picture, shown.title(file), drawn, ((), ()), notes)


def _timeline(file: RunFile) -> "Timeline":
    from joulecut_lab.model.graph_level import simulate

    return simulate(file.architecture, file.system, file.run)[1]


def _traced(title: str, predicted: "Timeline") -> tuple[list[timeline.Event], timeline.Event]:
    """A predicted iteration: per stage a track of work and one per direction of its sends."""
    events = [timeline.process(0, title)]
    tracks: dict[tuple[int, str], int] = {}
    for operation, start_s, time_s in zip(
        predicted.graph.operations, predicted.start_s, predicted.time_s, strict=True
    ):
        kind = operation.kind
        lane = (operation.stage, kind if kind in SENDS else "")
        if lane not in tracks:
            tracks[lane] = len(tracks)
            name = f"stage {lane[0]} {lane[1]}".strip()
            events += timeline.track(0, tracks[lane], name, 3 * lane[0] + bool(lane[1]))
        what = (f"{kind} {operation.microbatch}", kind)
        args = {"microbatch": operation.microbatch, "chunk": operation.chunk}
        events.append(timeline.stretch((0, tracks[lane]), what, start_s, time_s, **args))
    return events, {"basis": "predicted"}


def _operations(file: RunFile) -> int:
    run = file.run
    return 5 * run.pipeline * run.parts_per_stage * run.microbatches


def _must_be_laid_out(file: RunFile) -> None:
    if _operations(file) > OPERATIONS_MAX:
        what = f"about {_operations(file)} operations are too many to lay out"
        raise file.document.bad(
            ("run", "global_batch"), what, "a smaller batch, or --level formula"
        )
