"""The throughput target a person gave the demo, read by the very code that will enforce it."""

from collections import defaultdict
from pathlib import Path

from joulecut_controller.policy.parse import parse as parse_policy
from joulecut_controller.policy.policy import Slo
from joulecut_engine.graph.clock_option import ClockOption
from joulecut_engine.graph.pipeline import Kind, Profile
from joulecut_sim.demo.layout import Folder, policy_text
from joulecut_sim.demo.settings import STAGES, Settings
from joulecut_sim.profile import rows
from joulecut_wire import document
from joulecut_wire.errors import BadInput


def target(settings: Settings) -> Slo:
    """The policy's target. Raises BadInput for a line that is not one."""
    if "\n" in settings.slo or "#" in settings.slo:
        raise BadInput("--slo", "more than one line", "one key and its value")
    text = policy_text(Folder(Path("/tmp")), settings, "recommend")  # noqa: S108 -- never opened
    try:
        read = parse_policy(document.parse(text.encode(), "--slo"), lambda _: _profile(settings))
    except BadInput as error:  # its line is one of a file that nobody wrote
        raise BadInput(f"--slo {settings.slo!r}", error.what, error.allowed) from None
    return read.jobs[0].slo


def _profile(settings: Settings) -> Profile:
    options: dict[tuple[int, Kind], list[ClockOption]] = defaultdict(list)
    for stage, kind, clock, time_s, energy_j in rows(
        settings.sku, STAGES, scale=1.0, noise=0.0, seed=1
    ):
        options[stage, kind].append(ClockOption(clock, time_s, energy_j))
    return Profile({where: tuple(found) for where, found in options.items()}, "simulated")
