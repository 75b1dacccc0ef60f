"""The two levels: equal where they must be, ordered where they may differ."""

from dataclasses import replace

import pytest

from joulecut_lab.model import formula
from joulecut_lab.model.architecture import Architecture
from joulecut_lab.model.catalogue import SYSTEMS
from joulecut_lab.model.graph_level import simulate
from joulecut_lab.model.run import Run, misfit

# Hardly a vocabulary: all stages are alike.
ALIKE = Architecture(64, 4096, 32, 32, 16384, 8, positions=2048)
REAL = replace(ALIKE, vocab=51200)
# Links without delay, so that only the schedule counts.
FREE = replace(
    SYSTEMS["a100-sxm-80gb"],
    scale_out_gb_s=1e9,
    scale_up_gb_s=1e9,
    scale_up_latency_s=0.0,
    scale_out_latency_s=0.0,
    power_cap_w=1e6,
    kernel_s=0.0,
    launch_s=0.0,  # an embedding is launches more than work
)
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe-v")
CHUNKS = {"interleaved-1f1b": 2, "zb-v": 2, "dualpipe-v": 2}


def run_of(schedule: str, stages: int = 8, microbatches: int = 24) -> Run:
    return Run(
        8 * stages,
        8,
        stages,
        schedule=schedule,
        chunks=CHUNKS.get(schedule, 1),
        global_batch=microbatches,
        flash_attention=True,
        clock_mhz=1410.0,
    )


@pytest.mark.parametrize("microbatches", [8, 24, 96])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved-1f1b"])
def test_formula_and_graph_are_equal_without_links_and_with_equal_stages(
    schedule: str, microbatches: int
) -> None:
    run = run_of(schedule, microbatches=microbatches)
    closed = formula.estimate(ALIKE, FREE, run)
    laid_out, _ = simulate(ALIKE, FREE, run)
    assert laid_out.iteration_time_s == pytest.approx(closed.iteration_time_s, rel=4e-3)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("microbatches", [24, 96])
def test_formula_is_near_the_graph_with_logits_and_links(schedule: str, microbatches: int) -> None:
    run = run_of(schedule, microbatches=microbatches)
    assert misfit(run, REAL) is None
    closed = formula.estimate(REAL, SYSTEMS["a100-sxm-80gb"], run)
    laid_out, _ = simulate(REAL, SYSTEMS["a100-sxm-80gb"], run)
    near = 0.07 if schedule in {"zb-v", "dualpipe-v"} else 0.03  # both ends on one stage
    assert laid_out.iteration_time_s == pytest.approx(closed.iteration_time_s, rel=near)


@pytest.mark.parametrize(("schedule", "idle"), [("1f1b", 26.5), ("zb-h1", 14.2), ("zb-h2", 6.4)])
def test_transfers_and_uneven_halves_give_the_published_idle_share(
    schedule: str, idle: float
) -> None:
    """28.3B on 32 A100, 96 microbatches: percent of time, from the zero-bubble paper (ICLR 2024).

    Its softmax and dropout belong to forward and input alone, so the gradient
    of weights is less than a third and fills less of the bubble than the ideal table says.
    """
    model = Architecture(
        62, 6144, 48, 48, 4 * 6144, 50304, positions=1024, tied=True, bias=True, norm_bias=True
    )
    run = Run(32, 1, 32, schedule=schedule, global_batch=96, sequence=1024, dtype="fp16")
    system = SYSTEMS["a100-sxm-80gb"]
    for found in (formula.estimate(model, system, run), simulate(model, system, run)[0]):
        parts = found.breakdown_s
        working_s = found.iteration_time_s - parts["optimizer"]
        share = (parts["bubble"] + parts["pipeline_comm"]) / working_s
        assert 100.0 * share == pytest.approx(idle, abs=1.5)


def test_an_evaluation_waits_for_forwards_alone() -> None:
    """16 microbatches pass 8 equal stages: 7 forwards of bubble at every level."""
    run = replace(run_of("1f1b", microbatches=16), forward_only=True)
    levels = (formula.estimate, lambda *given: simulate(*given)[0])
    for parts in (level(ALIKE, FREE, run).breakdown_s for level in levels):
        assert parts["bubble"] == pytest.approx(parts["forward"] * 7 / 16, rel=0.03)
        assert parts["backward"] == parts["recompute"] == 0.0


def test_slow_links_change_the_ranking_of_schedules() -> None:
    """More chunks send more often: ahead with free links, behind with slow ones."""
    slow = replace(SYSTEMS["a100-sxm-80gb"], scale_out_gb_s=0.05, power_cap_w=1e6)
    plain, deep = run_of("gpipe", microbatches=8), run_of("interleaved-1f1b", microbatches=8)

    def faster(system: object) -> bool:
        times = [simulate(ALIKE, system, run)[0].iteration_time_s for run in (plain, deep)]
        return times[1] < times[0]

    assert faster(FREE)
    assert not faster(slow)
