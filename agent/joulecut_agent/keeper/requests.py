"""What an agent may ask of its keeper: one struct for each request.

Values only. `protocol` checks them by type at both ends; `lease` and `keeper` decide about them.
Times are in seconds, clocks in MHz, power limits in mW. Epoch and generation order commands: see
`lease`.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

GPUS_MAX = 16  # the largest machines (DGX-2)
JOB_BYTES_MAX = 253  # a DNS name's length

# Bounds on the fields of a message. Values made inside a process are not checked.
U64 = Annotated[int, Meta(ge=0)]  # MessagePack itself ends at 2**64 - 1
U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U16 = Annotated[int, Meta(ge=0, le=2**16 - 1)]
Job = Annotated[str, Meta(max_length=JOB_BYTES_MAX)]
Uuid = Annotated[str, Meta(max_length=96)]  # NVML's own buffer
Schedule = Annotated[tuple[U16, ...], Meta(max_length=32)]  # distinct clocks, not steps


class ClockLimits(NamedTuple):
    """What is set on one GPU, in the driver's units.

    `min_mhz` 0 is the device's lowest clock; `max_mhz` 0 and `power_mw` 0 are not set by us.
    """

    min_mhz: U16
    max_mhz: U16
    power_mw: U32 = 0


NO_LIMITS = ClockLimits(0, 0, 0)


class GpuSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `Apply` sets on one GPU; a limit of zero is left alone.

    `schedule_mhz` are the lower clocks that `Step` may set as max later. With `keep_power_limit`
    the power limit stays in force when the lease ends, whatever ends it; with `above_kept_limit`
    the one kept before is in force again then.
    """

    limits: ClockLimits
    schedule_mhz: Schedule = ()
    keep_power_limit: bool = False
    above_kept_limit: bool = False


class _Request(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="request", tag=str.lower
):
    """Each request carries its name in the field `request`."""


class Apply(_Request, frozen=True):
    """Sets all these GPUs under leases of `job`, or none of them."""

    epoch: U64
    job: Job
    generation: U64
    ttl_s: float
    settings: Annotated[Mapping[Uuid, GpuSetting], Meta(max_length=GPUS_MAX)]

    def __post_init__(self) -> None:
        """Raises ValueError for a name that the replies about 16 leases have no room for."""
        if (size := len(self.job.encode())) > JOB_BYTES_MAX:
            raise ValueError(f"the job's name has {size} bytes; allowed: {JOB_BYTES_MAX}")


class Step(_Request, frozen=True):
    """Sets the max clock of one GPU to another one of its schedule, under the lease it has.

    A clock below the highest lasts `hold_s`, unless `Hold` moves its end.
    """

    job: Job
    generation: U64
    uuid: Uuid
    clock_max_mhz: U16
    hold_s: float = 0.0


class Hold(_Request, frozen=True):
    """The agent is alive: the lowered steps of these GPUs last `hold_s` from now."""

    uuids: Annotated[tuple[Uuid, ...], Meta(max_length=GPUS_MAX)]
    hold_s: float


class Renew(_Request, frozen=True):
    """A heartbeat: moves the end of every lease of `job` with this generation."""

    epoch: U64
    job: Job
    generation: U64
    ttl_s: float


class Clear(_Request, frozen=True):
    """Ends leases and restores their GPUs.

    Without `uuids` it concerns every GPU of `job`, or of any job if that is "". Epoch 0 is a
    request of this node. GPUs that are named, for no job, are also restored without a lease if
    their lock may still be ours, unless another writer's was seen on them. `lift_power_limit` sets
    kept power limits back to the value found before the first write.
    """

    epoch: U64 = 0
    job: Job = ""
    uuids: Annotated[tuple[Uuid, ...], Meta(max_length=GPUS_MAX)] = ()
    cause: Literal["cleared", "job_ended", "used"] = "cleared"
    lift_power_limit: bool = False


class Yield(_Request, frozen=True):
    """Another writer seems to have set one GPU: asks the keeper to read it.

    Its lease, if it has that epoch and generation (0 is any), ends once the keeper's own readings
    prove this. They alone say what stays and what is restored.
    """

    uuid: Uuid
    epoch: U64 = 0
    generation: U64 = 0


class Release(_Request, frozen=True):
    """Restores every GPU and drops all device handles for a while."""

    duration_s: float


class Resume(_Request, frozen=True):
    """Ends a release window."""


class ResetEpoch(_Request, frozen=True):
    """Restores every GPU and forgets every epoch and generation."""


class Status(_Request, frozen=True):
    """Changes nothing: the state of these GPUs."""

    uuids: Annotated[tuple[Uuid, ...], Meta(max_length=GPUS_MAX)] = ()


Request = Apply | Step | Hold | Renew | Clear | Yield | Release | Resume | ResetEpoch | Status
