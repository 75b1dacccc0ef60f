"""The `jitter` key of a job file: how much the times of this job vary, as measured.

```yaml
jitter: {operation: 3%, gpu: 1%, communication: 0.2ms, siblings: 16, hold: p95}
```
"""

from dataclasses import dataclass

from joulecut_cli.jobkeys import mapping, value
from joulecut_controller.policy.quantity import choice, duration, percentage, whole
from joulecut_engine.optimize.jitter import Noise
from joulecut_engine.optimize.jitter_margin import Statistic
from joulecut_wire.document import Document

PERCENT_MAX = 100.0  # a standard deviation as large as the mean: no longer a training job
SIBLINGS_MAX = 4096  # more pipelines than anybody trains with; half a minute of draws
_KEYS = ("operation", "gpu", "communication", "siblings", "hold")


@dataclass(frozen=True, slots=True)
class Jitter:
    """`hold` names what must meet the deadline: 95 of 100 iterations, or their mean."""

    noise: Noise
    hold: Statistic


def read_jitter(document: Document, data: dict[str, object]) -> Jitter | None:
    """None where the job file says nothing of it. Raises BadInput."""
    if "jitter" not in data:
        return None
    place = ("jitter",)
    keys = mapping(document, place, data["jitter"], (), _KEYS)
    share, delay = percentage(PERCENT_MAX), duration(above_zero=False)
    hold: Statistic = value(
        document, (*place, "hold"), keys.get("hold", "p95"), choice("p95", "mean")
    )
    return Jitter(
        Noise(
            operation=value(document, (*place, "operation"), keys.get("operation", 0), share),
            gpu=value(document, (*place, "gpu"), keys.get("gpu", 0), share),
            communication_s=value(
                document, (*place, "communication"), keys.get("communication", 0), delay
            ),
            siblings=value(
                document, (*place, "siblings"), keys.get("siblings", 1), whole(1, SIBLINGS_MAX)
            ),
        ),
        hold,
    )
