"""One pass over all layers and clocks: from a bench to the rows of a table."""

from collections.abc import Callable, Iterator, Sequence

from joulecut_lab.study.bench import DEFAULT_CLOCK, Bench, Clocks, Split
from joulecut_lab.study.cell import Cell
from joulecut_lab.study.measure import Measurement, Rule, measure
from joulecut_lab.study.row import Row

Say = Callable[[str], None]


def sweep(
    bench: Bench,
    clocks: Clocks,
    cells: Sequence[Cell],
    grid_mhz: Sequence[int],
    *,
    rule: Rule,
    say: Say,
) -> Iterator[Row]:
    """A row per cell and clock, clocks ascending; cells that the card cannot run are told.

    Without clocks to choose from, one row per cell at the driver's default.
    """
    asked_mhz = tuple(grid_mhz) or (DEFAULT_CLOCK,)
    for number, cell in enumerate(cells, start=1):
        if cell.dtype not in bench.machine.dtypes:
            say(f"{cell}: left out, {bench.machine.card} has no {cell.dtype}")
            continue
        if reason := bench.prepare(cell):
            say(f"{cell}: left out, {reason}")
            continue
        say(f"{number}/{len(cells)} {cell}")
        for clock in asked_mhz:
            clocks.ask(clock)
            measured = measure(bench, rule)
            clocks.check()  # a row must not be of another clock than it says
            if not measured.stable:
                at = f"{clock} MHz" if clock else "the default clock"
                say(f"{cell} at {at}: not stable after {measured.windows} windows")
            yield _row(bench, cell, clock, measured, bench.split())


def _row(bench: Bench, cell: Cell, asked_mhz: int, found: Measurement, split: Split | None) -> Row:
    machine, layer = bench.machine, cell.layer
    return Row(
        basis=machine.basis,
        card=machine.card,
        driver=machine.driver,
        uuid=machine.uuid,
        model=layer.model,
        d_model=layer.d_model,
        heads=layer.heads,
        d_ffn=layer.d_ffn,
        sequence=layer.sequence,
        batch=layer.batch,
        dtype=cell.dtype,
        which=cell.which,
        clock_asked_mhz=asked_mhz,
        clock_mhz=found.clock_mhz,
        time_s=found.time_s,
        power_w=found.power_w,
        energy_j=found.energy_j,
        flops=cell.flops,
        temperature_celsius=found.temperature_celsius,
        capped=found.capped,
        stable=found.stable,
        windows=found.windows,
        time_spread=found.time_spread,
        power_spread=found.power_spread,
        switching_j=split.switching_j if split else None,
        clock_j=split.clock_j if split else None,
        leakage_j=split.leakage_j if split else None,
        memory_j=split.memory_j if split else None,
    )
