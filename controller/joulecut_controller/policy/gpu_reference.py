"""GPUs as an operator names them: a node, and indices on it."""

import re

from joulecut_controller.policy.policy import GpuRef
from joulecut_wire.quantity import Fault, shown

ALLOWED = "NODE/INDICES, like node1/0-7, node1/0 or (quoted between brackets) 'node1/0,2,4'"
INDEX_MAX = 63  # NVML numbers the GPUs of a node; no node has more of them

# A node's name as a DNS name, or as Slurm has it.
_REFERENCE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,252})/([0-9,-]{1,253})")
_RANGE = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")


def references(value: object) -> tuple[GpuRef, ...]:
    """The GPUs that one entry of `match.gpus` names, in its order. Raises Fault."""
    if isinstance(value, int) and not isinstance(value, bool):
        # What YAML makes of [node1/0,2,4]: three entries.
        raise Fault(f"{value} names no node", ALLOWED)
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if not match:
        raise Fault(f"{shown(value)} names no GPU", ALLOWED)
    node = match[1]
    indices: list[int] = []
    for part in match[2].split(","):
        bounds = _RANGE.fullmatch(part)
        if not bounds:
            raise Fault(f"{shown(value)}: {shown(part)} is neither index nor range", ALLOWED)
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        if last < first:
            raise Fault(f"{shown(value)}: {part} runs backwards", ALLOWED)
        if last > INDEX_MAX:
            raise Fault(f"{shown(value)}: index {last}", f"indices 0 to {INDEX_MAX}")
        indices += range(first, last + 1)
    return tuple(GpuRef(node, index) for index in indices)
