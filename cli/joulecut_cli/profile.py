"""`joulecut profile JOB`: stage profile of a running job without one, as `plan` reads it.

The controller lowers clocks of an enforced job without a profile within its budget, and keeps what
its operations took and its GPUs drew there. This command writes that to a file.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from joulecut_cli import outfile
from joulecut_cli.controller_client import Controller, Json, understood
from joulecut_cli.figures import table
from joulecut_cli.status import add_controller_flags
from joulecut_controller.sources.profile import write
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Profile
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput, Unavailable

CLOCKS_ENOUGH = 2  # of a stage: at one clock alone nothing shows what others cost


@understood
def run(argv: list[str]) -> int:
    """Raises BadInput for a bad flag or job, Unavailable without a controller or measurements."""
    parser = Parser("joulecut profile", "Stage profile of a running job, as control measured it.")
    parser.add_argument("job", metavar="JOB", help="as `joulecut status` names it")
    parser.add_argument(
        "--output", type=Path, metavar="FILE.csv",
        help="the profile (default JOB.csv); FILE.yaml beside it is the job file for joulecut plan",
    )  # fmt: skip
    add_controller_flags(parser)
    given = parser.parse_args(argv)
    path = given.output or Path(given.job.replace("/", "-") + ".csv")
    if path.suffix == ".yaml":
        raise BadInput("--output", f"{path}: the job file beside it has this name", "FILE.csv")
    outfile.checked("--output", path)
    outfile.checked("--output", path.with_suffix(".yaml"))
    controller = Controller(given.controller)
    answer = controller.measurements(given.job)
    lack = missing(answer)
    if lack:
        raise Unavailable(f"{given.job}: {lack}")
    profile = _profile(answer["measured"]["options"])
    with outfile.replacing(path) as spare, spare.open("w", newline="", encoding="utf-8") as out:
        write(profile, out)
    outfile.write("--output", path.with_suffix(".yaml"), _job_file(given.job, answer, path))
    if given.json:
        print(json.dumps(_json(given.job, answer, profile, path), indent=2))
    else:
        print("\n".join(_page(given.job, controller.url, profile, path)))
    return FINE


def missing(answer: Json) -> str:
    """Why no profile can be made yet; empty where it can."""
    measured = answer["measured"]
    if answer["profile"]:
        return f"it has a profile ({answer['profile']})"
    if answer["mode"] != "enforce":
        return (
            f"it is in mode {answer['mode']}, and other clocks are measured in mode enforce alone: "
            "set mode: enforce in its entry"
        )
    if measured is None:
        return f"nothing is measured yet: {answer['complaint'] or answer['sentence']}"
    if not measured["options"]:
        return "it reports its rate alone, so times of single operations are not known"
    counts = [len(clocks) for clocks in _clocks(_profile(measured["options"]))]
    if max(counts) < CLOCKS_ENOUGH:
        return f"it ran at one clock alone so far: {answer['sentence']}"
    return ""


def _profile(options: list[Json]) -> Profile:
    rows: dict[tuple[int, str], tuple[ClockOption, ...]] = {}
    for one in options:
        key = one["stage"], one["kind"]
        made = ClockOption(one["clock_mhz"], one["time_s"], one["energy_j"])
        rows[key] = (*rows.get(key, ()), made)
    return Profile(rows, source="measured")  # type: ignore[arg-type]


def _clocks(profile: Profile) -> list[list[int]]:
    """By stage, ascending."""
    found: list[set[int]] = [set() for _ in range(profile.stages)]
    for (stage, _), options in profile.options.items():
        found[stage].update(one.clock_mhz for one in options)
    return [sorted(clocks) for clocks in found]


def _job_file(name: str, answer: Json, path: Path) -> str:
    pipeline, blocking_w = answer["pipeline"], answer["blocking_power_w"] or 0.0
    shape = f"schedule: {pipeline['schedule']}, stages: {pipeline['stages']}"
    return (
        f"# Measured on the running job {json.dumps(name)} by joulecut profile.\n"
        f"pipeline: {{{shape}, microbatches: {pipeline['microbatches']}}}\n"
        f"profile: {json.dumps(path.name)}\n"
        f"blocking_power_w: {blocking_w:.5g}\n"
    )


def _page(name: str, url: str, profile: Profile, path: Path) -> Iterator[str]:
    yield f"{name} at {url}: operations at the clocks that they ran at"
    rows = [
        (str(stage), str(len(clocks)), f"{clocks[0]}-{clocks[-1]} MHz" if clocks else "none")
        for stage, clocks in enumerate(_clocks(profile))
    ]
    yield from table(("stage", "clocks", "range"), rows, frozenset({"stage", "clocks"}))
    yield "Power while working: from the energy counters, the same for forward and backward."
    yield f"Wrote {path} and {path.with_suffix('.yaml')}."
    yield f"Next: joulecut plan {path.with_suffix('.yaml')} --granularity changes"


def _json(name: str, answer: Json, profile: Profile, path: Path) -> Json:
    return {
        "job": name,
        "profile": str(path),
        "job_file": str(path.with_suffix(".yaml")),
        "blocking_power_w": answer["blocking_power_w"],
        "stages": [
            {"stage": stage, "measured_mhz": clocks}
            for stage, clocks in enumerate(_clocks(profile))
        ],
    }
