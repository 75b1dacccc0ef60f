"""Which GPU a scheduler's name means; what leads nowhere is unknown."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_agent.jobs.inventory import Inventory, minors

A = "GPU-11111111-2222-3333-4444-555555555555"
B = "GPU-66666666-7777-8888-9999-000000000000"
MIG = "MIG-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
HERE = Inventory({0: A, 1: B}, {MIG: B}, {0: B, 1: A, 2: "GPU-elsewhere"})


@pytest.mark.parametrize(
    ("name", "device"),
    [
        (A, (A, False)),
        (f"{A}::0", (A, True)),
        (f"{A}::11", (A, True)),
        ("1", (B, False)),
        (MIG, (B, True)),
        (f"{MIG}::2", (B, True)),
        (f"MIG-{A}/7/0", (A, True)),
        ("MIG-unknown", None),
        ("GPU-unknown", None),
        ("7", None),
        ("\u0661", None),
        ("", None),
        ("::0", None),
    ],
)
def test_device_plugins_name_gpus_in_these_ways(name: str, device: tuple[str, bool] | None) -> None:
    assert HERE.device(name) == device


@pytest.mark.parametrize(
    ("driver", "name", "cdi", "device"),
    [
        ("gpu.nvidia.com", "gpu-0", [f"nvidia.com/gpu={A}"], (A, False)),
        ("gpu.nvidia.com", "any", ["nvidia.com/gpu=1"], (B, False)),
        ("gpu.nvidia.com", "any", [f"nvidia.com/mig={MIG}"], (B, True)),
        ("gpu.nvidia.com", "gpu-0", ["k8s.gpu.nvidia.com/claim=x-gpu-0"], (B, False)),
        ("gpu.nvidia.com", "gpu-1-mig-1g10gb-19-0", [], (A, True)),
        ("gpu.nvidia.com", "gpu-2", [], None),
        ("gpu.nvidia.com", "gpu-9", [], None),
        ("other.example.com", "gpu-0", [], None),
        ("gpu.nvidia.com", "x", ["example.com/gpu=0"], None),
    ],
)
def test_resource_claims_name_gpus_in_these_ways(
    driver: str, name: str, cdi: list[str], device: tuple[str, bool] | None
) -> None:
    assert HERE.claimed(driver, name, cdi) == device


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("0", (B, False)),  # by minor, as Slurm counts
        ("1.3", (A, True)),
        ("1-3", (A, True)),
        (B, (B, False)),
        ("1.x", None),
        ("9", None),
        (".", None),
    ],
)
def test_mapping_files_are_named_so(name: str, device: tuple[str, bool] | None) -> None:
    assert HERE.ordinal(name) == device


def test_mapping_files_are_read_by_index_where_minors_are_not_known() -> None:
    assert Inventory({0: A, 1: B}).ordinal("1-3") == (B, True)
    assert Inventory({0: A, 1: B}, {}, {0: A}).ordinal("1") == (B, False)


@given(st.text())
def test_no_name_is_taken_for_a_gpu_that_is_not_here(name: str) -> None:
    for found in (HERE.device(name), HERE.ordinal(name), HERE.claimed("gpu.nvidia.com", name, [])):
        assert found is None or found[0] in {A, B}


def test_minors_are_what_the_driver_lists(tmp_path: Path) -> None:
    for bus, minor, uuid in (("0000:01:00.0", "3", A), ("0000:02:00.0", "x", B)):
        card = tmp_path / "driver" / "nvidia" / "gpus" / bus
        card.mkdir(parents=True)
        (card / "information").write_text(
            f"Model: \t\t NVIDIA A100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        )
    (tmp_path / "driver/nvidia/gpus/empty").mkdir()
    assert minors(tmp_path) == {3: A}
    assert minors(tmp_path / "nowhere") == {}
