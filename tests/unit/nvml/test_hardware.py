"""ECC, NVLink and XID errors, as the reader counts them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from device_rigs import Client, NvmlRig

from fixture import CompilerMissing, FakeNvml


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[NvmlRig]:
    try:
        made = NvmlRig(tmp_path)
    except CompilerMissing as missing:
        pytest.skip(str(missing))
    yield made
    made.close()


def hardware(client: Client) -> list[dict[str, Any]]:
    return [reading["hardware"] for reading in client.ask("reader", "read")]


def test_errors_and_traffic_are_the_devices_own_totals(rig: NvmlRig) -> None:
    rig.fake.set_ecc_errors(1, corrected=7, uncorrected=2)
    rig.fake.set_nvlink_errors(1, crc_flit=3, crc_data=4, replay=5, recovery=6)
    rig.fake.set_traffic(1, nvlink_tx=2048.0 * 1024, nvlink_rx=1024.0 * 1024)
    rig.fake.advance(10.0)
    clean, counted, *_ = hardware(rig.client())
    assert counted["ecc_errors"] == [
        ["corrected", "volatile", 7],
        ["corrected", "aggregate", 7],
        ["uncorrected", "volatile", 2],
        ["uncorrected", "aggregate", 2],
    ]
    assert dict(counted["nvlink_errors"]) == {
        "crc_flit": 3, "crc_data": 4, "replay": 5, "recovery": 6,
    }  # fmt: skip
    sent = dict(counted["nvlink_bytes"])
    assert 20 << 20 <= sent["tx"] == pytest.approx(2 * sent["rx"], abs=2048)
    assert {count for *_, count in clean["ecc_errors"]} == {0}
    assert dict(clean["nvlink_bytes"]) == {"tx": 0, "rx": 0}


def test_xid_errors_are_counted_and_the_last_of_a_lost_gpu_too(rig: NvmlRig) -> None:
    client = rig.client()
    assert all(not counted["xid_errors"] for counted in hardware(client))
    for _ in range(2):
        rig.fake.xid(0, 31)
    rig.fake.lose(1, xid=79)
    xids = [counted["xid_errors"] for counted in hardware(client)]
    assert xids == [[[31, 2]], [[79, 1]], [], []]
    again = hardware(client)
    assert [counted["xid_errors"] for counted in again] == xids, "each counts once"
    assert [bool(counted["ecc_errors"]) for counted in again] == [True, False, True, True]


@pytest.mark.parametrize(
    ("call", "lacks"),
    [
        ("nvmlDeviceGetTotalEccErrors", "ecc_errors"),
        ("field:138", "nvlink_bytes"),
        ("nvmlDeviceRegisterEvents", "xid_errors"),
        ("nvmlEventSetCreate", "xid_errors"),
        ("nvmlEventSetWait_v2", "xid_errors"),
    ],
)
@pytest.mark.parametrize("code", [3, 999])  # not supported, unknown
def test_a_card_without_a_counter_is_read_all_the_same(
    rig: NvmlRig, call: str, lacks: str, code: int
) -> None:
    rig.fake.set_error(call, code)
    client = rig.client()
    first, second = client.ask("reader", "read"), client.ask("reader", "read")
    for reading in (*first, *second):
        assert reading["error"] is None
        assert reading["snapshot"]["power_instant_w"] is not None
    absent = dict(first[0]["hardware"][lacks]) if lacks == "nvlink_bytes" else first[0]["hardware"]
    assert "tx" not in absent if lacks == "nvlink_bytes" else not absent[lacks]


def test_a_card_without_nvlink_has_no_counters_of_it(tmp_path: Path) -> None:
    try:
        node = FakeNvml(tmp_path / "a40.state", 1, "a40")
    except CompilerMissing as missing:
        pytest.skip(str(missing))
    counted = node.ask("""
from joulecut_agent.nvml import backend
[reading] = backend.open_reader({}, "").read()
answer = [reading.hardware.nvlink_bytes, reading.hardware.nvlink_errors]
""")
    assert counted == [[], []]
