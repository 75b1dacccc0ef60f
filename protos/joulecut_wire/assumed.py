"""What the code assumes of every card's driver until `joulecut selftest` has measured it.

Each stands here once; `card_facts` has the measured ones.
"""

SET_LATENCY_S = 0.1  # the slowest known clock change; public ones of an old card: 55 ms at most
COUNTER_STEP_S = 0.1  # energy counters move in such steps (Zeus)
DWELLS = 10  # a clock is held for so many slowest changes, so that each can be seen to settle
UNUSED_BUSY_RATIO = 0.05  # a GPU that is busy for less does nothing; drivers round to percents
