"""Energy between looks: it adds up, whatever happens to counters, exporters and owners."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecut_lab.audit.auditor import Auditor, Meter
from joulecut_lab.audit.exporters import blank
from joulecut_lab.audit.finding import Audit
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


def test_a_gpu_that_changed_hands_unseen_belongs_to_neither() -> None:
    meter = Meter()
    meter.step(GpuReading("g", "a", 1000.0), 0.0, STEP_S)
    [spent] = meter.step(GpuReading("g", "b", 61_000.0), 600.0, STEP_S)
    assert (spent.owner, spent.joules, spent.gap) == (UNSEEN, 60_000.0, True)


def _audit(steps: int, **figures: list[float]) -> Audit:
    """One GPU of job `a`; a figure of one value is constant, others are a step each."""
    auditor = Auditor()
    for number in range(steps):
        now = {name: values[min(number, len(values) - 1)] for name, values in figures.items()}
        auditor.take(Frame(number * STEP_S, STEP_S, (GpuReading("g", "a", **now),)))
    return auditor.finish({})


def test_readings_that_cannot_be_are_left_out_and_counted() -> None:
    spike = [400.0] * 30 + [3.7e12] + [400.0] * 30
    audit = _audit(61, power_w=spike, busy_ratio=[0.9])
    assert audit.energy_j == pytest.approx(59 * 400.0 * STEP_S)
    assert audit.energy_unknown_s == STEP_S
    assert audit.impossible == (("power_w", 1),)
    silent = _audit(61, power_w=[float("inf")], busy_ratio=[9.2e16])
    assert (silent.energy_j, silent.energy_unknown_s) == (0.0, 60 * STEP_S)
    assert silent.jobs[0].busy_s is None
    assert dict(silent.impossible) == {"power_w": 61, "busy_ratio": 61}
    nothing = _audit(61, power_w=[0.0], busy_ratio=[float("nan")])
    assert (nothing.energy_unknown_s, nothing.contradictions) == (60 * STEP_S, ())
    assert dict(nothing.impossible) == {"power_w": 61, "busy_ratio": 61}
    above = _audit(61, power_w=[390.0, 3000.0, 390.0], power_limit_w=[400.0], busy_ratio=[0.9])
    assert above.impossible == (("power_w", 1),)


@pytest.mark.parametrize("value", [140737488355328.0, 140737488355329.0, 9223372036854775792.0])
def test_a_blank_of_dcgm_is_no_value(value: float) -> None:
    assert blank(value)
    assert not blank(2147483632.0), "a counter of energy may show it"


def test_of_several_signs_of_work_the_strongest_counts_and_nothing_is_called_measured() -> None:
    mig = _audit(61, power_w=[400.0], busy_ratio=[0.0], engine_ratio=[0.97])
    (job,) = mig.jobs
    assert job.busy_s == pytest.approx(60 * STEP_S)
    assert job.idle_j is None
    assert job.idle_text == "readings contradict each other: busy says at rest, engine at work"
    assert mig.contradictions == ("busy says at rest, engine at work (1 GPUs, 1 GPU hours)",)
    for signs, said in (
        ({"tensor_ratio": [0.6]}, "busy says at rest, tensor at work"),
        ({"power_w": [650.0], "power_limit_w": [700.0]}, "busy says at rest, power at work"),
        ({"power_w": [120.0], "power_limit_w": [700.0]}, ""),  # contexts at rest
    ):
        unsaid = _audit(61, busy_ratio=[0.0], **signs).contradictions
        assert [line.split(" (")[0] for line in unsaid] == ([said] if said else [])
    weak = _audit(61, power_w=[15.0], power_limit_w=[700.0], busy_ratio=[0.9])
    assert weak.contradictions == ("power says at rest, busy at work (1 GPUs, 1 GPU hours)",)
    waiting = _audit(61, power_w=[400.0], busy_ratio=[1.0], engine_ratio=[0.99], sm_ratio=[0.01])
    assert not waiting.contradictions, "a kernel that waits for others keeps the engine busy"


@pytest.mark.parametrize(("ratio", "said"), [(1.2, True), (0.85, True), (1.05, False)])
def test_counter_and_power_that_differ_for_an_hour_are_a_contradiction(
    ratio: float, said: bool
) -> None:
    counter = [400.0 * ratio * STEP_S * step for step in range(200)]
    audit = _audit(200, power_w=[400.0], energy_j=counter, busy_ratio=[0.9])
    assert bool(audit.contradictions) is said
    (job,) = audit.jobs
    assert (job.idle_j is None) is said
    short = _audit(50, power_w=[400.0], energy_j=counter, busy_ratio=[0.9])
    assert not short.contradictions


def test_nothing_of_a_job_joined_by_name_is_measured() -> None:
    auditor = Auditor()
    for number in range(9):
        gpus = [GpuReading(f"g{n}", "exp", None, 400.0, 1200.0 + 60 * n, 0.9) for n in range(4)]
        auditor.take(Frame(number * STEP_S, STEP_S, tuple(gpus)))
    (job,) = auditor.finish({}, {"exp": "joined by name"}).jobs
    assert (job.idle_j, job.idle_text) == (None, "joined by name")
