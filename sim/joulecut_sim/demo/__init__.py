"""The whole system on a simulated cluster: real processes, simulated GPUs, one script.

`cluster` lays out folders and starts the processes, `course` is the script of phases,
`watch` reads what the world can see, `summary` judges it. Nothing here plans or sets a
clock.
"""
