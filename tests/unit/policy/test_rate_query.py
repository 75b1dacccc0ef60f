"""Which expressions can be a rate, and how far back they look."""

from dataclasses import replace

import boards
import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_states import changed

from joulecut_cli.policy import as_text
from joulecut_controller.cluster.summary import cluster_of
from joulecut_controller.policy.parse import parse
from joulecut_controller.policy.rate_query import (
    RANGE_S_MAX,
    RANGE_S_MIN,
    Fault,
    rate_query,
    read_rate,
)
from joulecut_engine.graph.pipeline import Profile
from joulecut_engine.money import Prices
from joulecut_wire.document import parse as document


@given(st.lists(st.integers(int(RANGE_S_MIN), int(RANGE_S_MAX)), min_size=1, max_size=4))
def test_the_longest_range_counts(ranges_s: list[int]) -> None:
    parts = [f'sum(rate(steps_total{{zone="a[1h] @ \\" offset"}}[{one}s]))' for one in ranges_s]
    assert rate_query(" / ".join(parts)).range_s == max(ranges_s)


@pytest.mark.parametrize(
    "promql",
    [
        "steps_per_second",
        "rate(steps_total[1h])",
        "rate(steps_total[1s])",
        "rate(steps_total[])",
        "rate(steps_total[60])",
        "max_over_time(rate(steps_total[1m])[5m:])",
        "rate(steps_total[1m] offset 5m)",
        "rate(steps_total[1m] @ 1609746000)",
        'steps{a="[1m]"}',
        "rate(steps_total[1m]",
        "rate(steps_total[1m]))",
        "(rate(steps_total[1m)])",
        'rate(steps_total{zone="a}[1m])',
    ],
)
def test_what_shows_another_time_or_none_is_refused(promql: str) -> None:
    with pytest.raises(Fault):
        rate_query(promql)


@pytest.mark.parametrize(
    "promql",
    [
        "histogram_quantile(0.5, sum by (le) (rate(step_seconds_bucket[1m])))",
        "histogram_avg(rate(step_seconds[1m]))",
        "avg_over_time(step_time_seconds[1m])",
        "avg_over_time(step_duration_ms[1m])",
        "rate(step_seconds_sum[1m]) / rate(step_seconds_count[1m])",
        "rate(step_seconds_total[1m])",
        "increase(steps_total[1m])",
        "delta(step[1m])",
        "count_over_time(step[1m])",
    ],
)
def test_a_time_or_a_count_is_no_rate(promql: str) -> None:
    with pytest.raises(Fault, match="a rate is iterations per second"):
        rate_query(promql)


@pytest.mark.parametrize(
    "promql",
    [
        "rate(step_seconds_count[1m])",
        "rate(step_seconds_count[1m]) / rate(step_seconds_sum[1m])",
        "1 / avg_over_time(step_time_seconds[1m])",
        "histogram_count(rate(step_seconds[1m]))",
        "increase(steps_total[1m]) / 60",
    ],
)
def test_a_count_over_a_time_is_a_rate(promql: str) -> None:
    assert rate_query(promql).range_s == 60.0


@pytest.mark.parametrize(
    "given", [{"promql": "vllm"}, {"promql": "dynamo", "labels": {"model_name": "llama"}}]
)
def test_a_preset_that_went_names_the_way(given: dict[str, object]) -> None:
    with pytest.raises(Fault, match="is gone") as refused:
        read_rate(given)
    assert "docs/integrations.md" in refused.value.allowed


def test_the_word_of_a_source_that_went_is_one_warning_and_no_rate() -> None:
    text = (
        "apiVersion: joulecut/v1\nkind: Policy\njobs:\n"
        "  - {name: a, slo: {max_slowdown: 1%, rate: power-signature}}\n"
        "  - {name: b, slo: {max_slowdown: 1%}}\n"
    )
    policy = parse(document(text.encode(), "policy.yaml"), lambda _: Profile({}))
    first, second = policy.jobs
    assert (first.rate, second.warning) == (None, "")
    assert "power-signature has no effect" in first.warning
    assert as_text(policy, Prices()).count("power-signature") == 1
    board = boards.board()
    job = replace(board.jobs[0], view=changed(board.jobs[0].view, policy=first))
    shown = replace(board, jobs=(job,), view=replace(board.view, jobs=(job.view,)))
    assert [one.text for one in cluster_of(shown).needs].count(first.warning) == 1
