"""Steers a node of fake GPUs from a shell: `python tests/fake_nvml/control.py STATE ACTION ...`.

For trying a daemon or any NVML client by hand, without a card.
"""

import argparse
import sys
from pathlib import Path

import layout
from fixture import EVERY_GPU, FOREVER, CompilerMissing, FakeNvml


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__)
    top.add_argument("state", type=Path, metavar="STATE", help="the shared state file")
    actions = top.add_subparsers(dest="action", required=True)
    create = actions.add_parser(
        "create", help="a fresh node; prints what to put into the environment"
    )
    create.add_argument("--gpus", type=int, default=8)
    create.add_argument("--model", choices=sorted(layout.MODELS), default="a100")
    load = actions.add_parser("load", help="how busy a GPU is, 0 to 1")
    load.add_argument("gpu", type=int)
    load.add_argument("ratio", type=float)
    mig = actions.add_parser("mig", help="MIG mode of a GPU")
    mig.add_argument("gpu", type=int)
    mig.add_argument("mode", choices=("on", "off"))
    error = actions.add_parser("error", help="make calls fail or stall")
    error.add_argument("function", help="a C function, field:186, or '*'")
    error.add_argument("code", type=int, help="NVML's error number; 0 only stalls")
    error.add_argument("--gpu", type=int, default=EVERY_GPU)
    error.add_argument("--skip", type=int, default=0)
    error.add_argument("--count", type=int, default=FOREVER)
    error.add_argument("--delay", type=float, default=0.0, help="seconds; below 0 hangs")
    permission = actions.add_parser("permission", help="who may write")
    permission.add_argument("who", choices=("everybody", "nobody", "capable"))
    for name, text in (("clear", "no more errors"), ("reload", "reload the driver")):
        actions.add_parser(name, help=text)
    for name, text in (("locks", "what is locked now"), ("writes", "each setter call so far")):
        actions.add_parser(name, help=text)
    return top


def act(arguments: argparse.Namespace) -> None:
    if arguments.action == "create":
        node = FakeNvml(arguments.state, arguments.gpus, arguments.model)
        print(f"export LD_LIBRARY_PATH={node.library_dir}")
        print(f"export JOULECUT_FAKE_NVML_STATE={arguments.state.resolve()}")
        return
    node = FakeNvml(arguments.state, gpus=None)
    match arguments.action:
        case "load":
            node.set_load(arguments.gpu, arguments.ratio)
        case "mig":
            node.set_mig(arguments.gpu, arguments.mode == "on")
        case "error":
            node.set_error(
                arguments.function,
                arguments.code,
                gpu=arguments.gpu,
                skip=arguments.skip,
                count=arguments.count,
                delay_s=arguments.delay,
            )
        case "permission":
            node.set_permission({"everybody": True, "nobody": False}.get(arguments.who))
        case "clear":
            node.clear_errors()
        case "reload":
            node.reload_driver()
        case "locks":
            for index, lock in enumerate(node.locks()):
                print(index, "-" if lock is None else f"{lock[0]} {lock[1]}")
        case "writes":
            for write in node.writes():
                first, second = write.arguments
                print(f"{write.at_s:.3f} pid {write.pid} gpu {write.gpu} "
                      f"{write.function}({first}, {second}) = {write.code}")  # fmt: skip


if __name__ == "__main__":
    try:
        act(parser().parse_args())
    except (OSError, ValueError, CompilerMissing) as error:
        sys.exit(f"control.py: {error}")
