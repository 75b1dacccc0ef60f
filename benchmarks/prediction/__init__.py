"""What `benchmarks/predict.py` and `tests/reference` judge predictors with: public sweeps,
scores, and the learners that the product's estimators are compared with."""
