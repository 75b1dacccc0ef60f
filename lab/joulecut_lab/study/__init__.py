"""The decoder-layer study: what clocks do to the time and energy of a transformer layer.

The science behind the product, runnable by anyone: `layer` measures or simulates a sweep,
`report` draws it, `fit` asks how well the predictors learn from it.
"""
