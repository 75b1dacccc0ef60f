"""What a job really did, held against what it was promised; knows neither predictor nor solver."""
