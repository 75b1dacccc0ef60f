"""A measured window survives the store, and what is no window is refused."""

import json
import math
from dataclasses import replace

import pytest

from joulecut_controller.trust.window import MeasuredWindow, from_json, to_json

WINDOW = MeasuredWindow(
    job="gpt3",
    shape="1f1b 4x24",
    arm="plan",
    generation=7,
    begun_unix_s=1.7e9,
    ended_unix_s=1.7e9 + 300.0,
    gpus=4,
    iterations=150,
    time_mean_s=2.0,
    time_sd_s=0.02,
    energy_j=900.0,
    predicted_energy_j=890.0,
)


def test_a_window_comes_back_as_it_was() -> None:
    assert from_json(to_json(WINDOW)) == WINDOW


def test_keys_of_a_newer_version_are_passed_over() -> None:
    data = json.loads(to_json(WINDOW)) | {"humidity_ratio": 0.4}
    assert from_json(json.dumps(data)) == WINDOW


@pytest.mark.parametrize("text", ["", "[]", "{}", '"x"', "{"])
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(text)


@pytest.mark.parametrize("text", ["1" + 400 * "0", "NaN", "Infinity", "-1", "true", "null"])
@pytest.mark.parametrize("key", ["iterations", "gpus"])
def test_a_window_with_a_number_that_breaks_sums_is_refused(key: str, text: str) -> None:
    whole = to_json(WINDOW)
    damaged = whole.replace(f'"{key}":{getattr(WINDOW, key)}', f'"{key}":{text}')
    assert damaged != whole
    with pytest.raises(ValueError, match="no measurement"):
        from_json(damaged)


def test_a_record_that_nests_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="no measurement"):
        from_json('{"humidity":' + 20_000 * "[" + 20_000 * "]" + "}")


def test_numbers_that_are_none_are_not_kept() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(replace(WINDOW, energy_j=math.nan))
