"""One GPU as JSON: clocks, power and lease, with what is not known as null."""

from joulecut_controller import answer as a
from joulecut_controller.answer import Answer, Get, Json, Key, listed, maybe, number
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
    job=a.TEXT,
    epoch=a.COUNT,
    generation=a.COUNT,
    clock_min_mhz=a.COUNT,
    clock_max_mhz=a.COUNT,
    remaining_s=a.NUMBER.given,
)
GPU = Answer(
    "Gpu",
    uuid=a.TEXT,
    node=a.TEXT,
    index=a.COUNT.at("description.index"),
    model=a.TEXT.at("description.model"),
    simulated=a.FLAG.at(lambda gpu: gpu.uuid.startswith(SIMULATED)),
    job=a.WORD.given,  # None where no job of the policy has it
    stage=a.CLOCK.given,
    age_s=a.NUMBER,
    controllable=a.FLAG.at("description.controllable"),
    why_not_controllable=a.TEXT.at("description.reason"),
    clock_seen_mhz=a.CLOCK.at(_seen("clock_sm_mhz")),
    clock_asked_mhz=a.CLOCK.at(_clock_asked),
    clock_lowest_mhz=a.CLOCK.at(_clock(0)),
    clock_highest_mhz=a.CLOCK.at(_clock(-1)),
    power_average_w=a.NUMBER.at(_seen("power_average_w")),
    power_instant_w=a.NUMBER.at(_seen("power_instant_w")),
    power_limit_w=a.NUMBER.at(_seen("power_limit_enforced_w")),
    power_limit_least_w=a.NUMBER.at(lambda gpu: gpu.description.power_limit_min_w or None),
    power_controllable=a.FLAG.at("description.power_controllable"),
    # Of its energy counter: gpu; module or other, where its joules are its power, integrated.
    energy_scope=a.TEXT.at(lambda gpu: gpu.description.energy_scope or "unknown"),
    temperature_celsius=a.NUMBER.at(_seen("temperature_celsius")),
    utilization_gpu_ratio=a.NUMBER.at(_seen("utilization_gpu_ratio")),
    event_reasons=listed(a.TEXT).at(_seen("event_reasons")),
    lease=Key(maybe(LEASE).schema).at(_lease_json),
)
# As a row of its job.
OF_JOB = Answer(
    **{key: GPU.keys[key] for key in ("node", "index", "clock_asked_mhz", "clock_seen_mhz")},
    **{key: GPU.keys[key] for key in ("clock_lowest_mhz", "clock_highest_mhz")},
    power_w=GPU.keys["power_average_w"],
    power_limit_kept_w=a.NUMBER.at(lambda gpu: _seen("power_limit_kept_w")(gpu) or None),
    age_s=a.NUMBER,
)


def gpu_json(gpu: GpuView, work: tuple[str, int] | None = None) -> Json:
    """One GPU. `work` is the job and stage it serves, None where no job of the policy has it."""
    job, stage = work or (None, None)
    return GPU.json(gpu, job=job, stage=stage)
