"""This process as its agent knows it: job, GPU, and pipeline stage, found without being asked for.

Variables win: JOULECUT_JOB, JOULECUT_UUID, JOULECUT_STAGE. Nothing here imports a framework; one
that is loaded already is asked.
"""

from __future__ import annotations

import os
import sys
from typing import Any

JOB, UUID, STAGE = "JOULECUT_JOB", "JOULECUT_UUID", "JOULECUT_STAGE"
# Of schedulers and launchers. The agent prefers the owner that it knows of itself.
JOB_VARIABLES = (JOB, "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
NO_RUN_ID = "none"  # torchrun's own default
MEGATRON = "megatron.core.parallel_state"


def job() -> str:
    for name in JOB_VARIABLES:
        value = os.environ.get(name, "")
        if value and value != NO_RUN_ID:
            return value
    return "job"


def uuid() -> str:
    """UUID of the GPU that this process computes on, "" if it has none yet."""
    if named := os.environ.get(UUID):
        return named
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    found = str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))
    return found if found.startswith("GPU-") or not found else f"GPU-{found}"


def stages() -> int:
    """Stages of the pipeline as a loaded framework knows them, 1 without one; 0 if not known."""
    if os.environ.get(STAGE):
        return 0
    megatron: Any = sys.modules.get(MEGATRON)
    if megatron is not None and megatron.model_parallel_is_initialized():
        return int(megatron.get_pipeline_model_parallel_world_size())
    return 0 if "deepspeed.runtime.pipe.engine" in sys.modules else 1


def stage() -> int:
    """Pipeline stage where a loaded framework knows it, else 0."""
    if named := os.environ.get(STAGE, ""):
        return int(named)
    megatron: Any = sys.modules.get(MEGATRON)
    if megatron is not None and megatron.model_parallel_is_initialized():
        return int(megatron.get_pipeline_model_parallel_rank())
    return 0
