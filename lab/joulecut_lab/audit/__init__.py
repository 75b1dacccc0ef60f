"""Energy waste of a cluster from readings: idle, bloat and slow GPUs. Pure."""
