"""Traces of real training steps: read, replayed at other clocks, written for other tools."""
