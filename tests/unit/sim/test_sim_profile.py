"""The profile generator: its columns are those of a real sweep, its numbers the plant's."""

from pathlib import Path

import pytest

from joulecut_controller.sources import profile
from joulecut_sim.gpt3 import curve
from joulecut_sim.profile import rows, run
from joulecut_sim.skus import A100_SXM
from joulecut_wire.errors import BadInput


def test_a_profile_has_every_stage_instruction_and_swept_clock() -> None:
    made = rows(A100_SXM, 3, scale=1.0, noise=0.0, seed=1)
    assert len(made) == 3 * 2 * 38
    assert {row[2] for row in made} == set(range(855, 1411, 15))
    for stage, instruction, clock, time_s, energy_j in made:
        shape = curve("a100-sxm", stage, 3, instruction)
        assert time_s == pytest.approx(shape.time_s(clock))
        assert energy_j == pytest.approx(shape.energy_j(clock))


def test_noise_is_small_and_repeats_with_its_seed() -> None:
    one, same, other = (rows(A100_SXM, 2, scale=1.0, noise=1.0, seed=s) for s in (4, 4, 5))
    assert one == same
    assert one != other
    smooth = rows(A100_SXM, 2, scale=1.0, noise=0.0, seed=4)
    for rough_row, smooth_row in zip(one, smooth, strict=True):
        assert rough_row[3] == pytest.approx(smooth_row[3], rel=0.012)
        assert rough_row[4] == pytest.approx(smooth_row[4], rel=0.035)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--card", "h100"], "--card"),
        (["--stages", "0"], "--stages"),
        (["--scale", "0"], "--scale"),
        (["--scale", "nan"], "--scale"),
        (["--noise", "-1"], "--noise"),
        (["--out", "/no/such/folder/p.csv"], "--out"),
    ],
)
def test_wrong_flags_are_named(flags: list[str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        run(flags)


@pytest.mark.parametrize(
    "flags",
    [["--stages", "256"], ["--scale", "1e-6"], ["--scale", "1e6"], ["--noise", "20"]],
)
def test_what_it_writes_at_its_limits_can_be_read(flags: list[str], tmp_path: Path) -> None:
    out = tmp_path / "simulated.csv"
    assert run(["--stages", "2", "--noise", "1", *flags, "--out", str(out)]) == 0
    assert profile.read(out).stages in {2, 256}
