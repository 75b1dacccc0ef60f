"""Findings of an audit as values: printed as text and JSON.

A figure that is not known names the missing input; nothing is filled in.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstSaving:
    """What one lower clock for all GPUs of a job would save, predicted from its counters: ratios
    of the energy that it used at work, with the ends of the band.
    """

    ratio: float
    low: float
    high: float
    joules: float
    slowdown: float
    text: str


@dataclass(frozen=True, slots=True)
class JobFinding:
    """One job over the whole time. `gpu_s` are seconds of GPUs held, `busy_s` those at work (None
    where no series has it), `energy_known_s` those whose energy is known. `idle_text` is what
    `idle_j` rests on, or the missing input where it is None.
    """

    name: str
    gpus: int
    gpu_s: float
    energy_known_s: float
    busy_s: float | None
    energy_j: float
    idle_j: float | None
    idle_text: str
    savings: tuple[FirstSaving, ...] = ()


@dataclass(frozen=True, slots=True)
class Remainder:
    """Energy that belongs to no job: of GPUs without an owner (and its idle part), of shared GPUs,
    and of GPUs that were reassigned between samples.
    """

    free_j: float
    free_idle_j: float | None
    free_gpu_s: float
    shared_j: float
    unseen_j: float


@dataclass(frozen=True, slots=True)
class Audit:
    """The whole. `energy_j` is that of all GPUs: jobs and remainder add up to it."""

    gpus: int
    seconds: float
    energy_j: float
    jobs: tuple[JobFinding, ...]
    rest: Remainder
    resets: int
    gap_s: float  # GPU seconds without readings
    energy_unknown_s: float  # GPU seconds without energy readings
    impossible: tuple[tuple[str, int], ...] = ()  # readings that cannot be, by figure: left out
    contradictions: tuple[str, ...] = ()  # between readings of one GPU
