"""A controller's order as the keeper wants it and as the log tells it.

What makes no sense in any state is found here, before anybody is asked.
"""

from joulecut_agent.control.clock_schedule import clocks_of
from joulecut_agent.keeper import lease as leases
from joulecut_agent.keeper.client import MW_PER_W
from joulecut_agent.keeper.lease import GPUS_MAX, JOB_BYTES_MAX, Command
from joulecut_agent.keeper.protocol import Reply
from joulecut_wire import messages


def misnamed(job: str) -> str:
    """Why this is no name of a job, or ""."""
    if not job or not job.isprintable() or len(job.encode(errors="replace")) > JOB_BYTES_MAX:
        return f"job {job[:40]!r}; allowed: 1 to {JOB_BYTES_MAX} printable bytes"
    return ""


def misshapen(wanted: messages.Command) -> str:
    """Why this is no order at all, or ""."""
    if why := misnamed(wanted.job):
        return why
    uuids = [setting.uuid for setting in wanted.settings]
    if not 0 < len(uuids) <= GPUS_MAX:
        return f"{len(uuids)} settings; allowed: 1 to {GPUS_MAX}"
    if len(set(uuids)) < len(uuids):
        return "a GPU is named twice in one command"
    return ""


def powerless(command: Command) -> str:
    """Why its power limits make no sense, or ""."""
    zero = next((uuid for uuid, mw in command.power_mw.items() if mw <= 0), "")
    if zero:
        return f"a power limit of 0 W for {zero}; leave it out to leave the limit alone"
    return ""


def in_keepers_words(wanted: messages.Command) -> Command:
    """Each knob in the units of the driver."""
    limits_w = {s.uuid: s.power_limit_w for s in wanted.settings}
    powers_mw = {u: round(w * MW_PER_W) for u, w in limits_w.items() if w is not None}
    clocks = {s.uuid: (s.clock_min_mhz, s.clock_max_mhz) for s in wanted.settings}
    numbers = (wanted.epoch, wanted.job, wanted.generation, wanted.ttl_s)
    programs = {s.uuid: clocks_of(s) for s in wanted.settings if s.program}
    return Command(leases.APPLY, *numbers, clocks, power_mw=powers_mw, programs=programs)


def line(op: str, command: Command, reply: Reply, why: str) -> str:
    """What the log tells of a command: one line, or "" for a heartbeat that went well."""
    refused = [slot for slot in reply.slots if not slot.accepted]
    if op == "renew" and not refused:
        return ""
    clocks = _listed(command) if op == "apply" else ""
    verdict = f"refused: {refused[0].reason}" if refused else f"accepted {len(reply.slots)}"
    return (
        f"{op} job={command.job or '*'} epoch={command.epoch} generation={command.generation}"
        f" {clocks} {verdict} ({why})"
    )


def _listed(command: Command) -> str:
    words = []
    for uuid, (low, high) in command.clocks_mhz.items():
        power_mw = command.power_mw.get(uuid, 0)
        knobs = [f"{low}-{high}MHz"] * bool(high) + [f"{power_mw / MW_PER_W:g}W"] * bool(power_mw)
        if steps := command.programs.get(uuid):
            knobs.append(f"program-down-to-{min(steps)}MHz")
        words.append(f"{uuid}={','.join(knobs)}")
    return " ".join(words)
