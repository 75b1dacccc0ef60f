"""Validation of a controller's command, and its form for keeper and log.

Refuses here what no state could accept, before the keeper is asked.
"""

from joulecut_agent.control.clock_schedule import clocks_of
from joulecut_agent.keeper.client import MW_PER_W
from joulecut_agent.keeper.protocol import Reply
from joulecut_agent.keeper.requests import (
    GPUS_MAX,
    JOB_BYTES_MAX,
    Apply,
    Clear,
    ClockLimits,
    GpuSetting,
    Renew,
)
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


def refuse_power_limits(wanted: messages.Command) -> str:
    """Reason to refuse its power limits, or ""."""
    for setting in wanted.settings:
        limit_w = setting.power_limit_w
        if limit_w is not None and round(limit_w * MW_PER_W) <= 0:
            uuid = setting.uuid
            return f"a power limit of 0 W for {uuid}; leave it out to leave the limit alone"
    return ""


def to_keeper_request(wanted: messages.Command) -> Apply:
    """The command in the driver's units."""
    return Apply(
        wanted.epoch,
        wanted.job,
        wanted.generation,
        wanted.ttl_s,
        {setting.uuid: _to_keeper_setting(setting) for setting in wanted.settings},
    )


def _to_keeper_setting(setting: messages.Setting) -> GpuSetting:
    power_mw = round((setting.power_limit_w or 0.0) * MW_PER_W)
    limits = ClockLimits(setting.clock_min_mhz, setting.clock_max_mhz, power_mw)
    return GpuSetting(
        limits,
        clocks_of(setting),
        keep_power_limit=setting.keep_power_limit,
        above_kept_limit=setting.above_kept_limit,
    )


def log_line(op: str, request: Apply | Renew | Clear, reply: Reply, why: str) -> str:
    """One line about a command and its outcome; "" for a heartbeat that was accepted."""
    refused = [slot for slot in reply.slots if not slot.accepted]
    if op == "renew" and not refused:
        return ""
    limits = _limits_text(request) if isinstance(request, Apply) else ""
    generation = 0 if isinstance(request, Clear) else request.generation
    verdict = f"refused: {refused[0].reason}" if refused else f"accepted {len(reply.slots)}"
    return (
        f"{op} job={request.job or '*'} epoch={request.epoch} generation={generation}"
        f" {limits} {verdict} ({why})"
    )


def _limits_text(request: Apply) -> str:
    gpus = []
    for uuid, setting in request.settings.items():
        limits, words = setting.limits, list[str]()
        if limits.max_mhz:
            words.append(f"{limits.min_mhz}-{limits.max_mhz}MHz")
        if limits.power_mw:
            kept = "-kept" if setting.keep_power_limit else ""
            words.append(f"{limits.power_mw / MW_PER_W:g}W{kept}")
        if setting.schedule_mhz:
            words.append(f"schedule-down-to-{min(setting.schedule_mhz)}MHz")
        gpus.append(f"{uuid}={','.join(words)}")
    return " ".join(gpus)
