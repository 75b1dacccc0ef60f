"""Energy by owner: every joule of a counter is booked once, whatever happens to the controller."""

import json
import math
from dataclasses import replace

import boards
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_controller.trust.energy_ledger import (
    IDLE,
    SHEET_S,
    UNKNOWN,
    EnergyLedger,
    Payer,
    continued,
    payer_of,
    total,
)
from joulecut_controller.view import GpuView
from joulecut_wire.messages import Allocation, GpuSnapshot
from joulecut_wire.slurm import SlurmJob

ALICE = SlurmJob("1", user="alice", account="physics", partition="gpu")
BOB = SlurmJob("2", user="bob")
GPU = next(iter(boards.board().view.gpus.values()))
OWNERS: list[SlurmJob | None] = [None, ALICE, BOB]


def seen(
    energy_j: float | None, job: SlurmJob | None, busy: float | None = None
) -> dict[str, GpuView]:
    owner = Allocation("G", job.id, source="slurm", labels=job.labels()) if job else None
    shown = GpuSnapshot("G", energy_j=energy_j, utilization_gpu_ratio=busy)
    return {"G": replace(GPU, snapshot=shown, allocation=owner)}


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 40_000.0),  # joules since the look before
            st.floats(0.0, 2 * SHEET_S),  # and seconds
            st.sampled_from(OWNERS),
            st.sampled_from(["", "restart", "close"]),
        )
    )
)
def test_owners_idle_and_unknown_add_up_to_the_board(
    looks: list[tuple[float, float, SlurmJob | None, str]],
) -> None:
    ledger, kept = EnergyLedger(), list[str]()
    now_s, counter_j = 0.0, 1_000.0
    ledger.update(seen(counter_j, None), now_s)
    for grown_j, waited_s, job, what in looks:
        counter_j, now_s = counter_j + grown_j, now_s + waited_s
        ledger.update(seen(counter_j, job), now_s)
        if what == "close" and ledger.is_full:
            kept.append(ledger.closed())
        if what:
            ledger = continued(ledger.text())
    whole = total([*kept, ledger.text()], since_unix_s=-1.0)
    assert math.fsum(whole.joules.values()) == pytest.approx(counter_j - 1_000.0, abs=1e-6)


def test_the_owner_at_the_look_before_pays_and_nobody_for_a_long_silence() -> None:
    ledger = EnergyLedger()
    for at_s, energy_j, job in (
        (0.0, 0.0, None), (5.0, 100.0, ALICE), (10.0, 1_100.0, ALICE), (15.0, 1_500.0, None),
        (20.0, 1_600.0, ALICE), (900.0, 9_600.0, BOB), (1_800.0, 20_000.0, BOB),
    ):  # fmt: skip
        ledger.update(seen(energy_j, job), at_s)
    alice, bob = Payer("job", "alice", "physics", "gpu"), Payer("job", "bob")
    assert ledger.joules == {IDLE: 200.0, alice: 1_400.0, UNKNOWN: 8_000.0, bob: 10_400.0}
    assert payer_of(Allocation("G", "shared", source="slurm")) == UNKNOWN


def test_a_counter_that_restarts_or_leaps_books_what_can_be_true() -> None:
    ledger = EnergyLedger()
    for at_s, energy_j in ((0.0, 5_000.0), (5.0, 300.0), (10.0, 1e15), (15.0, None), (20.0, 50.0)):
        ledger.update(seen(energy_j, ALICE), at_s)
    assert math.fsum(ledger.joules.values()) == 350.0


def test_a_sheet_kept_twice_counts_once_and_a_damaged_one_not() -> None:
    ledger = EnergyLedger()
    ledger.update(seen(0.0, ALICE), 0.0)
    ledger.update(seen(100.0, ALICE), 10.0)
    half = ledger.text()
    ledger.update(seen(150.0, ALICE), 20.0)
    whole = ledger.closed()
    for damaged in (
        "",
        "[]",
        "[1, 0, 1, [], 0]",
        whole.replace("150.0", "NaN"),
        "[3, 0, 9, [], {}]",
    ):
        found = total([half, damaged, whole, half], since_unix_s=-1.0)
        assert list(found.joules.values()) == [150.0]
        with pytest.raises(ValueError, match=r"."):
            continued(damaged)
    assert total([whole], since_unix_s=20.0) is None


def test_a_gpu_that_its_job_does_not_use_is_its_owners_and_named() -> None:
    ledger, alice = EnergyLedger(), Payer("job", "alice", "physics", "gpu")
    unused = replace(alice, kind="unused")
    looks: list[tuple[SlurmJob | None, float | None]] = [
        (ALICE, 1.0), (ALICE, 0.0), (ALICE, 0.0), (ALICE, 0.0), (ALICE, 0.0), (ALICE, 0.5),
        (ALICE, 0.0), (BOB, 0.0), (None, 0.0), (None, 0.0), (None, 0.0), (ALICE, None),
        (ALICE, None), (ALICE, None), (ALICE, None),
    ]  # fmt: skip
    named = []
    for number, (job, busy) in enumerate(looks):
        ledger.update(seen(100.0 * number, job, busy), 60.0 * number, 150.0)
        named.append(bool(ledger.unused_s(60.0 * number)))
    assert [number for number, one in enumerate(named) if one] == [3, 4]
    assert ledger.joules[unused] == 200.0
    assert ledger.gpu_s[unused] == 120.0
    assert continued(ledger.text()).gpu_s == ledger.gpu_s
    assert math.fsum(ledger.joules.values()) == 1_400.0


def test_a_sheet_of_the_version_before_is_read() -> None:
    text = json.dumps([1, 0.0, 10.0, [["job", "alice", "", "", "", 5.0]], {"G": [5.0, 10.0, 0]}])
    ledger = continued(text)
    ledger.update(seen(25.0, None), 11.0)
    assert ledger.joules == {Payer("job", "alice"): 25.0}
