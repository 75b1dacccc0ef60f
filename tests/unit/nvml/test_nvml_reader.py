"""What the reader makes of NVML's answers, silences and errors."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixture import CompilerMissing, FakeNvml

READ = """
from dataclasses import asdict
from joulecut_agent.nvml import backend
reader = backend.open_reader({}, "")
def told(reading):
    error = reading.error and [type(reading.error).__name__, reading.error.code, str(reading.error)]
    return {
        "snapshot": reading.snapshot and asdict(reading.snapshot),
        "error": error,
        "calls": [call for call, _ in reading.call_seconds],
    }
answer = [told(reading) for reading in reader.read()]
"""
DESCRIBE = READ + "answer = [asdict(gpu) for gpu in reader.describe()]\n"
NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, LOST, TIMEOUT, UNKNOWN = 3, 4, 13, 15, 10, 999

FIELDS_OF_CALLS = {
    "nvmlDeviceGetTotalEnergyConsumption": {"energy_j"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_enforced_w"},
    "nvmlDeviceGetUtilizationRates": {"utilization_gpu_ratio", "utilization_memory_ratio"},
    "nvmlDeviceGetClockInfo": {"clock_sm_mhz", "clock_memory_mhz"},
}
FIELDS_WITH_A_SECOND_CALL = {
    "nvmlDeviceGetFieldValues": "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetMemoryInfo_v2": "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetTemperatureV": "nvmlDeviceGetTemperature",
    "nvmlDeviceGetCurrentClocksEventReasons": "nvmlDeviceGetCurrentClocksThrottleReasons",
}


def _node(path: Path, model: str = "h100", gpus: int = 2) -> FakeNvml:
    try:
        return FakeNvml(path / f"{model}.state", gpus, model)
    except CompilerMissing as missing:
        pytest.skip(str(missing))


def _absent(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name, value in after.items() if value is None and before[name] is not None}


def test_a_healthy_gpu_answers_every_field(tmp_path: Path) -> None:
    reading = _node(tmp_path).ask(READ)[0]
    missing = [name for name, value in reading["snapshot"].items() if value is None]
    # Power is integrated only where no counter has the GPU's own energy.
    assert missing == ["lease", "energy_integrated_j"]
    assert reading["error"] is None
    assert set(reading["calls"]) >= {"nvmlDeviceGetFieldValues", *FIELDS_OF_CALLS}
    ecc = "nvmlDeviceGetTotalEccErrors"
    assert sum(call != ecc for call in reading["calls"]) == 13  # no second call where one answers


def test_nvml_units_become_base_units(tmp_path: Path) -> None:
    node = _node(tmp_path)
    node.set_load(1, 0.25)
    node.set_memory_used(1, 7 << 30)
    node.advance(1000)
    told = node.ask(
        "h = n.nvmlDeviceGetHandleByIndex(1)\n"
        "before_mj = n.nvmlDeviceGetTotalEnergyConsumption(h)\n" + READ + "answer = [before_mj, "
        "answer[1]['snapshot'], n.nvmlDeviceGetTotalEnergyConsumption(h), "
        "n.nvmlDeviceGetPowerUsage(h)]"
    )
    before_mj, snapshot, after_mj, usage_mw = told
    assert before_mj / 1000 <= snapshot["energy_j"] <= after_mj / 1000
    assert snapshot["power_average_w"] == pytest.approx(usage_mw / 1000, rel=1e-3)
    assert snapshot["utilization_gpu_ratio"] == 0.25
    assert snapshot["memory_used_bytes"] == 7 << 30
    assert snapshot["power_limit_enforced_w"] == 700.0
    assert (snapshot["clock_sm_mhz"], snapshot["clock_memory_mhz"]) == (1980, 2619)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND])
def test_what_a_device_cannot_tell_is_absent_and_no_error(tmp_path: Path, code: int) -> None:
    node = _node(tmp_path)
    whole = node.ask(READ)[0]["snapshot"]
    for call, fields in FIELDS_OF_CALLS.items():
        node.set_error(call, code, gpu=0)
        reading, other = node.ask(READ)
        assert _absent(whole, reading["snapshot"]) == fields
        assert _absent(whole, other["snapshot"]) == set()
        assert reading["error"] is None
        node.clear_errors()


@pytest.mark.parametrize("code", [TIMEOUT, UNKNOWN])
def test_a_call_that_fails_leaves_a_gap_and_a_reason(tmp_path: Path, code: int) -> None:
    node = _node(tmp_path)
    whole = node.ask(READ)[0]["snapshot"]
    node.set_error("nvmlDeviceGetTotalEnergyConsumption", code, gpu=0)
    reading, other = node.ask(READ)
    assert _absent(whole, reading["snapshot"]) == {"energy_j"}
    kind, _, text = reading["error"]
    assert kind == "Transient"
    assert "nvmlDeviceGetTotalEnergyConsumption" in text
    assert "GPU 0" in text
    assert other["error"] is None


def test_an_older_driver_is_asked_the_older_way(tmp_path: Path) -> None:
    node = _node(tmp_path)
    node.set_load(0, 1.0)
    node.advance(600)  # average and temperature settle, so that both ways tell the same
    whole = node.ask(READ)[0]["snapshot"]
    for newer in FIELDS_WITH_A_SECOND_CALL:
        node.set_error(newer, FUNCTION_NOT_FOUND)
    reading = node.ask(READ)[0]
    assert reading["error"] is None
    assert _absent(whole, reading["snapshot"]) == {"power_instant_w"}
    assert reading["snapshot"]["event_reasons"] == ["sw_power_cap"]
    moving = {"energy_j", "power_instant_w"}
    assert {k: v for k, v in reading["snapshot"].items() if k not in moving} == {
        k: v for k, v in whole.items() if k not in moving
    }


@pytest.mark.parametrize(
    ("model", "average_known"), [("a100", False), ("a40", True), ("h100", True)]
)
def test_power_is_called_what_it_is(tmp_path: Path, model: str, average_known: bool) -> None:
    """PowerUsage is a 1 s average on Ampere and newer, but the moment's power on GA100."""
    node = _node(tmp_path, model)
    for fields_known in (True, False):
        if not fields_known:
            node.set_error("nvmlDeviceGetFieldValues", NOT_SUPPORTED)
        snapshot = node.ask(READ)[0]["snapshot"]
        assert (snapshot["power_average_w"] is not None) == average_known
        assert (snapshot["power_instant_w"] is not None) == (fields_known or not average_known)


def test_each_field_value_is_judged_by_its_own_return_code(tmp_path: Path) -> None:
    node = _node(tmp_path)
    node.set_error("field:186", UNKNOWN, gpu=0)
    node.set_error("field:186", LOST, gpu=1)
    failing, lost = node.ask(READ)
    assert failing["snapshot"]["power_instant_w"] is None
    assert failing["snapshot"]["power_average_w"] == 70.0
    assert failing["error"][:2] == ["Transient", "unknown"]
    assert (lost["snapshot"], lost["error"][:2]) == (None, ["Gone", "gpu_is_lost"])


def test_a_gpu_lost_before_the_start_is_left_out_until_it_answers(tmp_path: Path) -> None:
    node = _node(tmp_path, gpus=3)
    node.lose(1)
    told = node.ask(DESCRIBE + "answer = [[g['index'] for g in answer], len(reader.read())]")
    assert told == [[0, 2], 2]
    node.clear_errors()
    assert [gpu["index"] for gpu in node.ask(DESCRIBE)] == [0, 1, 2]


def test_virtual_gpus_and_silent_cards_are_not_controllable(tmp_path: Path) -> None:
    node = _node(tmp_path)
    node.set_error("nvmlDeviceGetMigMode", NOT_SUPPORTED)  # most cards have no MIG at all
    node.set_error("nvmlDeviceGetSupportedMemoryClocks", NOT_SUPPORTED, gpu=1)
    node.set_error("nvmlDeviceGetPowerManagementLimitConstraints", NOT_SUPPORTED)
    first, second = node.ask(DESCRIBE)
    assert first["controllable"]
    assert (first["power_limit_min_w"], first["power_limit_default_w"]) == (0.0, 700.0)
    assert (second["clocks_mhz"], second["controllable"]) == ([], False)
    assert second["reason"]


def test_nvml_is_opened_and_closed_in_pairs(tmp_path: Path) -> None:
    """Left open, a driver could not be reloaded; closed twice, it would close on others."""
    told = _node(tmp_path).ask("""
from joulecut_agent.nvml import backend
n.nvmlShutdown()
reader, writer = backend.open_reader({}, ""), backend.open_writer({}, "")
answer = [code(n.nvmlDeviceGetCount)]
writer.close(), writer.close()
answer.append(code(n.nvmlDeviceGetCount))
reader.close(), reader.close()
answer.append(code(n.nvmlDeviceGetCount))
""")
    assert told == [0, 0, 1]


@pytest.mark.parametrize("port", ["reader", "writer"])
def test_no_driver_is_one_sentence(tmp_path: Path, port: str) -> None:
    script = f"""
from joulecut_agent.nvml import backend
from joulecut_agent.ports.failure import DeviceError
try:
    backend.open_{port}({{}}, "")
except DeviceError as error:
    print(type(error).__name__, error.code, error, sep="|")
"""
    node = _node(tmp_path)
    nowhere = {**node.environment(), "JOULECUT_FAKE_NVML_STATE": str(tmp_path / "nowhere")}
    told = subprocess.run(
        [sys.executable, "-c", script], env=nowhere, capture_output=True, text=True, check=True
    )
    assert told.stdout == "Gone|driver_not_loaded|the NVIDIA driver is not loaded\n"


def test_no_library_is_one_sentence() -> None:
    script = """
import ctypes, sys
def refuse(*_arguments, **_options):
    raise OSError("no such library")
ctypes.CDLL = refuse  # as on a machine without a driver, wherever this runs
from joulecut_agent.nvml import backend
from joulecut_agent.ports.failure import DeviceError
try:
    backend.open_reader({}, "")
except DeviceError as error:
    print(type(error).__name__, error.code, error, sep="|")
"""
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert told.stdout == (
        "Gone|library_not_found|libnvidia-ml.so.1 was not found: "
        "is the NVIDIA driver installed here?\n"
    )


def test_workload_power_profiles_are_told_by_name(tmp_path: Path) -> None:
    node = _node(tmp_path, "b200")
    call = "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles"
    assert node.ask(READ)[0]["snapshot"]["power_profiles"] == []
    node.set_profiles(0, requested=(1, 7), enforced=(1,))
    reading, other = node.ask(READ)
    assert reading["snapshot"]["power_profiles"] == ["max_q"]
    assert other["snapshot"]["power_profiles"] == []
    older = _node(tmp_path, "h100").ask(READ)[0]
    assert older["snapshot"]["power_profiles"] == []
    assert call not in older["calls"]  # a card without them is not asked at each tick
