"""The pytest fixture `fake_nvml`, for the tests of this folder."""

from fake_node import fake_nvml

__all__ = ["fake_nvml"]
