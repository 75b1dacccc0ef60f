"""Reports as plain values: bounded, finite, and safe to open in a spreadsheet."""

import csv
import io
import math

from hypothesis import given
from hypothesis import strategies as st

from joulecut_cli.report.spreadsheet import report_csv
from joulecut_cli.report.table import spread
from joulecut_controller.policy.policy import Cost
from joulecut_controller.savings.record import REPORT
from joulecut_controller.savings.report import Known, report


def test_no_name_is_a_formula() -> None:
    names = ["=cmd()", "+1", "-1+1", "@x", "\tx", 'a,b"c\nd', "plain"]
    known = {name: Known(tenant="-", holdout=0.0) for name in names}
    found = report([], since_unix_s=0.0, until_unix_s=1.0, prices=Cost(), known=known)
    rows = list(csv.DictReader(io.StringIO(report_csv(REPORT.json(found)), newline="")))
    told = [row["name"] for row in rows if row["kind"] == "job"]
    assert sorted(name.lstrip("'") for name in told) == sorted(names)
    assert not any(name[0] in "=+-@\t" for name in told)
    assert {row["tenant"] for row in rows if row["kind"] == "job"} == {"-"}


@given(
    mid=st.floats(-1e9, 1e9), half=st.floats(0.0, 1e9), factor=st.sampled_from([1.0, -1.0, 100.0])
)
def test_a_printed_interval_says_what_it_holds(mid: float, half: float, factor: float) -> None:
    text = spread({"mid": mid, "low": mid - half, "high": mid + half}, factor)
    middle, _, around = text.partition(" ± ")
    width = (mid + half - (mid - half)) / 2.0 * abs(factor)
    assert not middle.startswith("-0") or float(middle) != 0.0
    assert math.isclose(float(around), width, rel_tol=0.17, abs_tol=1e-6)
    assert abs(float(middle) - mid * factor) <= max(0.51 * width, abs(mid * factor) * 1e-3, 1e-6)
