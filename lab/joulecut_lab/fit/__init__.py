"""`joulecut fit`: predictions for the clocks of a sweep, from its probed rows alone.

Times and energies of other rows are never read, so predictions can be compared with them.
"""
