"""Whose each GPU is: Kubernetes, Slurm, the jobs' own reports and plain processes, in one answer.

A GPU that changes hands must not keep the clocks of its last owner, and nobody may speak for
a GPU that is not his. Every source is read off the sampling path; one that is silent is
absent, never guessed.
"""
