"""Curves of sweeps beside other sweeps: a forest of the others, and bands. Pure."""
