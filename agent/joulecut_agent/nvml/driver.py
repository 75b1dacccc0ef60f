"""Common to NVML reader and writer: opening the library, errors, supported clocks, reasons."""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import pynvml

from joulecut_agent.ports.failure import DeviceError, Gone, NotPermitted, Transient, Unsupported

WORDS = {getattr(pynvml, n): n[11:].lower() for n in dir(pynvml) if n.startswith("NVML_ERROR_")}
KINDS: dict[str, type[DeviceError]] = {  # every other error is Transient
    **dict.fromkeys(("not_supported", "not_found", "invalid_argument"), Unsupported),
    **dict.fromkeys(("function_not_found", "argument_version_mismatch"), Unsupported),  # old driver
    **dict.fromkeys(("freq_not_supported", "deprecated"), Unsupported),
    "no_permission": NotPermitted,
    **dict.fromkeys(("gpu_is_lost", "gpu_not_found", "reset_required"), Gone),
    **dict.fromkeys(("library_not_found", "driver_not_loaded", "uninitialized"), Gone),
    "lib_rm_version_mismatch": Gone,  # upgraded while loaded: only a reload helps
}
CLOCK_MHZ_MAX = 10_000  # above every GPU
# The binding's own failures on broken answers: invalid text, impossible lengths.
NONSENSE = (ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError)
EVENT_CALLS = (  # drivers before 535 have the older name only
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
_OPENING = {
    "library_not_found": "libnvidia-ml.so.1 was not found: is the NVIDIA driver installed here?",
    "driver_not_loaded": "the NVIDIA driver is not loaded",
    "lib_rm_version_mismatch": "the NVIDIA driver was upgraded, and not reloaded yet",
    "no_permission": "no access to the NVIDIA devices (/dev/nvidia*)",
}


def failure(code: int, call: str, subject: str = "NVML") -> DeviceError:
    """The DeviceError of an NVML return code."""
    word = WORDS.get(code, f"nvml_{code}")
    return KINDS.get(word, Transient)(word, f"{subject}: {call}: {word.replace('_', ' ')}")


@contextlib.contextmanager
def asking(call: str, subject: str = "NVML") -> Iterator[None]:
    """Raises DeviceError for a call within that fails, or on whose answer the binding fails."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise failure(error.value, call, subject) from None
    except NONSENSE as error:
        raise nonsense(f"{subject}: {call}", error) from None


def nonsense(call: str, error: Exception) -> DeviceError:
    """The error for an answer on which the binding fails."""
    return Transient("bad_answer", f"{call}: invalid answer: {error}")


def open_driver() -> None:
    """Loads and initialises NVML; once for each `close_driver`. Raises DeviceError."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        failed = failure(error.value, "nvmlInit")
        raise type(failed)(failed.code, _OPENING.get(failed.code, str(failed))) from None


def close_driver() -> None:
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return  # the driver was unloaded first


def optional(call: Any, handle: Any, absent: Any = None) -> Any:
    """The device's answer, or `absent` if it does not support the call. Raises NVMLError."""
    try:
        return call(handle)
    except pynvml.NVMLError as error:
        if isinstance(failure(error.value, ""), Unsupported | NotPermitted):
            return absent
        raise


def supported_clocks_mhz(handle: Any) -> tuple[int, ...]:
    """SM clocks at the highest memory clock, ascending; () without a list.

    Values outside 0 to CLOCK_MHZ_MAX are dropped.
    """
    memory_mhz = max(optional(pynvml.nvmlDeviceGetSupportedMemoryClocks, handle, [0]), default=0)
    if not memory_mhz:
        return ()
    listed = pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory_mhz)
    return tuple(sorted({mhz for mhz in listed if 0 < mhz <= CLOCK_MHZ_MAX}))


def uncontrollable(handle: Any, clocks_mhz: tuple[int, ...] = ()) -> str:
    """Reason why the clocks of this device must not be set, or "".

    Clocks belong to the whole board: with MIG or virtual GPUs its tenants share them. Passing the
    known `clocks_mhz` saves a call.
    """
    if any(optional(pynvml.nvmlDeviceGetMigMode, handle, [])):  # now, or from the next reset
        return "MIG is on"
    alone = pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH
    if optional(pynvml.nvmlDeviceGetVirtualizationMode, handle, 0) > alone:
        return "it is shared as virtual GPUs"
    return "" if clocks_mhz or supported_clocks_mhz(handle) else "it lists no supported clocks"


def profiles_of(handle: Any) -> Any:
    """The workload power profiles of a GPU, None without any."""
    try:
        found = pynvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
        # By reference: the binding passes its argument unchanged.
        pynvml.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(handle, ctypes.byref(found))
    except (AttributeError, pynvml.NVMLError):  # the binding or the GPU is older
        return None
    return found
