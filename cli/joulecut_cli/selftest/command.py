"""`joulecut selftest`: is it safe and right on this card? Five minutes, nothing uploaded.

Read-only unless `--write` is given. Exit status 1 where an assumption of the code is wrong here.
"""

import argparse
import json
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from joulecut_agent.nvml.card import Identity, identify
from joulecut_agent.ports.failure import DeviceError
from joulecut_agent.selftest import judge
from joulecut_agent.selftest.load import Load
from joulecut_agent.selftest.watcher import Watcher
from joulecut_cli import outfile
from joulecut_cli.agent_client import Agent
from joulecut_cli.agent_lease import agent_at
from joulecut_cli.orders import DEFAULT_NODE
from joulecut_cli.selftest import report, writing
from joulecut_wire import card_facts
from joulecut_wire.command import FAILED, FINE, Parser, gone
from joulecut_wire.errors import BadInput, Unavailable
from joulecut_wire.flags import number

PROG = "joulecut selftest"
MINUTES_MIN, MINUTES_MAX = 0.02, 60.0
WATCH_SHARE = 0.3  # of the time where clocks are written, else all of it
FAKE = "-fake"  # how the fake driver's version ends: its figures are simulated


def run(argv: list[str]) -> int:
    """Raises BadInput for a bad flag, Unavailable without a driver or an agent to write through.

    With --write a card that nothing may be set on is FAILED too, and still read.
    """
    given = _parser().parse_args(argv)
    _check(given)
    try:
        found, unread = identify()
    except DeviceError as error:
        raise Unavailable(str(error)) from None
    chosen = _chosen(given.gpu, found, unread)
    agent = agent_at("--agent", given.agent) if given.write else None
    if given.write:  # as Ctrl-C: clocks and load are given back
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    notes = [f"{why}: counted, and not tested" for why in unread.values()]
    tested = _tested(chosen, agent, Load(given.load), given, notes)
    simulated = any(one.driver.endswith(FAKE) for one in found)
    if given.json:
        print(json.dumps(report.to_json(tested, simulated=simulated), indent=2))
    else:
        print("\n".join([*report.screen(tested), *notes]))
    if given.save:
        card_facts.save(given.save, [one.facts for one in tested])
    return FAILED if notes or any(one.wrong for one in tested) else FINE


def _parser() -> Parser:
    parser = Parser(
        PROG,
        "Measures what this node's cards and their driver do, and compares it with what the code "
        "assumes. Read-only without --write. Nothing leaves the machine.",
    )
    parser.add_argument("--gpu", metavar="INDEX|all", default="0", help="default: 0")
    minutes = number(MINUTES_MIN, MINUTES_MAX, unit="minutes")
    parser.add_argument("--minutes", type=minutes, default=5.0, help="for each card; default: 5")
    parser.add_argument(
        "--write", action="store_true", help="set clocks of an idle GPU, under a lease"
    )
    gone(parser, "--kill", "kill -9 the keeper, then joulecut-agent restore")
    parser.add_argument(
        "--agent", metavar="unix:PATH", default=DEFAULT_NODE, help="to write through"
    )
    parser.add_argument(
        "--load", metavar="COMMAND", default="",
        help="loads the GPU while the test runs; default: torch, where installed",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--save", metavar="FILE", type=Path, help="measured facts, for `measured` of the agent"
    )
    return parser


def _check(given: argparse.Namespace) -> None:
    if given.save:
        outfile.checked("--save", given.save)
        card_facts.read(given.save)  # another kind of file is refused first


def _chosen(named: str, found: Sequence[Identity], unread: dict[int, str]) -> list[Identity]:
    """Raises Unavailable for a card that cannot be opened."""
    if why := next((why for index, why in unread.items() if named == str(index)), ""):
        raise Unavailable(why)
    if named == "all" and (found or not unread):
        return list(found)
    chosen = [one for one in found if str(one.index) == named]
    if not chosen:
        allowed = (
            f"all, {', '.join(str(one.index) for one in found)}" if found else "no GPU is here"
        )
        raise BadInput("--gpu", f'"{named}"', allowed)
    return chosen


def _tested(
    chosen: Sequence[Identity],
    agent: Agent | None,
    load: Load,
    given: argparse.Namespace,
    notes: list[str],
) -> list[report.CardReport]:
    """Every card in turn. Where nothing may be set, `notes` say why."""
    seconds, watchers, idle = 60.0 * given.minutes, list[Watcher](), list[Watcher]()
    with ExitStack() as stack:
        for identity in chosen:
            watcher = Watcher(identity)
            stack.callback(watcher.close)
            watchers.append(watcher)
            if agent is not None and not watcher.evidence.uncontrollable:
                watcher.identify_again()
                if why := judge.renumbered(watcher.evidence) or writing.refusal(agent, watcher):
                    notes.append(f"GPU {identity.index}: nothing is set: {why}")
                else:
                    idle.append(watcher)
            watcher.phase = "watched"
            watcher.watch((WATCH_SHARE if watcher in idle else 1.0) * seconds)
            if agent is not None and watcher in idle:
                writing.Writing(agent, watcher, load, (1.0 - WATCH_SHARE) * seconds).run()
        for watcher in watchers:
            watcher.identify_again()
    now_unix_s = time.time()
    return [
        report.CardReport(
            one.evidence, judge.findings(one.evidence), judge.facts(one.evidence, now_unix_s)
        )
        for one in watchers
    ]
