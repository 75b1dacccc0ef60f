"""The figures of README's first screen, computed again from the public profiles."""

from pathlib import Path

import pipelines
import pytest

from joulecut_engine.optimize.problem import Goal
from joulecut_engine.optimize.schedule import baseline
from joulecut_engine.optimize.solver import solve

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    ("profile", "granularity", "shown"),
    [
        ("a100", "gpu", "**0 %**"),
        ("a100", "changes", "**12.5 %**"),
        ("a100", "computation", "| 13.7 % |"),
        ("a40", "changes", "8.2 % (A40)"),
    ],
)
def test_what_readme_says_is_saved_without_slowdown(
    profile: str, granularity: str, shown: str
) -> None:
    asked = pipelines.profiled(profile, 96)
    fastest = baseline(asked)
    plan = solve(asked, Goal(fastest.iteration_time_s), granularity)
    saved = 100.0 * (1.0 - plan.energy_j / fastest.energy_j)
    assert shown in README
    figure = float(shown.strip("*| ").split(" %")[0])
    assert saved == pytest.approx(figure, abs=0.06)
