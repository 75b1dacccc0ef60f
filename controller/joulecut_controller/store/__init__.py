"""What must survive a restart: counters, baselines, and the trail of plans and commands."""
