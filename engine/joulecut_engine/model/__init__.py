"""A whole training run before it starts: time, memory and energy, at any clock.

Read in this order: `architecture`, `system`, `run` (what is asked), `estimate` (what is answered).
"""
