"""`joulecut compare JOB.yaml`: savings of other systems' rules for clocks on the same job.

Computed from the job's profile alone, with no cluster: predicted, never measured.
"""

import json
from argparse import Namespace
from pathlib import Path

from joulecut_cli.plan import add_max_slowdown
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput
from joulecut_wire.flags import listed, number, whole

PROG = "joulecut compare"
PIPELINES = 16  # data-parallel pipelines of the published emulation (1,024 GPUs)
PIPELINES_MAX = 65_536
UNIT_MS_MIN, UNIT_MS_MAX = 1e-3, 1e4
POWER_W_MAX = 1e12

STRAGGLERS_MAX = 16
FACTOR_MAX = 100.0


def run(argv: list[str]) -> int:
    """Prints one comparison. Raises BadInput, Unavailable."""
    options = _parse(argv)
    from joulecut_cli import plot
    from joulecut_cli.granularity import BUILT
    from joulecut_cli.jobfile import read
    from joulecut_cli.progress import Progress
    from joulecut_cli.target import deadline_s
    from joulecut_engine.optimize.schedule import baseline
    from joulecut_lab.compare import contest
    from joulecut_lab.compare.output import as_json, as_text, draw
    from joulecut_lab.compare.rules import Priced, Setting, unit_s

    pipelines, budget_w, unit_ms = options.pipelines, options.budget, options.perseus_unit
    if options.straggler and pipelines < 2:
        raise BadInput("--pipelines", "1 pipeline has no sibling", "2 or more with --straggler")
    picture = plot.target(options.plot)
    job = read(options.job)
    problem = job.problem()
    fastest = baseline(problem)
    setting = Setting(
        problem=problem,
        deadline_s=deadline_s(options, fastest.iteration_time_s),
        stragglers=options.straggler,
        pipelines=pipelines,
        power_w=None if budget_w is None else budget_w / pipelines,
        sync=job.pipeline.sync,
    )
    perseus_unit_s = unit_s(problem) if unit_ms is None else unit_ms / 1e3
    with Progress(f"comparing on {options.job.name}") as progress:
        entries = contest.entries(setting, BUILT, perseus_unit_s, progress.advance)
    start = Priced(fastest.iteration_time_s, fastest.energy_j)
    outcome = contest.Outcome(job, setting, start, tuple(entries), perseus_unit_s)
    if picture is not None:
        draw(picture, outcome)
    if options.json:
        print(json.dumps(as_json(outcome), allow_nan=False, indent=1))
    else:
        print("\n".join(as_text(outcome)))
    return FINE


def _parse(argv: list[str]) -> Namespace:
    parser = Parser(PROG, "Savings of other systems' rules for clocks on the same job.")
    parser.add_argument("job", type=Path, metavar="JOB.yaml")
    add_max_slowdown(parser)
    parser.add_argument(
        "--straggler",
        type=listed(number(1.0, FACTOR_MAX, unit="factors"), STRAGGLERS_MAX),
        default=(),
        metavar="FACTORS",
        help="slowdowns of one pipeline: 1.05,1.1,1.2,1.5",
    )
    parser.add_argument(
        "--pipelines",
        type=whole(1, PIPELINES_MAX),
        default=PIPELINES,
        metavar="N",
        help=f"data-parallel (default {PIPELINES})",
    )
    parser.add_argument(
        "--budget",
        type=number(0.0, POWER_W_MAX, above=True, unit="watts"),
        metavar="W",
        help="mean power of all pipelines together",
    )
    parser.add_argument(
        "--perseus-unit",
        type=number(UNIT_MS_MIN, UNIT_MS_MAX, unit="milliseconds"),
        metavar="MS",
        help="Perseus's unit of time (default 1, less for short work)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", metavar="FILE", help="write a picture: .html or .png")
    options = parser.parse_args(argv)
    options.deadline = None
    return options
