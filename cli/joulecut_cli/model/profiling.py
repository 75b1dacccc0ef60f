"""`joulecut model profile RUN.yaml --out DIR`: what `joulecut plan` reads, predicted."""

from argparse import Namespace
from pathlib import Path

from joulecut_cli.model.runfile import RunFile, read
from joulecut_cli.model.shown import title
from joulecut_cli.outfile import replacing
from joulecut_engine.graph.pipeline import Profile
from joulecut_engine.model import formula
from joulecut_engine.model.power import blocking_power_w
from joulecut_engine.model.runs import Runs
from joulecut_engine.model.stage_profile import stage_profile
from joulecut_engine.model.stages import stages_of
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput

JOB, PROFILE = "job.yaml", "stage_profile.csv"
HEADER = "stage,instruction,frequency,time,energy"
STEP_MHZ = 15  # of NVIDIA's clock tables
LOW_SHARE = 0.5  # of the highest clock; below, every stage costs more time and more energy


def run(options: Namespace) -> int:
    """Raises BadInput."""
    file, folder = read(options.run), Path(options.out)
    clocks = clocks_of(file)
    profile = stage_profile(file.architecture, file.system, file.run, clocks)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in ((PROFILE, profile_csv(profile)), (JOB, job_yaml(file))):
            with replacing(folder / name) as spare:
                spare.write_text(text, encoding="utf-8")
    except OSError as error:
        what = f"{folder}: {error.strerror}"
        raise BadInput("--out", what, "a folder that can be written") from None
    print(f"{folder / JOB} and {PROFILE}: {len(clocks)} clocks, predicted, not measured")
    print(f"next: joulecut plan {folder / JOB}")
    return FINE


def clocks_of(file: RunFile) -> tuple[int, ...]:
    """Clocks from the one that the power limit leaves down to half of the highest."""
    system, run = file.system, file.run
    held = formula.estimate(file.architecture, system, run).clock_mhz
    top = int(run.clock_mhz or system.clock_max_mhz)
    steps = range(top, int(LOW_SHARE * system.clock_max_mhz), -STEP_MHZ)
    return tuple(mhz for mhz in steps if mhz <= held + STEP_MHZ / 2) or (top,)


def profile_csv(profile: Profile) -> str:
    """Rows in the columns that stage profiles have."""
    rows = [HEADER]
    for (part, kind), options in sorted(profile.options.items()):
        rows += [
            f"{part},{kind},{one.clock_mhz},{one.time_s:.9g},{one.energy_j:.9g}" for one in options
        ]
    return "\n".join(rows) + "\n"


def job_yaml(file: RunFile) -> str:
    """The pipeline with its transfers, gradients and optimizer at their predicted costs."""
    run, system = file.run, file.system
    stages = stages_of(file.architecture, system, Runs.of([run]))
    found = formula.estimate(file.architecture, system, run)
    watts = blocking_power_w(system, found.clock_mhz)
    shape = f"schedule: {run.order}, stages: {run.pipeline}, microbatches: {run.microbatches}"
    if run.parts_per_stage > 1:
        shape += f", chunks: {run.parts_per_stage}"
    lines = [
        f"# {title(file)}",
        "# Predicted by `joulecut model profile`; nothing here was measured.",
        f"pipeline: {{{shape}}}",
        f"profile: {PROFILE}",
        f"blocking_power_w: {watts:.6g}",
    ]
    if run.pipeline > 1:
        lines.append(f"communication: {{p2p_s: {float(stages.send_s[0]):.6g}}}")
    gradients_s = found.breakdown_s["data_comm"]
    if gradients_s > 0.0:
        lines.append(f"collectives: {{data: {_fixed(gradients_s, watts)}}}")
    lines.append(f"optimizer: {_fixed(found.breakdown_s['optimizer'], watts)}")
    return "\n".join(lines) + "\n"


def _fixed(seconds: float, watts: float) -> str:
    return f"{{time_s: {seconds:.6g}, energy_j: {seconds * watts:.6g}}}"
