"""Each NVML error becomes the failure that says what to do about it."""

import pynvml
import pytest

from joulecut_agent.nvml.driver import KINDS, WORDS, failure
from joulecut_agent.ports.failure import Gone, NotPermitted, Transient, Unsupported


@pytest.mark.parametrize(
    ("code", "kind", "word"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, Unsupported, "not_supported"),
        (pynvml.NVML_ERROR_INVALID_ARGUMENT, Unsupported, "invalid_argument"),
        (pynvml.NVML_ERROR_NOT_FOUND, Unsupported, "not_found"),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, Unsupported, "function_not_found"),
        (pynvml.NVML_ERROR_DEPRECATED, Unsupported, "deprecated"),
        (pynvml.NVML_ERROR_NO_PERMISSION, NotPermitted, "no_permission"),
        (pynvml.NVML_ERROR_GPU_IS_LOST, Gone, "gpu_is_lost"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, Gone, "driver_not_loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, Gone, "lib_rm_version_mismatch"),
        (pynvml.NVML_ERROR_TIMEOUT, Transient, "timeout"),
        (pynvml.NVML_ERROR_IN_USE, Transient, "in_use"),
        (pynvml.NVML_ERROR_UNKNOWN, Transient, "unknown"),
        (4711, Transient, "nvml_4711"),
    ],
)
def test_an_error_is_sorted_by_what_to_do(code: int, kind: type, word: str) -> None:
    failed = failure(code, "nvmlDeviceGetName", "GPU 3")
    assert type(failed) is kind
    assert failed.code == word
    assert str(failed) == f"GPU 3: nvmlDeviceGetName: {word.replace('_', ' ')}"


def test_every_word_of_the_table_is_an_error_of_the_binding() -> None:
    assert set(KINDS) <= set(WORDS.values())
    assert len(WORDS) > 25
