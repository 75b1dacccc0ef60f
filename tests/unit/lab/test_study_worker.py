"""The real card's bench: its loop against a worker with a name, and against torch where it is."""

import importlib.util
import time
from collections.abc import Callable

import pytest

from joulecut_agent.ports.failure import Gone
from joulecut_lab.study.bench import Machine
from joulecut_lab.study.cell import Cell
from joulecut_lab.study.layer import sweep
from joulecut_lab.study.measure import QUICK, Rule, measure
from joulecut_lab.study.torch_bench import (
    QUEUED,
    STUCK_S,
    TorchWorker,
    WorkedBench,
    torch_module,
)
from joulecut_sim.layer import Dtype, Shape, shape
from joulecut_wire.errors import Unavailable
from joulecut_wire.messages import GpuSnapshot

MACHINE = Machine("measured", "Paper Card", "GPU-p", "1.0", (600, 900), ("fp16",))
CELL = Cell(shape("gpt-125m", 512, 4), "fp16", "training")


class PaperCard:
    """A card on paper: a queue, a clock and a meter that follow one virtual time."""

    dtypes: tuple[Dtype, ...] = ("fp16",)

    def __init__(self, pass_s: float = 0.004, power_w: float = 120.0) -> None:
        self.pass_s, self.power_w = pass_s, power_w
        self.at_s = 50.0
        self.free_s = 50.0  # when the queue runs empty
        self.idle_s = 0.0
        self.deepest = 0
        self.queued: list[float] = []
        self.refusal = ""
        self.lost = False
        self.hung = False
        self.closed = False

    def prepare(self, cell: Cell) -> str:
        return self.refusal

    def start(self, passes: int) -> Callable[[], bool]:
        self.idle_s += max(0.0, self.at_s - self.free_s)
        ends_s = max(self.at_s, self.free_s) + passes * self.pass_s
        self.free_s = ends_s
        self.queued = [end for end in self.queued if end > self.at_s] + [ends_s]
        self.deepest = max(self.deepest, len(self.queued))
        return lambda: not self.hung and self.at_s >= ends_s

    def close(self) -> None:
        self.closed = True

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds

    def sensors(self) -> GpuSnapshot:
        if self.lost:
            raise Gone("gpu_is_lost", "GPU 0 fell off the bus")
        shown_s = int(self.at_s * 10.0) / 10.0
        return GpuSnapshot(
            "GPU-p",
            energy_j=shown_s * self.power_w,
            clock_sm_mhz=885,
            temperature_celsius=60.0,
            event_reasons=("sw_power_cap",),
        )

    def bench(self) -> WorkedBench:
        return WorkedBench(MACHINE, self, self.sensors, now_s=lambda: self.at_s, sleep=self.sleep)


class AnyClock:
    """Whoever sets clocks: remembers what was asked."""

    def __init__(self) -> None:
        self.asked_mhz: list[int] = []

    def choices_mhz(self) -> tuple[int, ...]:
        return (600, 900)

    def ask(self, clock_mhz: int) -> None:
        self.asked_mhz.append(clock_mhz)

    def check(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("pass_s", [5e-5, 0.004, 0.7])
def test_the_queue_never_runs_dry_and_the_numbers_are_right(pass_s: float) -> None:
    card = PaperCard(pass_s)
    bench = card.bench()
    assert bench.prepare(CELL) == ""
    before_s = card.idle_s
    found = measure(bench, Rule())
    assert found.stable
    assert found.time_s == pytest.approx(pass_s, rel=0.01)
    assert found.power_w == pytest.approx(120.0, rel=0.005)
    assert found.clock_mhz == 885.0
    assert found.capped
    assert card.idle_s - before_s <= 0.01  # from preparing to the first pass that counts
    assert 1 < card.deepest <= QUEUED
    bench.close()
    assert card.closed


def test_a_sweep_asks_for_each_clock_and_marks_rows_measured() -> None:
    card, clocks = PaperCard(), AnyClock()
    rows = list(sweep(card.bench(), clocks, [CELL], (600, 900), rule=QUICK, say=lambda _: None))
    assert clocks.asked_mhz == [600, 900]
    assert [row.clock_asked_mhz for row in rows] == [600, 900]
    assert {row.clock_mhz for row in rows} == {885.0}
    assert {(row.basis, row.driver, row.memory_j) for row in rows} == {("measured", "1.0", None)}


def test_without_clocks_the_default_is_measured_once() -> None:
    card, clocks = PaperCard(), AnyClock()
    (row,) = sweep(card.bench(), clocks, [CELL], (), rule=QUICK, say=lambda _: None)
    assert row.clock_asked_mhz == 0
    assert row.clock_mhz == 885.0


def test_what_does_not_fit_is_skipped() -> None:
    card = PaperCard()
    card.refusal = "does not fit the card's memory"
    told: list[str] = []
    assert not list(sweep(card.bench(), AnyClock(), [CELL], (), rule=QUICK, say=told.append))
    assert told == ["gpt-125m s=512 fp16: left out, does not fit the card's memory"]


def test_a_lost_card_and_a_hung_one_are_errors() -> None:
    card = PaperCard()
    bench = card.bench()
    bench.prepare(CELL)
    card.lost = True
    with pytest.raises(Unavailable, match="fell off the bus"):
        measure(bench, QUICK)
    card.lost, card.hung = False, True
    with pytest.raises(Unavailable, match="has not finished a pass"):
        bench.work(2.0 * STUCK_S)


@pytest.mark.long
def test_torch_runs_the_layer() -> None:
    """On the CPU, with a made-up meter: the numbers mean nothing, the loop is the real one."""
    if importlib.util.find_spec("torch") is None:
        with pytest.raises(Unavailable, match="torch is not installed"):
            torch_module()
        pytest.skip("torch is not installed")
    worker = TorchWorker(torch_module(), "cpu")

    def sensors() -> GpuSnapshot:
        return GpuSnapshot("x", energy_j=int(time.monotonic() * 10.0) * 5.0, clock_sm_mhz=1)

    bench = WorkedBench(MACHINE, worker, sensors)
    for dtype in ("fp32", "bf16"):
        for which in ("forward", "training"):
            layer = Shape("small", 64, 4, 256, 32, 2)
            assert bench.prepare(Cell(layer, dtype, which)) == ""
            assert bench.work(0.2).passes > 0
    found = measure(bench, Rule(steps=5, windows=1, windows_max=1))
    assert found.power_w == pytest.approx(50.0, rel=0.3)
    bench.close()
