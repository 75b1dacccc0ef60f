"""What is told to Prometheus, line for line as its own library would write it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from joulecut_agent.counters import BUCKETS_S, Tally
from joulecut_agent.export import exposition
from joulecut_agent.export.exposition import Heads, Table
from joulecut_wire import metrics as names
from joulecut_wire.metrics import PREFIX, Metric

METRICS = {one.name: one for one in vars(names).values() if isinstance(one, Metric)}
PLAIN = sorted(name for name, one in METRICS.items() if one.kind != "histogram")
Row = tuple[str, tuple[str, ...], float]


class Library(Collector):
    """The same series, as the library is told of them."""

    def __init__(self, rows: list[Row], tally: Tally | None = None) -> None:
        self.rows, self.tally = rows, tally

    def collect(self) -> list[Family]:
        families: dict[str, Family] = {}
        for name, labels, value in self.rows:
            metric = METRICS[name]
            family = families.setdefault(name, _family(metric))
            if isinstance(family, InfoMetricFamily):
                family.add_metric([], dict(zip(metric.labels, labels, strict=True)))
            else:
                family.add_metric(labels, value)  # type: ignore[attr-defined]
        found = list(families.values())
        if self.tally is not None:
            metric = names.NVML_CALL_DURATION
            durations = HistogramMetricFamily(metric.full_name, metric.help, labels=metric.labels)
            for call, counts, total_s in self.tally.durations():
                bounds, running = (*map(str, BUCKETS_S), "+Inf"), 0
                buckets = [(b, float(sum(counts[: n + 1]))) for n, b in enumerate(bounds)]
                running += sum(counts)
                durations.add_metric([call], buckets=buckets, sum_value=total_s)
            found.append(durations)
        return found

    def text(self, *, openmetrics: bool) -> bytes:
        registry = CollectorRegistry()
        registry.register(self)
        return bytes(generate_openmetrics(registry) if openmetrics else generate_latest(registry))


def _family(metric: Metric) -> Family:
    name, labels = PREFIX + metric.name, metric.labels
    if metric.kind == "info":
        return InfoMetricFamily(name.removesuffix("_info"), metric.help)
    if metric.kind == "counter":
        return CounterMetricFamily(name.removesuffix("_total"), metric.help, labels=labels)
    return GaugeMetricFamily(name, metric.help, labels=labels)


@st.composite
def _rows(draw: st.DrawFn) -> list[Row]:
    """An info tells of something that is there: its number is 1."""
    found = []
    for name in draw(st.lists(st.sampled_from(PLAIN), max_size=6)):
        words = st.text(max_size=6) | st.sampled_from(('"', "\\", "\n", "a\\n", 'GPU-"x"'))
        many = len(METRICS[name].labels)
        labels = draw(st.lists(words, min_size=many, max_size=many))
        value = draw(st.floats() | st.integers(0, 10**15).map(float))
        found.append((name, tuple(labels), 1.0 if METRICS[name].kind == "info" else value))
    return found


def _told(rows: list[Row], heads: Heads, tally: Tally | None, *, openmetrics: bool) -> bytes:
    table = Table(heads)
    for name, labels, value in rows:
        table.add(METRICS[name], value, *labels)
    if tally is not None:
        table.add_durations(names.NVML_CALL_DURATION, tally.durations())
    return table.text(openmetrics=openmetrics)


@given(rows=_rows(), times=st.lists(st.floats(0.0, 10.0), max_size=5))
def test_it_reads_as_the_library_writes_it(rows: list[Row], times: list[float]) -> None:
    tally, heads = Tally(), Heads()
    tally.time([(f"call{n % 2}", seconds) for n, seconds in enumerate(times)])
    for openmetrics in (False, True, False):
        expected = Library(rows, tally).text(openmetrics=openmetrics)
        assert _told(rows, heads, tally, openmetrics=openmetrics) == expected


@pytest.mark.parametrize("openmetrics", [False, True])
def test_so_does_every_metric_there_is(openmetrics: bool) -> None:
    rows: list[Row] = [(name, tuple(map(str, METRICS[name].labels)), 1.0) for name in PLAIN]
    expected = Library(rows).text(openmetrics=openmetrics)
    assert _told(rows, {}, None, openmetrics=openmetrics) == expected


def test_what_is_not_known_is_no_series() -> None:
    table = Table({})
    table.add(names.GPU_ENERGY, None, "GPU-a")
    assert table.text(openmetrics=False) == b"\n"
    table.add(names.GPU_ENERGY, math.nan, "GPU-a")
    assert table.text(openmetrics=False).endswith(
        b'joulecut_gpu_energy_joules_total{uuid="GPU-a"} NaN\n'
    )


def test_what_it_remembers_has_a_bound() -> None:
    heads: Heads = {}
    for number in range(2 * exposition.HEADS_MAX + 2):
        Table(heads).add(names.JOB_ENERGY, 1.0, f"job{number}")
        assert len(heads) <= exposition.HEADS_MAX
    table = Table(heads)
    table.add(names.JOB_ENERGY, 2.0, "job0")
    assert b'{job="job0"} 2.0\n' in table.text(openmetrics=False)
