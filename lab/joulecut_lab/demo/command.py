"""`joulecut demo`: the whole system on a simulated cluster."""

import os
import signal
import sys
import webbrowser
from importlib import import_module
from pathlib import Path

from joulecut_cli import outfile
from joulecut_sim.demo.settings import DURATION_S_MAX, DURATION_S_MIN, Settings
from joulecut_sim.skus import CARDS, find
from joulecut_wire.command import Parser
from joulecut_wire.flags import number, whole


def run(argv: list[str]) -> int:
    """The exit status. Raises BadInput, Unavailable."""
    parser = Parser("joulecut demo", "The whole system on a simulated cluster; Ctrl-C ends it.")
    seconds = number(DURATION_S_MIN, DURATION_S_MAX, unit="seconds")
    parser.add_argument("--duration", type=seconds, metavar="S", help="end after S seconds")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write the summary as JSON")
    parser.add_argument(
        "--port", type=whole(0, 65_535), default=0, metavar="P",
        help="of the web page; 0: any free port",
    )  # fmt: skip
    parser.add_argument("--no-browser", action="store_true", help="do not open the web page")
    parser.add_argument("--card", default="a100-sxm", help=", ".join(CARDS))
    parser.add_argument(
        "--seed", type=whole(0, 2**53 - 1), default=1, metavar="N",
        help="random seed of GPUs and noise",
    )  # fmt: skip
    args = parser.parse_args(argv)
    if args.summary is not None:
        outfile.checked("--summary", args.summary)
    for needed in ("grpc", "uvicorn"):  # of the processes that it starts: one line names the lack
        import_module(needed)
    from joulecut_lab.demo.possible import possible_saved_ratio
    from joulecut_sim.demo.course import play

    settings = Settings(
        sku=find(args.card, "--card"),
        duration_s=args.duration,
        summary=args.summary,
        port=args.port,
        seed=args.seed,
    )
    terminal = sys.stdout is not None and sys.stdout.isatty()  # None: closed by the parent
    watched = terminal and not args.no_browser and _has_display()
    return play(settings, _say, _open if watched else _leave, possible_saved_ratio)


def _say(line: str) -> None:
    """Prints a line; a closed pipe ends the demo in good order."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        os.kill(os.getpid(), signal.SIGTERM)


def _open(url: str) -> None:
    webbrowser.open(url)


def _leave(_: str) -> None:
    """Opens nothing; the address is printed anyway."""


def _has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
