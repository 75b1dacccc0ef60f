"""Energy where the counter counts more than the GPU: power is integrated, with books of its own."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from quiet_source import QuietSource

from joulecut_agent.counters import Counters
from joulecut_agent.monitor.energy_account import EnergyFile
from joulecut_agent.monitor.job_energy import GAP_S
from joulecut_agent.monitor.power_integral import PowerIntegral
from joulecut_agent.monitor.sampler import Sampler
from joulecut_agent.ports.reader import Reading
from joulecut_wire.card_facts import CardFacts, scope_of
from joulecut_wire.messages import GpuDescription, GpuSnapshot

POWERS = st.one_of(st.none(), st.floats(0.0, 1200.0))


def _reading(uuid: str, at_s: float, power_w: float | None, counter_j: float = 0.0) -> Reading:
    shown = GpuSnapshot(uuid, power_average_w=power_w, energy_j=counter_j)
    return Reading(uuid, shown, None, (), at_s)


def test_scopes_of_cards() -> None:
    assert scope_of("NVIDIA GH200 480GB") == "module"
    assert scope_of("NVIDIA GB200") == scope_of("NVIDIA GB10") == "", "not public"
    assert {scope_of(name) for name in ("NVIDIA H200", "NVIDIA A40", "unreadable")} == {"gpu"}


@given(st.lists(st.tuples(st.floats(0.01, 2.0 * GAP_S), POWERS), min_size=1, max_size=40))
def test_the_integral_is_that_of_power_and_never_falls(
    steps: list[tuple[float, float | None]],
) -> None:
    integral, at_s, before_j, most_j, last_w = PowerIntegral(), 100.0, 0.0, 0.0, 0.0
    since_s = 0.0
    for step_s, power_w in steps:
        at_s, since_s = at_s + step_s, since_s + step_s
        shown = integral.counted(_reading("g", at_s, power_w, 1e9), at_s).snapshot
        assert shown.energy_j is None
        if power_w is None:
            continue
        most_j += max(last_w, power_w) * since_s
        assert before_j <= shown.energy_integrated_j <= most_j * (1.0 + 1e-9) + 1e-9
        before_j, last_w, since_s = shown.energy_integrated_j, power_w, 0.0


class Cards(QuietSource):
    """A source of two cards: the counter of the first is the module's, 60 W more than the GPU."""

    def __init__(self, model: str) -> None:
        self.gpus = tuple(
            GpuDescription(
                uuid, index, name, (1980,), energy_scope=scope_of(name), driver="1", vbios="2"
            )
            for index, (uuid, name) in enumerate((("module", model), ("board", "NVIDIA H200")))
        )
        self.at_s, self.gpu_j, self.module_j = 1000.0, 0.0, 0.0

    def read(self) -> tuple[Reading, ...]:
        self.at_s += 1.0
        self.gpu_j += 300.0
        self.module_j += 360.0
        return (
            _reading("module", self.at_s, 300.0, self.module_j),
            _reading("board", self.at_s, 300.0, self.gpu_j),
        )


@pytest.mark.parametrize("measured", [False, True])
def test_jobs_and_idle_add_up_in_each_scope(tmp_path: Path, measured: bool) -> None:
    """Known by its name, or measured by a self-test in a card whose scope nobody has published."""
    source = Cards("NVIDIA GB200" if measured else "NVIDIA GH200 480GB")
    facts = CardFacts("module", "1", "2", "NVIDIA GB200", 1.7e9, counter_scope="module")
    jobs: dict[str, tuple[str, ...]] = {}
    sampler = Sampler(
        source, 1.0, Counters(), jobs=lambda: jobs, file=EnergyFile(tmp_path / "energy", "b"),
        measured=[facts] if measured else [],
    )  # fmt: skip
    assert [gpu.energy_scope for gpu in sampler.gpus] == ["module", "gpu"]
    for tick in range(30):
        if tick == 10:
            jobs = {"module": ("red",), "board": ("red",)}
        sampler._turn()
    reading = sampler.latest()
    module, board = reading.snapshot.gpus
    assert module.energy_j is None
    assert board.energy_integrated_j is None
    assert sampler.account.books_of_integrals.total_j() == pytest.approx(module.energy_integrated_j)
    assert module.energy_integrated_j == pytest.approx(29 * 300.0)  # the GPU's, not the module's
    assert sampler.account.books.total_j() == pytest.approx((board.energy_j or 0.0) - 300.0)
    assert set(sampler.account.books.idle_j) == {"board"}
    red = sampler.account.books_of_integrals.measured_j["red"]
    assert red == pytest.approx(sampler.account.books.measured_j["red"], rel=0.1)
    # An agent that follows goes on where this one ended, in both scopes.
    sampler.account.save()
    after = Sampler(
        source, 1.0, Counters(), jobs=lambda: jobs, file=EnergyFile(tmp_path / "energy", "b"),
        measured=[facts] if measured else [],
    )  # fmt: skip
    after._turn()
    after._turn()
    assert after.account.books_of_integrals.measured_j["red"] >= red + 299.0
