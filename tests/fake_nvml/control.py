"""Steers a node of fake GPUs from a shell: `python tests/fake_nvml/control.py STATE ACTION ...`.

For trying a daemon or any NVML client by hand, without a card.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import layout
from fixture import EVERY_GPU, FOREVER, CompilerMissing, FakeNvml

# Actions on one GPU: what they do, their numbers in order, and what is done with them.
ONE_GPU: dict[str, tuple[str, tuple[str, ...], Callable[..., None]]] = {
    "load": ("how busy it is, 0 to 1", ("ratio",), FakeNvml.set_load),
    "memory-used": ("in bytes", ("bytes",), lambda n, g, b: n.set_memory_used(g, int(b))),
    "lose": ("it falls off the bus", (), FakeNvml.lose),
    "return": ("it is back, as after a reset", (), FakeNvml.return_gpu),
    "xid": ("an XID event", ("code",), lambda n, g, c: n.xid(g, int(c))),
    "foreign-lock": (
        "somebody else locks its clocks, in MHz",
        ("min", "max"),
        lambda n, g, low, high: n.foreign_lock(g, int(low), int(high)),
    ),
    "foreign-reset": ("somebody else resets its clocks", (), FakeNvml.foreign_reset),
    "foreign-limit": ("somebody else sets its power limit", ("watts",), FakeNvml.foreign_limit),
    "site-lock": (
        "locked before anybody looked, in MHz",
        ("max",),
        lambda n, g, high: n.set_site_lock(g, int(high)),
    ),
    "out-of-band-limit": ("0 takes it away", ("watts",), FakeNvml.set_out_of_band_limit),
    "clock-ceiling": (
        "clocks above it are not reached; 0 takes it away",
        ("mhz",),
        lambda n, g, mhz: n.set_clock_ceiling(g, int(mhz)),
    ),
    "ambient": ("the air it is cooled with", ("celsius",), FakeNvml.set_ambient),
    "latency": ("how long a lock takes to show", ("seconds",), FakeNvml.set_latency),
    "lose-persistence": ("and with it what was set", (), FakeNvml.lose_persistence),
}
SWITCHES: dict[str, tuple[str, Callable[..., None]]] = {
    "mig": ("MIG mode", FakeNvml.set_mig),
    "power-brake": ("the external power brake", FakeNvml.set_power_brake),
}
NODE: dict[str, tuple[str, Callable[..., None]]] = {
    "clear": ("no more errors, hangs and lost GPUs", FakeNvml.clear_errors),
    "reload": ("reload the driver", FakeNvml.reload_driver),
    "upgrade": ("reload a newer driver", lambda n: n.reload_driver(upgraded=True)),
    "unload": ("unload the driver; reload brings it back", FakeNvml.unload_driver),
}
SHOW = {
    "locks": "what is locked now",
    "writes": "each setter call so far",
    "calls": "the last calls of any kind",
    "clients": "the processes that have NVML open",
    "limits": "the power limits as last written",
}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__)
    top.add_argument("state", type=Path, metavar="STATE", help="the shared state file")
    actions = top.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser(
        "create", help="a fresh node; prints what to put into the environment"
    )
    create.add_argument("--gpus", type=int, default=8)
    create.add_argument("--model", choices=sorted(layout.MODELS), default="a100")
    for name, (text, numbers, _) in ONE_GPU.items():
        one = actions.add_parser(name, help=text)
        one.add_argument("gpu", type=int)
        for number in numbers:
            one.add_argument(number, type=float)
    for name, (text, _) in SWITCHES.items():
        switch = actions.add_parser(name, help=text)
        switch.add_argument("gpu", type=int)
        switch.add_argument("mode", choices=("on", "off"))
    _faults(actions)
    for name, text in [*((name, text) for name, (text, _) in NODE.items()), *SHOW.items()]:
        actions.add_parser(name, help=text)
    return top


def _faults(actions: Any) -> None:
    error = actions.add_parser("error", help="make calls fail or stall")
    error.add_argument("function", help="a C function, field:186, or '*'")
    error.add_argument("code", type=int, help="NVML's error number; 0 only stalls")
    error.add_argument("--delay", type=float, default=0.0, help="seconds; below 0 hangs")
    error.add_argument("--count", type=int, default=FOREVER)
    error.add_argument("--probability", type=float, default=1.0)
    error.add_argument("--seed", type=int, default=0)
    hang = actions.add_parser("hang", help="make calls that never return, until clear")
    hang.add_argument("function", help="a C function, or '*'")
    hang.add_argument("--count", type=int, default=1)
    for fault in (error, hang):
        fault.add_argument("--gpu", type=int, default=EVERY_GPU)
        fault.add_argument("--skip", type=int, default=0)
    writer = actions.add_parser("foreign-writer", help="somebody who puts his settings back")
    writer.add_argument("gpu", type=int)
    writer.add_argument("--clock", type=int, default=0, help="MHz")
    writer.add_argument("--limit", type=float, default=0.0, help="watts")
    writer.add_argument("--every", type=float, default=1.0, help="seconds")
    writer.add_argument("--times", type=int, default=FOREVER)
    permission = actions.add_parser("permission", help="who may write")
    permission.add_argument("who", choices=("everybody", "nobody", "capable"))
    idle = actions.add_parser("idle-unload", help="settings go with the last client")
    idle.add_argument("mode", choices=("on", "off"))


def act(arguments: argparse.Namespace) -> None:
    action = arguments.action
    if action == "create":
        node = FakeNvml(arguments.state, arguments.gpus, arguments.model)
        print(f"export LD_LIBRARY_PATH={node.library_dir}")
        print(f"export JOULECUT_FAKE_NVML_STATE={arguments.state.resolve()}")
        return
    node = FakeNvml(arguments.state, gpus=None)
    if action in ONE_GPU:
        _, numbers, do = ONE_GPU[action]
        do(node, arguments.gpu, *(getattr(arguments, number) for number in numbers))
    elif action in SWITCHES:
        SWITCHES[action][1](node, arguments.gpu, arguments.mode == "on")
    elif action in NODE:
        NODE[action][1](node)
    elif action in SHOW:
        show(node, action)
    else:
        fault(node, arguments)


def fault(node: FakeNvml, arguments: argparse.Namespace) -> None:
    where = {name: getattr(arguments, name, None) for name in ("gpu", "skip", "count")}
    match arguments.action:
        case "error":
            node.set_error(
                arguments.function,
                arguments.code,
                **where,
                delay_s=arguments.delay,
                probability=arguments.probability,
                seed=arguments.seed,
            )
        case "hang":
            node.hang(arguments.function, **where)
        case "foreign-writer":
            node.set_foreign_writer(
                arguments.gpu,
                clock_mhz=arguments.clock,
                limit_w=arguments.limit,
                every_s=arguments.every,
                times=arguments.times,
            )
        case "permission":
            node.set_permission({"everybody": True, "nobody": False}.get(arguments.who))
        case "idle-unload":
            node.set_idle_unload(arguments.mode == "on")


def show(node: FakeNvml, what: str) -> None:
    match what:
        case "locks":
            for index, lock in enumerate(node.locks()):
                print(index, "-" if lock is None else f"{lock[0]} {lock[1]}")
        case "limits":
            for index, limit_w in enumerate(node.limits_w()):
                print(index, f"{limit_w:g}")
        case "clients":
            for pid in node.clients():
                print(pid)
        case "writes":
            for write in node.writes():
                first, second = write.arguments
                print(f"{write.at_s:.3f} pid {write.pid} gpu {write.gpu} "
                      f"{write.function}({first}, {second}) = {write.code}")  # fmt: skip
        case "calls":
            for call in node.calls():
                print(f"{call.at_s:.3f} pid {call.pid} gpu {call.gpu} "
                      f"{call.function} = {call.code}")  # fmt: skip


if __name__ == "__main__":
    try:
        act(parser().parse_args())
    except (OSError, ValueError, CompilerMissing) as error:
        sys.exit(f"control.py: {error}")
