"""Readers of input files: policy, stage profile, graph. A fault is one line."""
