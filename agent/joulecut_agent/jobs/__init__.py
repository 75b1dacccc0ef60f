"""Owners of GPUs, from Kubernetes, Slurm, reports of jobs and plain processes.

A GPU with a new owner must not keep the clocks of the last, and only the owner may report for it.
Sources are read in threads apart from sampling. A silent source is absent, and never guessed.
"""
