"""Time and power of every kind of work at every clock, from a few measurements.

Read in this order: `physics` (the form), `power_cap` and `fitting` (its numbers), `card` and
`evidence` (data sheets and measurements), `card_fit` (physics shared by one card's work), `smooth`
(residuals of the form), `work_fit` (all of it for many kinds of work). For running jobs:
`sample_window` and `admission` (which samples count), `clock_curve` (what they say against
the clock), `correction` (of a profile by them), `bias` (per GPU), and `online`, the
controller's estimator. `other_jobs` and its `forest` are for jobs that never ran at lower clocks.
"""
