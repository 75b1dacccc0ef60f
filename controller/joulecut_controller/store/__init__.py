"""State that survives a restart: counters, baselines, plans, and the log of events."""
