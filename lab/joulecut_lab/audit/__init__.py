"""Energy waste of a cluster from readings: idle GPUs, savings from counters. Pure."""
