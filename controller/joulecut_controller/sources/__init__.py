"""Readers of input files: policy, stage profile, prices. A fault is one line."""
