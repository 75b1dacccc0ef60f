"""`joulecut model`: flags of every subcommand. Each does its work in a module of its own."""

from collections.abc import Callable
from pathlib import Path

from joulecut_wire.command import FINE, Parser

PROG = "joulecut model"
LEVELS = ("formula", "table", "graph")


def run(argv: list[str]) -> int:
    """Runs one subcommand; a file in its place is estimated. Raises BadInput, Unavailable."""
    if argv and argv[0] in SUBCOMMANDS:
        return SUBCOMMANDS[argv[0]](argv[1:])
    return _estimate(argv)


def _estimate(argv: list[str]) -> int:
    parser = Parser(
        PROG,
        "Time, memory and energy of a training run. Also: joulecut model "
        f"{' | '.join(SUBCOMMANDS)}; each has --help.",
    )
    parser.add_argument("run", type=Path, metavar="RUN.yaml")
    parser.add_argument(
        "--level", choices=LEVELS, default="formula", help="how finely (default formula)"
    )
    _json(parser)
    parser.add_argument("--plot", metavar="FILE", help="write a picture: .html or .png")
    parser.add_argument("--timeline", metavar="FILE", help="write a trace for Perfetto: .json")
    options = parser.parse_args(argv)
    from joulecut_cli.model import estimating

    return estimating.run(options)


def _sweep(argv: list[str]) -> int:
    parser = Parser(
        f"{PROG} sweep",
        "All layouts of a SWEEP.yaml, and those that nothing beats in time, energy, memory and "
        "money at once (the Pareto front). Started again, it goes on where it was stopped.",
    )
    parser.add_argument("sweep", type=Path, metavar="SWEEP.yaml")
    parser.add_argument("--out", metavar="FILE", help="write every layout: .csv or .parquet")
    parser.add_argument("--plot", metavar="FILE", help="write a picture: .html or .png")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one per core)")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of a Dask cluster: tcp://HOST:PORT")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run did")
    _json(parser)
    options = parser.parse_args(argv)
    from joulecut_cli.model import sweeping

    return sweeping.run(options)


def _marginal(argv: list[str]) -> int:
    parser = Parser(
        f"{PROG} marginal",
        "What 1 % more clock of a component changes in time and energy.",
    )
    parser.add_argument("run", type=Path, metavar="RUN.yaml")
    _json(parser)
    options = parser.parse_args(argv)
    from joulecut_cli.model import scaling

    return scaling.marginal(options)


def _scale(argv: list[str]) -> int:
    parser = Parser(
        f"{PROG} scale",
        "Time and energy while one component runs faster or slower, its voltage with it.",
    )
    parser.add_argument("run", type=Path, metavar="RUN.yaml")
    parser.add_argument(
        "--component", required=True, choices=("sm", "hbm", "scale_up", "scale_out")
    )
    parser.add_argument("--range", default="0.5:1.5", metavar="LOW:HIGH", help="of today's clock")
    parser.add_argument("--points", type=int, default=11, metavar="N", help="(default 11)")
    parser.add_argument("--plot", metavar="FILE", help="write a picture: .html or .png")
    _json(parser)
    options = parser.parse_args(argv)
    from joulecut_cli.model import scaling

    return scaling.scale(options)


def _calibrate(argv: list[str]) -> int:
    parser = Parser(
        f"{PROG} calibrate",
        "A system whose efficiencies fit measured iterations. Columns: keys of a run file, "
        "iteration_time_s, and where known energy_j and memory_bytes.",
    )
    parser.add_argument("data", type=Path, metavar="DATA.csv")
    parser.add_argument("--system", required=True, metavar="NAME|FILE", help="to start from")
    parser.add_argument("--out", required=True, metavar="FILE", help="the calibrated system: .yaml")
    _json(parser)
    options = parser.parse_args(argv)
    from joulecut_cli.model import calibrating

    return calibrating.run(options)


def _trace(argv: list[str]) -> int:
    parser = Parser(
        f"{PROG} trace",
        "Kernel classes of recorded steps: PyTorch profiler JSON or Chakra .et, one file per rank.",
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--system", metavar="NAME|FILE", help="the card: adds energy")
    parser.add_argument("--clock", type=int, metavar="MHZ", help="SM clock while recording")
    parser.add_argument("--replay", metavar="MHZ,MHZ", help="times at these clocks too")
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="MHZ=FILE",
        help="the same work at another clock: measures what each class takes from the clock",
    )
    parser.add_argument("--chakra", metavar="DIR", help="write Chakra traces with energy and clock")
    parser.add_argument("--astra-sim", metavar="DIR", help="write an ASTRA-sim configuration")
    parser.add_argument("--perfetto", metavar="FILE", help="write a trace for Perfetto: .json")
    parser.add_argument("--calibrated", metavar="FILE", help="write the system as measured: .yaml")
    _json(parser)
    options = parser.parse_args(argv)
    from joulecut_cli.trace import command

    return command.run(options)


def _profile(argv: list[str]) -> int:
    parser = Parser(
        f"{PROG} profile",
        "A job file and a stage profile for `joulecut plan`, predicted for every clock.",
    )
    parser.add_argument("run", type=Path, metavar="RUN.yaml")
    parser.add_argument("--out", required=True, metavar="DIR", help="job.yaml, stage_profile.csv")
    options = parser.parse_args(argv)
    from joulecut_cli.model import profiling

    return profiling.run(options)


def _technology(argv: list[str]) -> int:
    parser = Parser(f"{PROG} technology", "Energy per operation and per bit, with sources.")
    _json(parser)
    options = parser.parse_args(argv)
    from joulecut_cli.model import technology

    return technology.run(options)


def _catalogue(argv: list[str]) -> int:
    parser = Parser(f"{PROG} catalogue", "Systems and models by name, with their sources.")
    parser.add_argument("name", nargs="?", help="one of them, whole")
    options = parser.parse_args(argv)
    from joulecut_cli.model import listing

    listing.show(options.name)
    return FINE


def _json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


SUBCOMMANDS: dict[str, Callable[[list[str]], int]] = {
    "sweep": _sweep,
    "marginal": _marginal,
    "scale": _scale,
    "calibrate": _calibrate,
    "trace": _trace,
    "profile": _profile,
    "technology": _technology,
    "catalogue": _catalogue,
}
