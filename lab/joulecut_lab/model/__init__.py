"""A whole training run before it starts: time, memory and energy, at any clock.

Read in this order: `architecture`, `system`, `run`, `runs` (what is asked), `work` (FLOPs and
bytes), `links` and `cost` (their time), `stages` (operations of a pipeline), `memory`, `power`,
then `formula` (closed form) and `graph_level` (the other two levels), `estimate` (what is
answered). On top: `calibrate`, `marginal`, `stage_profile`.
"""
