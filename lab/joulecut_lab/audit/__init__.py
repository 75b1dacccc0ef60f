"""Energy waste of a cluster from readings: idle GPUs, slow GPUs, savings from counters. Pure."""
