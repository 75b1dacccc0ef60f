"""`joulecut compare JOB.yaml`: savings of other systems' rules for clocks on the same job.

Computed from the job's profile alone, with no cluster: predicted, never measured.
"""

import json
from argparse import Namespace
from pathlib import Path

from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput

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

    stragglers = factors(options.straggler)
    pipelines = whole("--pipelines", options.pipelines, PIPELINES, 1, PIPELINES_MAX)
    if stragglers and pipelines < 2:
        raise BadInput("--pipelines", "1 pipeline has no sibling", "2 or more with --straggler")
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
    parser.add_argument(
        "--max-slowdown", metavar="PCT", help="of the fastest iteration: 2 or 2%% (default 0)"
    )
    parser.add_argument(
        "--straggler", metavar="FACTORS", help="slowdowns of one pipeline: 1.05,1.1,1.2,1.5"
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


def factors(word: str | None) -> tuple[float, ...]:
    """Of --straggler; none where it was not given. Raises BadInput."""
    if word is None:
        return ()
    allowed = f"up to {STRAGGLERS_MAX} factors from 1 to {FACTOR_MAX:g}, like 1.05,1.2"
    parts = word.split(",")
    if len(parts) > STRAGGLERS_MAX:
        raise BadInput("--straggler", f"{len(parts)} factors", allowed)
    found = []
    for part in parts:
        value = _finite(part)
        if value is None or not 1.0 <= value <= FACTOR_MAX:
            raise BadInput("--straggler", f'"{part.strip()}" is no factor', allowed)
        found.append(value)
    return tuple(found)


def number(flag: str, word: str | None, low: float, high: float) -> float | None:
    """Above `low`, up to `high`; None where the flag was not given. Raises BadInput."""
    if word is None:
        return None
    value = _finite(word)
    if value is None or not low < value <= high:
        raise BadInput(flag, f'"{word}" is out of range', f"a number above {low:g}, to {high:g}")
    return value


def _finite(word: str) -> float | None:
    text = word.strip()
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def whole(flag: str, word: str | None, default: int, low: int, high: int) -> int:
    """From `low` to `high`; `default` where the flag was not given. Raises BadInput."""
    if word is None:
        return default
    text = word.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and low <= int(text) <= high):
        raise BadInput(flag, f'"{word}" is out of range', f"a whole number from {low} to {high}")
    return int(text)
