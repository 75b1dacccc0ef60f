"""State that survives a restart: counters, baselines, and the log of events."""
