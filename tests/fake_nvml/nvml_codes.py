"""Return codes of NVML by the names of its header, as tests compare them."""

UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TOO_SMALL = 1, 2, 3, 4, 6, 7
LOST = 15
