"""The running bias: how fast it learns, how little it forgets, how it stays bounded."""

from hypothesis import given
from hypothesis import strategies as st

from joulecut_engine.estimate.bias import LOG_MAX, SAMPLE_WEIGHT_MAX, Bias, Biases, GpuBias

LOGS = st.floats(-LOG_MAX, LOG_MAX)


@given(logs=st.lists(LOGS, min_size=1, max_size=50), weight=st.floats(1e-3, 100.0))
def test_the_mean_stays_among_the_samples(logs: list[float], weight: float) -> None:
    bias = Bias()
    for log_ratio in logs:
        bias = bias.after(log_ratio, weight)
    assert min(0.0, *logs) - 1e-12 <= bias.mean <= max(0.0, *logs) + 1e-12
    assert 0.0 < bias.count <= SAMPLE_WEIGHT_MAX


def test_the_least_recently_learnt_goes_first() -> None:
    biases = Biases(size_max=2)
    biases.put("job", "a", GpuBias(Bias(0.1)))
    biases.put("job", "b", GpuBias(Bias(0.2)))
    biases.put("job", "a", GpuBias(Bias(0.3)))
    biases.put("job", "c", GpuBias(Bias(0.4)))
    assert len(biases) == 2
    assert biases.get("job", "a").time.mean == 0.3
    assert biases.get("job", "b") == GpuBias()
