"""`joulecut model`: flags of every subcommand. Each does its work in a module of its own."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulecut_wire.command import Parser, gone, retired
from joulecut_wire.flags import listed, number, whole
from joulecut_wire.quantity import Fault

PROG = "joulecut model"
LEVELS = ("formula", "graph")
JOBS_MAX = 4096
POINTS_MAX = 1000
SERVED = ("fp32", "bf16", "fp16", "fp8", "fp4")
CLOCKS_MAX = 100  # more than a card's table has
_CLOCK = whole(1, 10_000)

Flag = tuple[tuple[str, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Subcommand:
    """`module:function` of this package's siblings, which takes the flags as they were read;
    `gone` are flags of earlier versions, and what does their work.
    """

    target: str
    summary: str
    flags: tuple[Flag, ...]
    gone: Mapping[str, str] = field(default_factory=dict)


def _flag(*names: str, **more: Any) -> Flag:
    return names, more


def _also(word: str) -> tuple[int, Path]:
    mhz, _, name = word.partition("=")
    if not name:
        raise Fault(f'"{word}"', "MHZ=FILE, as in 1065=slow.json")
    return _CLOCK(mhz), Path(name)


def _level(word: str) -> str:
    if word != "table":
        return word
    retired("--level table", "means graph, which has the transfers too")
    return "graph"


_JSON = _flag("--json", action="store_true", help="print one JSON object")
_PLOT = _flag("--plot", metavar="FILE", help="write a picture: .html or .png")
_RUN = _flag("run", type=Path, metavar="RUN.yaml")

SUBCOMMANDS: dict[str, Subcommand] = {
    "sweep": Subcommand(
        "model_command.sweeping:run",
        "All layouts of a SWEEP.yaml, and those that nothing beats in time, energy, memory and "
        "money at once (the Pareto front).",
        (
            _flag("sweep", type=Path, metavar="SWEEP.yaml"),
            _flag("--out", metavar="FILE", help="write every layout: .csv"),
            _PLOT,
            _flag(
                "--jobs",
                type=whole(1, JOBS_MAX),
                metavar="N",
                help="processes (default: one per core)",
            ),
            _flag("--dask", "--scheduler", metavar="ADDRESS", help="has no effect; until 0.3"),
            _flag("--fresh", action="store_true", help="has no effect; until 0.3"),
            _JSON,
        ),
    ),
    "marginal": Subcommand(
        "model_command.scaling:marginal",
        "What 1 % more clock of a component changes in time and energy.",
        (_RUN, _JSON),
    ),
    "scale": Subcommand(
        "model_command.scaling:scale",
        "Time and energy while one component runs faster or slower, its voltage with it.",
        (
            _RUN,
            _flag("--component", required=True, choices=("sm", "hbm", "scale_up", "scale_out")),
            _flag("--range", default="0.5:1.5", metavar="LOW:HIGH", help="of today's clock"),
            _flag(
                "--points", type=whole(2, POINTS_MAX), default=11, metavar="N", help="(default 11)"
            ),
            _PLOT,
            _JSON,
        ),
    ),
    "calibrate": Subcommand(
        "model_command.calibrating:run",
        "A system whose efficiencies fit measured iterations. Columns: keys of a run file, "
        "iteration_time_s, and where known energy_j and memory_bytes.",
        (
            _flag("data", type=Path, metavar="DATA.csv"),
            _flag("--system", required=True, metavar="NAME|FILE", help="to start from"),
            _flag("--out", required=True, metavar="FILE", help="the calibrated system: .yaml"),
            _JSON,
        ),
    ),
    "trace": Subcommand(
        "trace.command:run",
        "Kernel classes of recorded steps: PyTorch profiler JSON or Chakra .et, one file per rank.",
        (
            _flag("files", type=Path, nargs="+", metavar="FILE"),
            _flag("--system", metavar="NAME|FILE", help="the card: adds energy"),
            _flag("--clock", type=_CLOCK, metavar="MHZ", help="SM clock while recording"),
            _flag(
                "--replay",
                type=listed(_CLOCK, CLOCKS_MAX),
                default=(),
                metavar="MHZ,MHZ",
                help="times at these clocks too",
            ),
            _flag(
                "--also",
                type=_also,
                action="append",
                default=[],
                metavar="MHZ=FILE",
                help="the same work at another clock: measures what each class takes from the "
                "clock",
            ),
            _flag("--chakra", metavar="DIR", help="write Chakra traces with energy and clock"),
            _flag("--calibrated", metavar="FILE", help="write the system as measured: .yaml"),
            _JSON,
        ),
        {
            "--astra-sim": "--chakra DIR, whose traces ASTRA-sim reads",
            "--perfetto": "the recording itself, which Perfetto opens, or --chakra DIR",
        },
    ),
    "profile": Subcommand(
        "model_command.profiling:run",
        "A job file and a stage profile for `joulecut plan`, predicted for every clock.",
        (_RUN, _flag("--out", required=True, metavar="DIR", help="job.yaml, stage_profile.csv")),
    ),
    "serving": Subcommand(
        "model_command.serving:run",
        "Prefill and decode of a model by name or config.json: time, memory and energy against "
        "batch, and the cheapest clocks within a limit on time per token.",
        (
            _flag("model", metavar="MODEL"),
            _flag("system", metavar="SYSTEM"),
            _flag("--tensor", type=whole(1, 1024), default=1, metavar="N", help="tensor parallel"),
            _flag("--pipeline", type=whole(1, 1024), default=1, metavar="N", help="stages"),
            _flag(
                "--batch",
                type=listed(whole(1, 1_000_000), POINTS_MAX),
                default=(),
                metavar="N,...",
                help="sequences (default: up to what memory holds)",
            ),
            _flag("--prompt", type=whole(1, 10_000_000), default=1024, metavar="TOKENS"),
            _flag("--output", type=whole(1, 10_000_000), default=1024, metavar="TOKENS"),
            _flag("--dtype", choices=SERVED, default="bf16", help="of weights and products"),
            _flag(
                "--cache-bytes",
                type=number(0.0, 4.0, above=True, unit="bytes"),
                metavar="B",
                help="of a number in the cache (default: as the weights, 1 at least)",
            ),
            _flag(
                "--max-token-ms",
                type=listed(number(0.0, 1e6, above=True, unit="milliseconds"), POINTS_MAX),
                default=(),
                metavar="MS,...",
                help="limits on the time between two tokens",
            ),
            _JSON,
            _PLOT,
        ),
    ),
    "technology": Subcommand(
        "model_command.catalogue:technologies",
        "Energy per operation and per bit, with sources; power by generation.",
        (
            _flag(
                "--system",
                default="a100-sxm-80gb",
                metavar="NAME",
                help="card of the check of its limit (default a100-sxm-80gb)",
            ),
            _JSON,
            _PLOT,
        ),
    ),
    "catalogue": Subcommand(
        "model_command.catalogue:show",
        "Systems and models by name, with their sources.",
        (_flag("name", nargs="?", help="one of them, whole"),),
    ),
}
_ESTIMATE = Subcommand(
    "model_command.estimating:run",
    "Time, memory and energy of a training run. Also: joulecut model "
    f"{' | '.join(SUBCOMMANDS)}; each has --help.",
    (
        _RUN,
        _flag(
            "--level",
            type=_level,
            choices=LEVELS,
            default="formula",
            help="detail of the estimate (default formula)",
        ),
        _JSON,
        _PLOT,
        _flag("--timeline", metavar="FILE", help="write a trace for Perfetto: .json"),
    ),
)


def run(argv: list[str]) -> int:
    """Runs one subcommand; a file in its place is estimated. Raises BadInput, Unavailable."""
    name = argv[0] if argv and argv[0] in SUBCOMMANDS else ""
    command = SUBCOMMANDS.get(name, _ESTIMATE)
    parser = Parser(f"{PROG} {name}".strip(), command.summary)
    for names, more in command.flags:
        parser.add_argument(*names, **more)
    for flag, instead in command.gone.items():
        gone(parser, flag, instead)
    options = parser.parse_args(argv[1:] if name else argv)
    module, _, function = command.target.partition(":")
    status: int = getattr(importlib.import_module(f"joulecut_lab.{module}"), function)(options)
    return status
