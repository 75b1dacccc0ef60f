"""The solver: least energy within a deadline, with a lower bound.

`problem` holds the values asked and answered, `formulation` makes them from a profile, `solver`
is the door, `check` judges any answer without knowing the solver. A clock per operation:
`activity_network`, `relaxation`, `rounding`, `computation`. A clock for many: `clock_groups`,
`shared_clock`, `shared_clock_bound`, `choice_search`. Few changes: `clock_changes`,
`annealing`, `change_schedules`, `k_change_dp`, `rules_of_thumb`, `change_timing`. Jitter: `jitter`,
`drawn_choices`, `jitter_margin`, `slack_reallocation`. `compiled` alone knows the compiler. Pure.

This module stays empty: values alone can be imported without a solver.
"""
