"""The solver: least energy within a deadline, with a lower bound.

`problem` holds the values asked and answered, `formulation` makes them from a profile, `solver`
is the door, `check` judges any answer without knowing the solver. A clock per operation:
`activity_network`, `relaxation`, `rounding`, `computation`. One clock for each GPU, or few changes:
`clock_changes`, `annealing`, `rules_of_thumb`; these choose with `choice_search` from
`change_schedules`, made by `k_change_dp` under `schedule_prices`. Jitter: `jitter`,
`drawn_choices`, `jitter_margin`. docs/solver.md says which answers what. Pure.

This module stays empty: values alone can be imported without a solver.
"""
