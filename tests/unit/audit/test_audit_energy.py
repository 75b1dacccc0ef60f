"""Energy between looks: it adds up, whatever happens to counters, exporters and owners."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_lab.audit.auditor import Auditor, Meter
from joulecut_lab.audit.reading import NO_OWNER, SHARED, UNSEEN, Frame, GpuReading

STEP_S = 60.0


def _frames(steps: list[tuple[float, str] | None]) -> Auditor:
    """One GPU; each step its watts and owner, None where its exporter is silent."""
    auditor, energy_j = Auditor(), 5e5
    for number, step in enumerate(steps):
        if step is None:
            energy_j += 100.0 * STEP_S
            continue
        power_w, owner = step
        energy_j += power_w * STEP_S if number else 0.0
        reading = GpuReading("g", owner, energy_j, power_w, 1410.0, 0.9)
        auditor.take(Frame(number * STEP_S, STEP_S, (reading,)))
    return auditor


_STEP = st.one_of(
    st.none(),
    st.tuples(st.floats(10.0, 700.0), st.sampled_from(["a", "b", NO_OWNER, SHARED])),
)


@given(st.lists(_STEP, min_size=2, max_size=60))
def test_jobs_and_the_rest_add_up_to_the_boards(steps: list[tuple[float, str] | None]) -> None:
    auditor = _frames(steps)
    audit = auditor.finish({}, {})
    parts = sum(job.energy_j for job in audit.jobs)
    parts += audit.rest.free_j + audit.rest.shared_j + audit.rest.unseen_j
    assert parts == pytest.approx(audit.energy_j)
    shown = [n for n, step in enumerate(steps) if step is not None]
    used_j = 0.0
    if shown:
        inside = steps[shown[0] + 1 : shown[-1] + 1]
        used_j = sum((100.0 if step is None else step[0]) * STEP_S for step in inside)
    assert audit.energy_j == pytest.approx(used_j)


def test_a_counter_that_began_anew_is_bridged_by_power() -> None:
    meter = Meter()
    meter.step(GpuReading("g", "a", 9e6, 300.0), 0.0, STEP_S)
    [spent] = meter.step(GpuReading("g", "a", 400.0, 250.0), 60.0, STEP_S)
    assert spent.joules == pytest.approx(250.0 * 60.0)
    assert meter.resets == 1


def test_a_counter_that_leaps_is_not_believed() -> None:
    meter = Meter()
    meter.step(GpuReading("g", "a", 1e3, 300.0), 0.0, STEP_S)
    [spent] = meter.step(GpuReading("g", "a", 1e12, 300.0), 60.0, STEP_S)
    assert spent.joules == pytest.approx(300.0 * 60.0)


def test_without_counter_and_power_nothing_is_made_up() -> None:
    meter = Meter()
    meter.step(GpuReading("g", "a"), 0.0, STEP_S)
    [spent] = meter.step(GpuReading("g", "a"), 60.0, STEP_S)
    assert (spent.joules, spent.seconds) == (None, 60.0)


def test_a_gpu_that_changed_hands_unseen_belongs_to_neither() -> None:
    meter = Meter()
    meter.step(GpuReading("g", "a", 1000.0), 0.0, STEP_S)
    [spent] = meter.step(GpuReading("g", "b", 61_000.0), 600.0, STEP_S)
    assert (spent.owner, spent.joules, spent.gap) == (UNSEEN, 60_000.0, True)
