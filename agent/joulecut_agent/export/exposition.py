"""Series as Prometheus reads them, because a scrape should cost a node as little as it can.

How a line begins, its name and labels, is the same scrape after scrape: it is made once and
kept, and only numbers are written anew. prometheus_client makes each line from nothing: with it
a scrape of 8 GPUs, in the OpenMetrics that Prometheus asks for, takes 5.6 to 5.9 ms (p99) of the
5 ms it may take, and 2.4 to 2.8 ms so (benchmarks/results/2026-11-20-agent-idle.md, measured once
more after job marks had a thread of their own). The tests hold each byte to what the library
would have written.
"""

from collections.abc import Callable, Iterable

from prometheus_client.utils import floatToGoString

from joulecut_agent.counters import BUCKETS_S
from joulecut_wire.metrics import Metric

HEADS_MAX = 8192  # 16 GPUs have 1,000; those of jobs that have gone are forgotten with all others
_LESS = (*map(str, BUCKETS_S), "+Inf")
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_number: Callable[[float], str] = floatToGoString
Heads = dict[tuple[str, tuple[str, ...]], str]


class Table:
    """Lines by metric, so that series of one GPU can be told together and come out apart."""

    def __init__(self, heads: Heads) -> None:
        """`heads` is kept from one table to the next; several threads may share it."""
        self._heads = heads
        self._lines: dict[str, tuple[Metric, list[str]]] = {}

    def add(self, metric: Metric, value: float | None, *labels: str) -> None:
        """One series; nothing where the device had nothing to say."""
        if value is not None:
            line = self._head(metric.name, metric, labels) + _number(value)
            self._of(metric).append(line)

    def add_durations(self, metric: Metric, rows: Iterable[tuple[str, list[int], float]]) -> None:
        """A histogram: rows as `Tally.durations` has them."""
        lines = self._of(metric)
        for label, counts, total_s in rows:
            running = 0
            for bound, count in zip(_LESS, counts, strict=True):
                running += count
                head = self._head(f"{metric.name}_bucket", metric, (label, bound), "le")
                lines.append(head + _number(running))
            for end, value in (("_count", running), ("_sum", total_s)):
                head = self._head(metric.name + end, metric, (label,))
                lines.append(head + _number(value))

    def text(self, *, openmetrics: bool) -> bytes:
        """All of it, in OpenMetrics 1.0 or in the text format before it (0.0.4)."""
        found = []
        for metric, lines in self._lines.values():
            name, kind = metric.full_name, metric.kind
            if openmetrics:
                name = name.removesuffix("_total").removesuffix("_info")
            else:
                kind = "gauge" if kind == "info" else kind
            found += [f"# HELP {name} {metric.help}", f"# TYPE {name} {kind}", *lines]
        found += ["# EOF"] if openmetrics else []
        return ("\n".join(found) + "\n").encode()

    def _of(self, metric: Metric) -> list[str]:
        return self._lines.setdefault(metric.name, (metric, []))[1]

    def _head(self, name: str, metric: Metric, labels: tuple[str, ...], *more: str) -> str:
        head = self._heads.get((name, labels))
        if head is None:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            pairs = zip((*metric.labels, *more), labels, strict=True)
            told = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in sorted(pairs))
            full_name = metric.full_name + name.removeprefix(metric.name)
            head = f"{full_name}{{{told}}} " if told else f"{full_name} "
            self._heads[name, labels] = head
        return head
