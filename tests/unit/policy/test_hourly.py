"""Prices and carbon by the hour: read, in force, stale, and averaged for a report."""

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_cli import policy as command
from joulecut_controller.policy.hourly import HOLDS_S, at_hour, mean_of, value_at
from joulecut_controller.policy.policy import Cost, Policy, Series, policy_json
from joulecut_controller.sources.hourly_prices import parse
from joulecut_controller.sources.policy_file import PolicyFile
from joulecut_wire.errors import BadInput

POLICY = """apiVersion: joulecut/v1
kind: Policy
cluster:
  cost: {{gpu_hour: 2, kwh: 0.08, currency: EUR, kwh_series: {{{series}}}}}
jobs: [{{name: a, slo: {{least_cost: true}}}}]
"""
ROWS = b"time,value\n2026-11-29T14:00+01:00,0.30\n2026-11-29T14:00Z,-0.02\n"
BEGUN_S = datetime(2026, 11, 29, 13, tzinfo=UTC).timestamp()


def priced(points: object) -> Policy:
    cost = Cost(gpu_hour=2.0, kwh=0.08, kwh_series=Series(csv="p.csv"))
    return Policy(cost=cost, hourly={"p.csv": points})


def test_a_value_holds_until_the_next_and_for_an_hour_at_most() -> None:
    points = parse(ROWS, "p.csv")
    assert points == ((BEGUN_S, 0.30), (BEGUN_S + HOLDS_S, -0.02))
    policy = priced(points)
    assert at_hour(policy, BEGUN_S + 1.0, {}).cost.prices().kwh == 0.30
    assert at_hour(policy, BEGUN_S + HOLDS_S, {}).cost.prices().kwh == 0.0  # paid to take it
    late = at_hour(policy, BEGUN_S + 2.0 * HOLDS_S, {})
    assert late.cost.stale
    assert late.cost.prices().kwh == 0.08
    assert "p.csv is stale, so the constant 0.08 a kWh is in force" in str(late.cost.prices())


@given(st.lists(st.floats(0.0, 1e5), unique=True, max_size=30), st.floats(-1e4, 2e5))
def test_the_value_in_force_is_the_newest_begun(times: list[float], now_s: float) -> None:
    points = [(at_s, at_s + 0.5) for at_s in sorted(times)]
    begun = [one for one in points if one[0] <= now_s and now_s - one[0] < HOLDS_S]
    assert value_at(points, now_s) == (begun[-1][1] if begun else None)


def test_an_answer_of_a_prometheus_is_in_force_and_a_carbon_price_is_added() -> None:
    cost = Cost(
        gpu_hour=2.0,
        kwh=0.08,
        co2_g_per_kwh=400.0,
        co2_tonne=100.0,
        co2_series=Series(promql="grid_carbon"),
    )
    found = at_hour(Policy(cost=cost), 50.0, {"grid_carbon": ((10.0, 200.0),)}).cost
    assert found.co2_g_per_kwh == 200.0
    assert found.prices().kwh == pytest.approx(0.08 + 0.02)


def test_what_a_policy_says_of_itself_does_not_change_by_the_hour() -> None:
    policy = priced(parse(ROWS, "p.csv"))
    assert policy_json(at_hour(policy, BEGUN_S, {})) == policy_json(policy)


def test_a_report_takes_means_over_the_time_of_each_price() -> None:
    cost = Cost(gpu_hour=2.0, kwh=0.08, kwh_series=Series(csv="p.csv"))
    hours = [(0.0, Cost(kwh=0.2)), (1800.0, Cost(kwh=0.1)), (3600.0, Cost(kwh=0.08, stale=True))]
    found = mean_of(cost, hours, 5400.0)
    assert found.kwh == pytest.approx((0.2 + 0.1 + 0.08) / 3.0)
    assert "0.08 to 0.2" in found.hour
    assert "stale for 0.5 h" in found.hour
    assert mean_of(cost, [], 5400.0) is cost


def written(folder: Path, rows: bytes, series: str = "csv: p.csv") -> Path:
    (folder / "p.csv").write_bytes(rows)
    path = folder / "policy.yaml"
    path.write_text(POLICY.format(series=series))
    return path


def test_a_changed_series_is_a_changed_policy(tmp_path: Path) -> None:
    source = PolicyFile(written(tmp_path, ROWS))
    digest = source.load().digest
    assert not source.changed()
    (tmp_path / "p.csv").write_bytes(ROWS + b"2026-11-29T15:00Z,0.1\n")
    assert source.changed()
    assert source.load().digest != digest


def test_a_check_says_which_price_is_in_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = datetime.fromtimestamp(time.time(), UTC).isoformat()
    assert command.run(["check", str(written(tmp_path, f"time,value\n{now},0.31\n".encode()))]) == 0
    printed = capsys.readouterr().out
    assert "0.31 EUR a kWh" in printed
    assert "0.31 EUR a kWh by p.csv" in printed
    old = ROWS.replace(b"2026-", b"2001-")
    assert command.run(["check", str(written(tmp_path, old))]) == 0
    assert "p.csv is stale" in capsys.readouterr().out


BAD: dict[str, tuple[bytes, str, str]] = {
    "no zone": (b"time,value\n2026-11-29T14:00,1\n", "csv: p.csv", "p.csv:2"),
    "no number": (b"time,value\n2026-11-29T14:00Z,dear\n", "csv: p.csv", "p.csv:2"),
    "infinite": (b"time,value\n2026-11-29T14:00Z,inf\n", "csv: p.csv", "p.csv:2"),
    "not ascending": (ROWS + b"2026-11-29T13:00Z,1\n", "csv: p.csv", "p.csv:4"),
    "empty": (b"time,value\n", "csv: p.csv", "no values"),
    "other columns": (b"hour,price\n", "csv: p.csv", "hour"),
    "no file": (ROWS, "csv: q.csv", "cluster.cost.kwh_series.csv"),
    "both": (ROWS, "csv: p.csv, promql: x", "exactly one of csv, promql"),
    "neither": (ROWS, "", "exactly one of csv, promql"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_series_are_refused_by_place(tmp_path: Path, name: str) -> None:
    rows, series, said = BAD[name]
    with pytest.raises(BadInput) as refused:
        PolicyFile(written(tmp_path, rows, series)).load()
    assert said in str(refused.value)


def test_a_series_needs_a_constant_beside_it(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS)
    bare = path.read_text().replace("kwh: 0.08, ", "")
    path.write_text(bare.replace("least_cost: true", "max_slowdown: 0%"))
    with pytest.raises(BadInput, match="kwh is missing: it counts where the series has no value"):
        PolicyFile(path).load()
