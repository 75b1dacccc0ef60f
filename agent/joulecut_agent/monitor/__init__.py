"""Reads the GPUs and accounts for their energy."""
