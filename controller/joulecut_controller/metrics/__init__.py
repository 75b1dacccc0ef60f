"""The metrics endpoint: the board as Prometheus series."""
