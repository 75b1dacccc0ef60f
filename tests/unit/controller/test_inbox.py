"""Reports wait for the job's next step; those of another kind of iteration are news."""

from joulecut_controller.ports import ArrivedReport
from joulecut_controller.reconcile.inbox import Inbox
from joulecut_wire.messages import IterationReport, OperationReport, PipelineShape


def report(
    number: int, duration_s: float = 1.0, count: int = 8, shape: PipelineShape | None = None
) -> ArrivedReport:
    operations = (OperationReport("forward", count, 0.1), OperationReport("backward", count, 0.2))
    made = IterationReport("job", "G0", 0, number, duration_s, operations, shape=shape)
    return ArrivedReport(made, float(number))


def test_every_report_is_taken_once_and_in_order() -> None:
    inbox = Inbox()
    inbox.add({"job": [report(1), report(2)], "other": [report(1)]})
    inbox.add({"job": [report(3)]})
    assert [one.report.iteration for one in inbox.take("job")] == [1, 2, 3]
    assert inbox.take("job") == []
    inbox.keep_only({"job"})
    assert inbox.take("other") == []


def test_what_differs_from_the_iteration_before_is_news() -> None:
    inbox = Inbox()
    assert inbox.add({"job": [report(0)]}) == {"job"}, "the first report of a GPU"
    assert inbox.add({"job": [report(1, 1.1), report(2, 0.95)]}) == set()
    assert inbox.add({"job": [report(3, 0.5)]}) == {"job"}, "an evaluation begins"
    assert inbox.add({"job": [report(4, 0.5)]}) == set(), "and goes on"
    assert inbox.add({"job": [report(5, 0.5, count=16)]}) == {"job"}
    assert inbox.add({"job": [report(6, 0.5, count=16, shape=PipelineShape("1f1b", 1, 16))]})
