"""The predictors on somebody's own sweep: what they say of clocks that were not probed.

Only the probed rows are read for time and energy, so that what is printed for the other
clocks can be held against what was measured there. Predicted, never measured.
"""
