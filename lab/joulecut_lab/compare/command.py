"""`joulecut compare JOB.yaml`: savings of other systems' rules for clocks on the same job.

Computed from the job's profile alone, with no cluster: predicted, never measured.
"""

import json
from argparse import Namespace
from pathlib import Path

from joulecut_cli.money import add_price_flags, given_prices
from joulecut_cli.plan import PERCENT_MAX
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput
from joulecut_wire.flags import listed, number, percentage, whole

PROG = "joulecut compare"
PIPELINES = 16  # data-parallel pipelines of the published emulation (1,024 GPUs)
PIPELINES_MAX = 65_536
UNIT_MS_MIN, UNIT_MS_MAX = 1e-3, 1e4
SLOWDOWNS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)
SLOWDOWNS_MAX = 32

STRAGGLERS_MAX = 16
FACTOR_MAX = 100.0


def run(argv: list[str]) -> int:
    """Prints one comparison. Raises BadInput, Unavailable."""
    options = _parse(argv)
    from joulecut_cli import plot
    from joulecut_cli.jobfile import read
    from joulecut_cli.progress import Progress, solving
    from joulecut_engine.money import Iteration
    from joulecut_engine.optimize.schedule import baseline
    from joulecut_lab.compare import contest
    from joulecut_lab.compare.output import as_json, as_text, draw
    from joulecut_lab.compare.rules import Setting, unit_s

    pipelines, unit_ms = options.pipelines, options.perseus_unit
    if options.straggler and pipelines < 2:
        raise BadInput("--pipelines", "1 pipeline has no sibling", "2 or more with --straggler")
    picture = plot.target(options.plot)
    job = read(options.job)
    problem = job.problem()
    fastest = baseline(problem)
    slowdowns = tuple(sorted(set(options.max_slowdown)))
    setting = Setting(problem, slowdowns, options.straggler, pipelines, job.pipeline.sync)
    perseus_unit_s = unit_s(problem) if unit_ms is None else unit_ms / 1e3
    judge = contest.Judge(setting)
    with Progress(solving(f"comparing on {options.job.name}")) as progress:
        entries = judge.entries(contest.OURS, perseus_unit_s, progress.advance)
    outcome = contest.Outcome(
        job=job,
        setting=setting,
        fastest=Iteration(fastest.iteration_time_s, fastest.energy_j),
        entries=tuple(entries),
        bounds_j=tuple(map(judge.bound_j, setting.deadlines_s)),
        perseus_unit_s=perseus_unit_s,
        prices=given_prices(options),
    )
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
    parser.add_argument(
        "--max-slowdown",
        type=listed(percentage(PERCENT_MAX), SLOWDOWNS_MAX),
        default=SLOWDOWNS,
        metavar="PCT,...",
        help="slowdowns to compare at (default 0,0.5,1,2,5,10)",
    )
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
        "--perseus-unit",
        type=number(UNIT_MS_MIN, UNIT_MS_MAX, unit="milliseconds"),
        metavar="MS",
        help="Perseus's unit of time (default 1, less for short work)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", metavar="FILE", help="write a picture: .html or .png")
    add_price_flags(parser)
    return parser.parse_args(argv)
