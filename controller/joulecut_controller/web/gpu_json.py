"""One GPU as JSON: clocks, power and lease, with what is not known as null."""

from joulecut_controller.answer import (
    CLOCK,
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    WORD,
    Answer,
    Get,
    Json,
    Key,
    listed,
    maybe,
    number,
)
from joulecut_controller.view import GpuView
from joulecut_wire.messages import GpuSnapshot

SIMULATED = "GPU-sim-"  # How the simulator begins its UUIDs; a driver's are "GPU-" and hex.
_NOTHING_SEEN = GpuSnapshot(uuid="")


def _seen(name: str) -> Get:
    """An attribute of the newest snapshot."""
    return lambda gpu: getattr(gpu.snapshot or _NOTHING_SEEN, name)


def _clock(place: int) -> Get:
    return lambda gpu: gpu.description.clocks_mhz[place] if gpu.description.clocks_mhz else None


def _clock_asked(gpu: GpuView) -> int | None:
    lease = gpu.snapshot.lease if gpu.snapshot else None
    return (lease.clock_max_mhz or None) if lease else None


def _lease_json(gpu: GpuView) -> Json | None:
    lease = gpu.snapshot.lease if gpu.snapshot else None
    if lease is None:
        return None
    left_s = lease.expires_in_s - gpu.age_s  # it ran on since the snapshot
    return LEASE.json(lease, remaining_s=number(max(0.0, left_s)))


LEASE = Answer(
    job=TEXT,
    epoch=COUNT,
    generation=COUNT,
    clock_min_mhz=COUNT.more,
    clock_max_mhz=COUNT.more,
    remaining_s=NUMBER.given,
)
GPU = Answer(
    "Gpu",
    uuid=TEXT,
    node=TEXT,
    index=COUNT.at("description.index"),
    model=TEXT.at("description.model"),
    simulated=FLAG.at(lambda gpu: gpu.uuid.startswith(SIMULATED)),
    job=WORD.given,  # None where no job of the policy has it
    stage=CLOCK.given,
    age_s=NUMBER,
    controllable=FLAG.at("description.controllable"),
    why_not_controllable=TEXT.at("description.reason"),
    clock_seen_mhz=CLOCK.at(_seen("clock_sm_mhz")),
    clock_asked_mhz=CLOCK.at(_clock_asked),
    clock_lowest_mhz=CLOCK.at(_clock(0)).more,
    clock_highest_mhz=CLOCK.at(_clock(-1)).more,
    power_average_w=NUMBER.at(_seen("power_average_w")),
    power_instant_w=NUMBER.at(_seen("power_instant_w")).more,
    power_limit_w=NUMBER.at(_seen("power_limit_enforced_w")).more,
    power_limit_least_w=NUMBER.at(lambda gpu: gpu.description.power_limit_min_w or None).more,
    power_controllable=FLAG.at("description.power_controllable").more,
    # Of its energy counter: gpu; module or other, where its joules are its power, integrated.
    energy_scope=TEXT.at(lambda gpu: gpu.description.energy_scope or "unknown").more,
    temperature_celsius=NUMBER.at(_seen("temperature_celsius")),
    utilization_gpu_ratio=NUMBER.at(_seen("utilization_gpu_ratio")).more,
    event_reasons=listed(TEXT).at(_seen("event_reasons")),
    lease=Key(maybe(LEASE).schema).at(_lease_json),
)
# As a row of its job.
OF_JOB = Answer(
    **{key: GPU.keys[key] for key in ("node", "index", "clock_asked_mhz", "clock_seen_mhz")},
    **{key: GPU.keys[key] for key in ("clock_lowest_mhz", "clock_highest_mhz")},
    power_w=GPU.keys["power_average_w"],
    power_limit_kept_w=NUMBER.at(lambda gpu: _seen("power_limit_kept_w")(gpu) or None),
    age_s=NUMBER,
)


def gpu_json(gpu: GpuView, work: tuple[str, int] | None = None) -> Json:
    """One GPU. `work` is the job and stage it serves, None where no job of the policy has it."""
    job, stage = work or (None, None)
    return GPU.json(gpu, job=job, stage=stage)
