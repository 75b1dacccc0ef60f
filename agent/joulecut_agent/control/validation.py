"""Validation of a controller's command, and its form for keeper and log.

Refuses here what no state could accept, before the keeper is asked.
"""

from joulecut_agent.control.clock_schedule import clocks_of
from joulecut_agent.keeper.client import MW_PER_W
from joulecut_agent.keeper.lease import GPUS_MAX, JOB_BYTES_MAX, Command, Op
from joulecut_agent.keeper.protocol import Reply
from joulecut_wire import messages


def refuse_job_name(job: str) -> str:
    """Reason why this is not a job's name, or ""."""
    if not job or not job.isprintable() or len(job.encode(errors="replace")) > JOB_BYTES_MAX:
        return f"job {job[:40]!r}; allowed: 1 to {JOB_BYTES_MAX} printable bytes"
    return ""


def refuse_command(wanted: messages.Command) -> str:
    """Reason why this is not a valid command, or ""."""
    if why := refuse_job_name(wanted.job):
        return why
    uuids = [setting.uuid for setting in wanted.settings]
    if not 0 < len(uuids) <= GPUS_MAX:
        return f"{len(uuids)} settings; allowed: 1 to {GPUS_MAX}"
    if len(set(uuids)) < len(uuids):
        return "a GPU is named twice in one command"
    return ""


def refuse_power_limits(command: Command) -> str:
    """Reason to refuse its power limits, or ""."""
    zero = next((uuid for uuid, mw in command.power_mw.items() if mw <= 0), "")
    if zero:
        return f"a power limit of 0 W for {zero}; leave it out to leave the limit alone"
    return ""


def to_keeper_command(wanted: messages.Command) -> Command:
    """The command in the driver's units."""
    limits_w = {s.uuid: s.power_limit_w for s in wanted.settings}
    return Command(
        Op.APPLY,
        wanted.epoch,
        wanted.job,
        wanted.generation,
        wanted.ttl_s,
        clocks_mhz={s.uuid: (s.clock_min_mhz, s.clock_max_mhz) for s in wanted.settings},
        power_mw={u: round(w * MW_PER_W) for u, w in limits_w.items() if w is not None},
        schedules={s.uuid: clocks_of(s) for s in wanted.settings if s.clock_schedule},
    )


def log_line(op: str, command: Command, reply: Reply, why: str) -> str:
    """One line about a command and its outcome; "" for a heartbeat that was accepted."""
    refused = [slot for slot in reply.slots if not slot.accepted]
    if op == "renew" and not refused:
        return ""
    clocks = _limits_text(command) if op == "apply" else ""
    verdict = f"refused: {refused[0].reason}" if refused else f"accepted {len(reply.slots)}"
    return (
        f"{op} job={command.job or '*'} epoch={command.epoch} generation={command.generation}"
        f" {clocks} {verdict} ({why})"
    )


def _limits_text(command: Command) -> str:
    gpus = []
    for uuid in command.clocks_mhz:
        limits, words = command.limits(uuid), list[str]()
        if limits.max_mhz:
            words.append(f"{limits.min_mhz}-{limits.max_mhz}MHz")
        if limits.power_mw:
            words.append(f"{limits.power_mw / MW_PER_W:g}W")
        if clocks := command.schedules.get(uuid):
            words.append(f"schedule-down-to-{min(clocks)}MHz")
        gpus.append(f"{uuid}={','.join(words)}")
    return " ".join(gpus)
