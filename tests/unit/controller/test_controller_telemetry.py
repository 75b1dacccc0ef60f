"""What /metrics shows of a board: only names of the contract, and only what is there."""

from dataclasses import replace

import boards
import pytest
from job_states import changed
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from joulecut_controller.board import Board, PowerLimits
from joulecut_controller.cluster.worth import job_worth
from joulecut_controller.metrics.collector import BoardCollector, CertificateCollector
from joulecut_controller.orders import Hold
from joulecut_controller.policy.policy import Cost, Policy, Slo
from joulecut_controller.power.budget import Shares
from joulecut_controller.reconcile.loop_metrics import LoopMetrics
from joulecut_controller.trust.default_windows import Account, DefaultTime
from joulecut_controller.view import Delay
from joulecut_wire import metrics

PRICED = Policy(cost=Cost(gpu_hour=2.0, kwh=0.1, currency="EUR"))


class Shown:
    """A collector over a board that may be exchanged."""

    def __init__(self, board: Board | None) -> None:
        self.board = board
        self.meters = LoopMetrics()
        self.registry = CollectorRegistry()
        collector = BoardCollector(
            lambda: self.board, self.meters, epoch=lambda: 7, leads=lambda: True
        )
        self.registry.register(collector)
        ends = {"grpc": lambda: None, "http": lambda: 1.8e9}
        self.registry.register(CertificateCollector(ends))

    def families(self) -> dict[str, Metric]:
        text = generate_latest(self.registry).decode()
        return {family.name: family for family in text_string_to_metric_families(text)}

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def test_every_name_and_label_is_in_the_contract() -> None:
    known = {metric.full_name: metric for metric in metrics.CONTROLLER}
    for shown in (Shown(boards.board()), Shown(boards.measuring()), Shown(boards.empty())):
        for family in shown.families().values():
            for sample in family.samples:
                base = sample.name
                for suffix in ("_bucket", "_sum", "_count"):
                    base = base.removesuffix(suffix)
                metric = known[base]
                assert set(sample.labels) - {"le"} == set(metric.labels), sample
                assert family.documentation == metric.help
                assert not base.endswith("_created")


def test_every_metric_of_the_contract_is_shown_of_a_running_job() -> None:
    board = boards.board()
    hold = Hold(board.jobs[0].view.policy.name, "pause", "reset", "alice", 1.8e9)
    delay = Delay(1, ("n1/0",), 1.2)
    held = replace(
        board.jobs[0], holds=(hold,), delay=delay, default_time=DefaultTime({"age": 0.01}, 60.0, "")
    )
    [advised] = boards.board("recommend").jobs  # of a job that is enforced nobody asks whether
    shown = Shown(
        replace(
            board,
            jobs=(held, advised),
            policy=PRICED,
            budget=Shares(limit_w=6000.0, power_w=5800.0),
            power_limits=PowerLimits(budget_w=6000.0, in_force_w=5900.0, capacity_w=6000.0),
        )
    )
    shown.meters.last_success_unix_s = 1.0
    names = {sample.name for family in shown.families().values() for sample in family.samples}
    for metric in metrics.CONTROLLER:
        if metric.help.startswith("Deprecated"):
            continue  # registered, without series
        wanted = metric.full_name + ("_count" if metric.kind == "histogram" else "")
        assert wanted in names, wanted


def test_the_worth_of_a_plan_is_shown_at_the_sites_own_prices_alone() -> None:
    board = boards.board()
    [job] = board.jobs
    found = job_worth(job, PRICED)
    assert found is not None
    labels = {"workload": job.view.policy.name, "basis": found.basis, "currency": "EUR"}
    shown = Shown(replace(board, policy=PRICED))
    worth = shown.value("joulecut_job_worth_per_gpu_hour", **labels)
    assert worth == found.plan.net_per_gpu_hour
    assert Shown(board).families()["joulecut_job_worth_per_gpu_hour"].samples == []


def test_of_a_page_without_tls_no_certificate_is_shown() -> None:
    shown = Shown(boards.board())
    assert shown.value("joulecut_certificate_expires_timestamp_seconds", use="http") == 1.8e9
    assert shown.value("joulecut_certificate_expires_timestamp_seconds", use="grpc") is None


def test_bloat_that_is_not_computed_yet_is_not_shown_as_none() -> None:
    board = boards.board()
    (job,) = board.jobs
    assert job.decision.forecast is not None
    unknown = replace(job.decision.forecast, intrinsic_bloat_w=None, extrinsic_bloat_w=None)
    recommended = replace(job, applied=None, decision=replace(job.decision, forecast=unknown))
    shown = Shown(replace(board, jobs=(recommended,)))
    labels = {"workload": job.view.policy.name, "kind": "intrinsic"}
    assert shown.value("joulecut_job_energy_bloat_watts", **labels) is None
    known = replace(unknown, intrinsic_bloat_w=300.0, extrinsic_bloat_w=0.0)
    reported = replace(recommended, decision=replace(job.decision, forecast=known))
    shown = Shown(replace(board, jobs=(reported,)))
    assert shown.value("joulecut_job_energy_bloat_watts", **labels) == 300.0


def test_figures_are_those_of_the_board() -> None:
    board = boards.board()
    (job,) = board.jobs
    name = job.view.policy.name
    shown = Shown(board)
    assert job.view.measured.current is not None
    assert job.view.measured.baseline is not None
    assert job.decision is not None
    seconds = shown.value("joulecut_job_iteration_time_seconds", workload=name, kind="measured")
    assert seconds == job.view.measured.current.time_mean_s
    slowdown = shown.value("joulecut_job_slowdown_ratio", workload=name)
    assert (
        slowdown
        == job.view.measured.current.time_mean_s / job.view.measured.baseline.time_mean_s - 1.0
    )
    state = {"workload": name, "state": "enforced"}
    assert shown.value("joulecut_plan_generation", **state) == job.decision.generation
    saved = shown.value("joulecut_plan_saved_ratio", **state, bound="mid")
    assert saved == job.decision.forecast.saved_ratio
    assert shown.value("joulecut_controller_mode", workload=name, mode="enforce") == 1.0
    assert shown.value("joulecut_controller_mode", workload=name, mode="recommend") == 0.0
    for action in job.decision.actions:
        hertz = shown.value("joulecut_plan_clock_hertz", **state, uuid=action.uuid)
        assert hertz == (None if action.clock_mhz is None else action.clock_mhz * 1e6)


def test_the_margin_is_that_of_the_mean_iteration() -> None:
    board = boards.board()
    (job,) = board.jobs
    name, policy, baseline = job.view.policy.name, job.view.policy, job.view.measured.baseline
    assert baseline is not None
    steady = replace(baseline, time_mean_s=10.0, time_sd_s=0.1)
    shaken = replace(baseline, time_mean_s=10.1, time_sd_s=0.4)

    def margin(slo: Slo) -> float | None:
        view = changed(job.view, policy=replace(policy, slo=slo), baseline=steady, current=shaken)
        return Shown(replace(board, jobs=(replace(job, view=view),))).value(
            "joulecut_job_slo_margin_ratio", workload=name
        )

    assert margin(Slo(max_slowdown=0.02)) == pytest.approx(1 - 10.1 / 10.2)


def test_a_job_that_left_leaves_no_series() -> None:
    shown = Shown(boards.board())
    assert any(f.samples for n, f in shown.families().items() if n.startswith("joulecut_job"))
    shown.board = boards.empty()
    left = [f.samples for n, f in shown.families().items() if n.startswith("joulecut_job")]
    assert not any(left)


def test_savings_never_fall_though_the_board_may() -> None:
    board = boards.board()
    (job,) = board.jobs
    shown = Shown(board)
    labels = {"workload": job.view.policy.name, "basis": "measured"}
    before = shown.value("joulecut_job_energy_saved_joules_total", **labels)
    assert before == job.account.measured_j
    shown.board = replace(board, jobs=(replace(job, account=Account(measured_j=-5.0)),))
    assert shown.value("joulecut_job_energy_saved_joules_total", **labels) == before


def test_histograms_are_cumulative() -> None:
    shown = Shown(None)
    for seconds in (0.0005, 0.3, 100.0):
        shown.meters.passes.add(seconds)
    assert shown.value("joulecut_reconcile_seconds_bucket", le="0.001") == 1.0
    assert shown.value("joulecut_reconcile_seconds_bucket", le="0.5") == 2.0
    assert shown.value("joulecut_reconcile_seconds_bucket", le="+Inf") == 3.0
    assert shown.value("joulecut_reconcile_seconds_count") == 3.0
    assert shown.value("joulecut_reconcile_seconds_sum") == 100.3005
