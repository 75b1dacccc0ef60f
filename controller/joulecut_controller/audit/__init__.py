"""What a cluster wastes, from what was only ever measured; pure, and bounded by its GPUs."""
