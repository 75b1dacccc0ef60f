"""`joulecut model profile RUN.yaml --out DIR`: what `joulecut plan` reads, predicted."""

import io
from argparse import Namespace
from pathlib import Path

from joulecut_cli import outfile
from joulecut_controller.sources import profile
from joulecut_lab.model import formula
from joulecut_lab.model.runs import Runs
from joulecut_lab.model.stages import stages_of
from joulecut_lab.model_command.shown import title
from joulecut_lab.run_file import Predicted, RunFile, predicted, read
from joulecut_wire.command import FINE
from joulecut_wire.errors import BadInput

JOB, PROFILE = "job.yaml", "stage_profile.csv"


def run(options: Namespace) -> int:
    """Raises BadInput."""
    file, folder = read(options.run), Path(options.out)
    found = predicted(file)
    clocks = len(next(iter(found.profile.options.values())))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"{folder}: {error.strerror}"
        raise BadInput("--out", what, "a folder that can be written") from None
    rows = io.StringIO()
    profile.write(found.profile, rows)
    outfile.write("--out", folder / PROFILE, rows.getvalue())
    outfile.write("--out", folder / JOB, job_yaml(file, found))
    print(f"{folder / JOB} and {PROFILE}: {clocks} clocks, predicted, not measured")
    print(f"next: joulecut plan {folder / JOB}")
    return FINE


def job_yaml(file: RunFile, predictions: Predicted) -> str:
    """The pipeline with its transfers, gradients and optimizer at their predicted costs."""
    run, system = file.run, file.system
    stages = stages_of(file.architecture, system, Runs.of([run]))
    found = formula.estimate(file.architecture, system, run)
    watts = predictions.blocking_power_w
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
