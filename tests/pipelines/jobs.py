"""A job file with its profile in a folder, for tests of the command line."""

from pathlib import Path

CLOCKS = ((1410, 1.00, 1.00), (1305, 1.04, 0.91), (1200, 1.10, 0.82), (1050, 1.21, 0.75))
STAGES = (1.0, 1.0, 1.15)


def write_job(folder: Path, more: str = "", microbatches: int = 6) -> str:
    """Three stages, the last heavier; `more` is appended to the job file. Returns its path."""
    rows = [
        f"{stage},{kind},{clock},{0.05 * work * time:.6f},{24 * work * energy:.4f}"
        for stage, heavy in enumerate(STAGES)
        for kind, work in (("forward", heavy), ("backward", 1.9 * heavy))
        for clock, time, energy in CLOCKS
    ]
    header = "stage,instruction,frequency,time,energy\n"
    (folder / "profile.csv").write_text(header + "\n".join(rows) + "\n")
    job = folder / "job.yaml"
    job.write_text(
        f"pipeline: {{schedule: 1f1b, stages: 3, microbatches: {microbatches}}}\n"
        "profile: profile.csv\nblocking_power_w: 80\n" + more
    )
    return str(job)
