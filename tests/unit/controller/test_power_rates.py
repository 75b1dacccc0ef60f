"""Estimates from power: of one GPU for the whole job, and only without another source."""

from joulecut_controller.observe.power_rates import SILENCE_S, PowerRates
from joulecut_controller.ports import ArrivedReport
from joulecut_wire.messages import IterationReport

UUIDS = ("GPU-a", "GPU-b")


def arrived(uuid: str, number: int, source: str = "power", age_s: float = 0.0) -> ArrivedReport:
    report = IterationReport("4711", uuid, 0, number, 5.0, source=source, age_s=age_s)
    return ArrivedReport(report, 100.0)


def block(uuid: str, begin: int) -> list[ArrivedReport]:
    return [arrived(uuid, begin + i, age_s=5.0 * (3 - i)) for i in range(4)]


def test_one_agents_estimates_stand_for_all_gpus() -> None:
    rates = PowerRates()
    first = rates.settled("job", block("GPU-a", 1), UUIDS, 100.0)
    assert [(one.report.uuid, one.report.iteration) for one in first] == [
        (uuid, number) for number in range(1, 5) for uuid in UUIDS
    ]
    assert rates.settled("job", block("GPU-b", 40), UUIDS, 110.0) == []


def test_each_iteration_of_a_block_began_when_the_block_did() -> None:
    """A mean over the block says nothing of clocks that were set within it."""
    found = PowerRates().settled("job", block("GPU-a", 1), UUIDS, 100.0)
    assert {one.ended_s - one.span_s for one in found} == {100.0 - 20.0}


def test_another_gpu_takes_over_where_the_first_is_gone_or_silent() -> None:
    rates = PowerRates()
    rates.settled("job", block("GPU-a", 1), UUIDS, 100.0)
    assert rates.settled("job", block("GPU-b", 7), ("GPU-b",), 120.0)
    assert rates.settled("job", block("GPU-a", 9), UUIDS, 120.0 + SILENCE_S + 1.0)


def test_any_other_source_is_better() -> None:
    rates = PowerRates()
    own = arrived("GPU-a", 3, source="otlp")
    assert rates.settled("job", [own, *block("GPU-b", 1)], UUIDS, 100.0) == [own]
    assert rates.settled("job", block("GPU-b", 5), UUIDS, 100.0 + SILENCE_S / 2.0) == []
    assert rates.settled("job", block("GPU-b", 9), UUIDS, 100.0 + SILENCE_S + 1.0)
