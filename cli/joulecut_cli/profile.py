"""`joulecut profile JOB`: stage profile and blocking power of a running job, as `plan` reads them.

The controller lowers clocks of an enforced job without a profile step by step within its budget,
and keeps what it measured. This command asks for these windows and separates work from waiting.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from joulecut_cli import outfile
from joulecut_cli.controller_client import Controller, Json, understood
from joulecut_cli.figures import ago, percent, table
from joulecut_cli.status import add_controller_flags
from joulecut_controller.learn.measured_profile import MeasuredProfile, Origin, measured_profile
from joulecut_controller.learn.measurement_log import JobConstants, Measurement, ProbedJob
from joulecut_controller.sources.profile import write
from joulecut_engine.graph.pipeline import Pipeline
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput, Unavailable

CLOCKS_ENOUGH = 3  # of a stage: a line through two has no curve
SETTINGS_PER_STAGE = 5  # a job of eight stages is learnt with about 40 (docs/predictors.md)


@understood
def run(argv: list[str]) -> int:
    """Raises BadInput for a bad flag or job, Unavailable without a controller or enough windows."""
    parser = Parser(
        "joulecut profile",
        "Stage profile and blocking power of a running job, as probing measured.",
    )
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
    try:
        job = probed_job(answer)
        made = measured_profile(job)
    except ValueError as error:
        raise Unavailable(f"{given.job}: no profile can be made: {error}") from None
    with outfile.replacing(path) as spare, spare.open("w", newline="", encoding="utf-8") as out:
        write(made.profile, out)
    text = _job_file(given.job, job.constants.pipeline, made, path)
    outfile.write("--output", path.with_suffix(".yaml"), text)
    if given.json:
        print(json.dumps(_json(given.job, job, made, path), indent=2))
    else:
        print("\n".join(_page(given.job, controller.url, job, made, path)))
    return FINE


def missing(answer: Json) -> str:
    """Why no profile can be made yet, with how long it will take; empty where it can."""
    probed = answer["probed"]
    if answer["profile"]:
        return f"it has a profile ({answer['profile']}), so its clocks are not probed"
    wants_mode = (
        f"it is in mode {answer['mode']}, and clocks are probed in mode enforce alone: "
        "set mode: enforce in its entry"
    )
    if probed is None:
        why = answer["complaint"] or answer["sentence"]
        return wants_mode if answer["mode"] != "enforce" else f"no window measured yet: {why}"
    rows = [one["clocks_mhz"] for one in probed["measurements"]]
    counts = [len(set(clocks)) for clocks in zip(*rows, strict=True)]
    ended = answer["verdict"] == "enough"
    if ended and max(counts) == 1:
        return f"every stage was measured at one clock alone, and probing ended: {answer['reason']}"
    if ended or min(counts) >= CLOCKS_ENOUGH:
        return ""
    if answer["mode"] != "enforce":
        return wants_mode
    few = [str(stage) for stage, count in enumerate(counts) if count < CLOCKS_ENOUGH]
    left = max(1, SETTINGS_PER_STAGE * len(counts) - len(rows))
    return (
        f"not probed enough: {len(rows)} settings measured, fewer than {CLOCKS_ENOUGH} clocks of "
        f"stage {', '.join(few)}; about {ago(left * probed['window_s'])} more ({answer['reason']})"
    )


def probed_job(answer: Json) -> ProbedJob:
    """The measurements in an answer of the controller."""
    probed, shape = answer["probed"], answer["pipeline"]
    pipeline = Pipeline(
        shape["schedule"],
        shape["stages"],
        shape["microbatches"],
        tensor_parallel=shape["tensor_parallel"],
        context_parallel=shape["context_parallel"],
        expert_parallel=shape["expert_parallel"],
        data_parallel=shape["data_parallel"],
    )
    constants = JobConstants(
        pipeline,
        tuple(probed["default_mhz"]),
        probed["clock_max_mhz"],
        probed["blocking_power_w"] or 0.0,
    )
    return ProbedJob(
        constants,
        tuple(map(tuple, probed["clocks_mhz"])),
        tuple(probed["alike"]),
        tuple(map(_measurement, probed["measurements"])),
        probed["window_s"],
    )


def _measurement(one: Json) -> Measurement:
    return Measurement(
        tuple(one["clocks_mhz"]),
        one["iterations"],
        one["iteration_time_s"],
        one["iteration_time_sd_s"],
        tuple(one["energy_j"]),
        tuple(map(tuple, one["busy_s"])),
        one["operation_sd_ratio"],
    )


def _job_file(name: str, pipeline: Pipeline, made: MeasuredProfile, path: Path) -> str:
    source = "of the policy" if made.blocking_known else "fitted"
    shape = f"schedule: {pipeline.schedule}, stages: {pipeline.stages}"
    return (
        f"# Measured on the running job {json.dumps(name)} by joulecut profile.\n"
        f"pipeline: {{{shape}, microbatches: {pipeline.microbatches}}}\n"
        f"profile: {json.dumps(path.name)}\n"
        f"blocking_power_w: {made.blocking_power_w:.5g}  # {source}\n"
    )


def _page(name: str, url: str, job: ProbedJob, made: MeasuredProfile, path: Path) -> Iterator[str]:
    iterations = sum(one.iterations for one in job.measurements)
    yield f"{name} at {url}: {len(job.measurements)} settings, {iterations} iterations measured"
    head = ("stage", "measured", "fitted between", "extrapolated below")
    rows = [
        (str(stage), *(_clocks(_with(origins, origin)) for origin in _ORIGINS))
        for stage, origins in enumerate(made.origins)
    ]
    yield from table(head, rows, frozenset({"stage"}))
    yield "Operation times: as reported at measured clocks, else fitted."
    yield "Power while working: fitted to the energy counters, the same for forward and backward."
    known = "of the policy" if made.blocking_known else "fitted"
    yield f"Blocking power: {made.blocking_power_w:.4g} W ({known})."
    gap = percent(made.path_ratio - 1.0, signed=True)
    yield f"Measured iterations take {gap} against the profile's longest path at default clocks."
    yield f"Wrote {path} and {path.with_suffix('.yaml')}."
    yield f"Next: joulecut plan {path.with_suffix('.yaml')} --granularity changes"


_ORIGINS: tuple[Origin, ...] = ("measured", "fitted", "extrapolated")


def _with(origins: Mapping[int, Origin], wanted: Origin) -> list[int]:
    return [mhz for mhz, origin in origins.items() if origin == wanted]


def _clocks(clocks_mhz: list[int]) -> str:
    if not clocks_mhz:
        return "none"
    low, high = min(clocks_mhz), max(clocks_mhz)
    return f"{low}-{high} MHz ({len(clocks_mhz)})" if low < high else f"{low} MHz"


def _json(name: str, job: ProbedJob, made: MeasuredProfile, path: Path) -> Json:
    return {
        "job": name,
        "profile": str(path),
        "job_file": str(path.with_suffix(".yaml")),
        "settings": len(job.measurements),
        "iterations": sum(one.iterations for one in job.measurements),
        "operation_times": "measured",
        "working_power": "fitted",
        "blocking_power_w": made.blocking_power_w,
        "blocking_power": "policy" if made.blocking_known else "fitted",
        "measured_over_path_ratio": made.path_ratio if math.isfinite(made.path_ratio) else None,
        "stages": [
            {
                "stage": stage,
                **{f"{origin}_mhz": _with(origins, origin) for origin in _ORIGINS},
            }
            for stage, origins in enumerate(made.origins)
        ],
    }
