"""`joulecut study layer`: sweeps decoder layers across SM clocks into a table."""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from joulecut_cli import figures
from joulecut_lab import tablefile
from joulecut_lab.study import cell, row
from joulecut_lab.study.bench import DEFAULT_CLOCK, Bench, Clocks, NoClocks
from joulecut_lab.study.cell import CLOCKS_MAX, CLOCKS_MIN, CLOCKS_USUAL, Cell, Selection
from joulecut_lab.study.measure import QUICK, Measurement, Rule, measure
from joulecut_lab.study.row import Row
from joulecut_lab.study.simulated import SimulatedBench
from joulecut_sim.layer import DTYPES, PASSES, SEQUENCES, SIZES
from joulecut_sim.layer_plant import LAYER_CARDS, layer_card
from joulecut_wire.command import FAILED, FINE, Parser, gone
from joulecut_wire.errors import BadInput, Unavailable
from joulecut_wire.flags import listed, whole, words

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
    """A row per cell and clock, clocks ascending; cells that the card cannot run are reported.

    Without clocks to choose from, one row per cell at the driver's default.
    """
    asked_mhz = tuple(grid_mhz) or (DEFAULT_CLOCK,)
    for number, one in enumerate(cells, start=1):
        if one.dtype not in bench.machine.dtypes:
            say(f"{one}: left out, {bench.machine.card} has no {one.dtype}")
            continue
        if reason := bench.prepare(one):
            say(f"{one}: left out, {reason}")
            continue
        say(f"{number}/{len(cells)} {one}")
        for clock in asked_mhz:
            clocks.ask(clock)
            measured = measure(bench, rule)
            clocks.check()  # a row must be of the clock it names
            if not measured.stable:
                at = f"{clock} MHz" if clock else "the default clock"
                say(f"{one} at {at}: not stable after {measured.windows} windows")
            yield _row(bench, one, clock, measured)


def _row(bench: Bench, cell: Cell, asked_mhz: int, found: Measurement) -> Row:
    card = bench.machine
    return Row(
        basis=card.basis, card=card.card, driver=card.driver, uuid=card.uuid, dtype=cell.dtype,
        which=cell.which, clock_asked_mhz=asked_mhz, energy_j=found.energy_j, flops=cell.flops,
        **asdict(cell.layer), **asdict(found), **bench.causes_j(),
    )  # fmt: skip


DEVICES = ("auto", "simulated", "nvml", "cpu")
GPU_MAX = 64
SEED_MAX = 2**32 - 1
BATCH_USUAL = 4  # sequences of the largest layer that fit 24 GB in fp32
QUICK_MODELS, QUICK_SEQUENCES, QUICK_CLOCKS = ("gpt-125m", "gpt-13b"), (512, 1024), 9


def run(argv: list[str]) -> int:
    """The exit status. Raises BadInput, Unavailable."""
    args = _parser().parse_args(argv)
    selection = _selection(args)
    out = None if args.out is None else tablefile.target(args.out)
    bench, clocks = _opened(args)
    try:
        choices = clocks.choices_mhz()
        if args.full:
            selection = replace(selection, clocks_mhz=tuple(choices))
        grid = cell.grid(selection, choices, bench.machine.card) if choices else ()
        if not grid and (args.at or args.clocks or args.full):
            raise BadInput(
                "--at" if args.at else "--full" if args.full else "--clocks",
                "clocks cannot be set here, so the default one alone is measured",
                "--lock-via unix:PATH of this node's agent",
            )
        rule = QUICK if args.quick else Rule()
        rows = _collected(bench, clocks, selection, grid=grid, rule=rule, out=out)
    finally:
        clocks.close()
        bench.close()
    if not rows:
        raise Unavailable("nothing was measured: every layer asked for was left out")
    _tell(rows, out)
    return FINE if any(one.stable for one in rows) else FAILED


def _parser() -> Parser:
    parser = Parser("joulecut study layer", "Sweeps decoder layers across SM clocks.")
    parser.add_argument("--out", metavar="FILE", help="table to write: .csv")
    parser.add_argument("--device", choices=DEVICES, default="auto", help=", ".join(DEVICES))
    parser.add_argument("--card", metavar="NAME", help=f"simulated: {', '.join(LAYER_CARDS)}")
    parser.add_argument(
        "--gpu", type=whole(0, GPU_MAX), default=0, metavar="N", help="CUDA index of the card"
    )
    parser.add_argument(
        "--lock-via", metavar="unix:PATH", help="agent of this node, which sets the clocks"
    )
    parser.add_argument("--models", type=cell.models, metavar="M,...", help=", ".join(SIZES))
    parser.add_argument(
        "--sequences",
        type=listed(whole(1, cell.SEQUENCE_MAX), CLOCKS_MAX),
        metavar="N,...",
        help="tokens, like 128,512,1024",
    )
    parser.add_argument("--dtypes", type=words(*DTYPES), metavar="D,...", help=", ".join(DTYPES))
    parser.add_argument(
        "--batch",
        type=whole(1, cell.BATCH_MAX),
        default=BATCH_USUAL,
        metavar="N",
        help="sequences in a batch",
    )
    parser.add_argument(
        "--pass", dest="which", choices=PASSES, default="training", help=", ".join(PASSES)
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--clocks",
        type=whole(CLOCKS_MIN, CLOCKS_MAX),
        metavar="N",
        help=f"number of clocks (default {CLOCKS_USUAL})",
    )
    which.add_argument(
        "--at",
        type=listed(whole(1, row.CLOCK_MHZ_MAX), CLOCKS_MAX),
        default=(),
        metavar="MHZ,...",
        help="exactly these clocks",
    )
    which.add_argument("--full", action="store_true", help="every clock that the card lists")
    parser.add_argument(
        "--seed",
        type=whole(0, SEED_MAX),
        default=1,
        metavar="N",
        help="random seed of the simulated card",
    )
    parser.add_argument("--quick", action="store_true", help="few layers, few clocks, short")
    gone(parser, "--report", "joulecut study report FILE --out DIR, of the table of --out")
    return parser


def _selection(args: Namespace) -> Selection:
    quick = args.quick
    return Selection(
        models=args.models or (QUICK_MODELS if quick else tuple(SIZES)),
        sequences=tuple(sorted({*(args.sequences or (QUICK_SEQUENCES if quick else SEQUENCES))})),
        dtypes=args.dtypes or (("fp16",) if quick else DTYPES),
        batch=args.batch,
        which=args.which,
        count=args.clocks or (QUICK_CLOCKS if quick else CLOCKS_USUAL),
        clocks_mhz=tuple(sorted({*args.at})),
    )


def _opened(args: Namespace) -> tuple[Bench, Clocks]:
    """The bench and the setter of its clocks."""
    if args.device == "simulated" or (args.device == "auto" and args.card is not None):
        if args.lock_via is not None:
            raise BadInput("--lock-via", "a simulated card needs no agent", "--device nvml")
        bench = SimulatedBench(
            layer_card("a30" if args.card is None else args.card, "--card"), seed=args.seed
        )
        return bench, bench
    if args.card is not None:
        raise BadInput("--card", "names a simulated card", "--device simulated")
    if args.device == "cpu":
        if args.lock_via is not None:
            raise BadInput("--lock-via", "an agent sets no clock of a processor", "--device nvml")
        from joulecut_lab.study.processor import open_processor

        return open_processor()
    from joulecut_lab.study.torch_bench import open_bench

    try:
        real = open_bench(args.gpu)
    except Unavailable as error:
        if args.device == "nvml" or args.lock_via is not None:
            raise
        _say(f"no card to measure ({error}): simulating an A30, marked in every row")
        simulated = SimulatedBench(layer_card("a30", "--card"), seed=args.seed)
        return simulated, simulated
    if args.lock_via is None:
        _say("no --lock-via: clocks are left alone, the default one is measured")
        return real, NoClocks()
    from joulecut_lab.study.agent_clocks import AgentClocks

    try:
        return real, AgentClocks(args.lock_via, real.machine.uuid)
    except BaseException:
        real.close()
        raise


def _collected(
    bench: Bench,
    clocks: Clocks,
    selection: Selection,
    *,
    grid: tuple[int, ...],
    rule: Rule,
    out: Path | None,
) -> list[Row]:
    """All rows; those measured before an early end are kept."""
    rows: list[Row] = []
    try:
        for found in sweep(bench, clocks, selection.cells(), grid, rule=rule, say=_say):
            rows.append(found)  # noqa: PERF402 -- one by one: an end by Ctrl-C keeps them
    finally:
        if out is not None and rows:
            row.write(out, rows)
    return rows


def _tell(rows: list[Row], out: Path | None) -> None:
    head = f"{len(rows)} rows, {rows[0].basis}, on {rows[0].card}"
    print(f"{head}, in {out}" if out else head)
    if lines := row.saving_rows(rows):
        numbers = frozenset(row.SAVING_HEAD[3:]) | {"s"}
        print("\n".join(figures.table(row.SAVING_HEAD, lines, numbers)))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
