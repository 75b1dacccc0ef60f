"""`joulecut compare JOB.yaml`: what other rules for clocks would make of the same job.

Computed from the job's profile alone, with no cluster: predicted, never measured.
"""

import json
from argparse import Namespace
from pathlib import Path

from joulecut_cli import plot
from joulecut_cli.granularity import BUILT
from joulecut_cli.jobfile import read
from joulecut_cli.progress import Progress
from joulecut_cli.target import deadline_s
from joulecut_engine.optimize.schedule import baseline
from joulecut_lab.compare import contest
from joulecut_lab.compare.drawing import draw
from joulecut_lab.compare.flags import factors, number, whole
from joulecut_lab.compare.outcome import Outcome
from joulecut_lab.compare.record import as_json
from joulecut_lab.compare.rules import unit_s
from joulecut_lab.compare.setting import Priced, Setting
from joulecut_lab.compare.table import as_text
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput

PROG = "joulecut compare"
PIPELINES = 16  # data-parallel pipelines of the published emulation (1,024 GPUs)
PIPELINES_MAX = 65_536
UNIT_MS_MIN, UNIT_MS_MAX = 1e-3, 1e4
POWER_W_MAX = 1e12


def run(argv: list[str]) -> int:
    """Prints one comparison. Raises BadInput, Unavailable."""
    options = _parse(argv)
    stragglers = factors(options.straggler)
    pipelines = whole("--pipelines", options.pipelines, PIPELINES, 1, PIPELINES_MAX)
    if stragglers and pipelines < 2:
        raise BadInput("--pipelines", "1 pipeline waits for nobody", "2 or more with --straggler")
    budget_w = number("--budget", options.budget, 0.0, POWER_W_MAX)
    unit_ms = number("--perseus-unit", options.perseus_unit, UNIT_MS_MIN, UNIT_MS_MAX)
    picture = plot.target(options.plot)
    job = read(options.job)
    problem = job.problem()
    fastest = baseline(problem)
    setting = Setting(
        problem=problem,
        deadline_s=deadline_s(options, fastest.iteration_time_s),
        stragglers=stragglers,
        pipelines=pipelines,
        power_w=None if budget_w is None else budget_w / pipelines,
        sync=job.pipeline.sync,
    )
    perseus_unit_s = unit_s(problem) if unit_ms is None else unit_ms / 1e3
    with Progress(f"comparing on {options.job.name}") as progress:
        entries = contest.entries(setting, BUILT, perseus_unit_s, progress.advance)
    start = Priced(fastest.iteration_time_s, fastest.energy_j)
    outcome = Outcome(job, setting, start, tuple(entries), perseus_unit_s)
    if picture is not None:
        draw(picture, outcome)
    if options.json:
        print(json.dumps(as_json(outcome), allow_nan=False, indent=1))
    else:
        print("\n".join(as_text(outcome)))
    return FINE


def _parse(argv: list[str]) -> Namespace:
    parser = Parser(PROG, "What other rules for clocks would make of the same job.")
    parser.add_argument("job", type=Path, metavar="JOB.yaml")
    parser.add_argument(
        "--max-slowdown", metavar="PCT", help="of the fastest iteration: 2 or 2%% (default 0)"
    )
    parser.add_argument(
        "--straggler", metavar="FACTORS", help="one pipeline is slower: 1.05,1.1,1.2,1.5"
    )
    parser.add_argument("--pipelines", metavar="N", help=f"data-parallel (default {PIPELINES})")
    parser.add_argument("--budget", metavar="W", help="mean power of all pipelines together")
    parser.add_argument(
        "--perseus-unit", metavar="MS", help="its unit of time (default 1, less for short work)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", metavar="FILE", help="write a picture: .html or .png")
    options = parser.parse_args(argv)
    options.deadline = None
    return options
