"""`joulecut-agent audit`: the trail for a person, and a line for what is done on the node."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from joulecut_agent.control.audit_log import Limits, Trail, read
from joulecut_wire.command import FINE

LOGIN_UNSET = 2**32 - 1  # audit_login_uid of a process that no login started


def run(folder: Path, since_s: float | None, *, as_json: bool) -> int:
    """Prints lines no older than `since_s` seconds, oldest first. Raises OSError."""
    oldest = 0.0 if since_s is None else time.time() - since_s
    broken = 0
    for entry in read(folder):
        if entry is None:
            broken += 1
        elif entry["t"] >= oldest:
            text = json.dumps(entry, separators=(",", ":")) if as_json else sentence(entry)
            sys.stdout.write(text + "\n")
    if broken:
        sys.stderr.write(f"joulecut-agent: {broken} lines of the trail cannot be read\n")
    return FINE


def sentence(entry: dict[str, Any]) -> str:
    """One entry on one line, whatever is in it."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry["t"]))
    words = [at, entry["op"], f"by {entry.get('who') or 'nobody'} ({entry.get('via', '?')})"]
    words += [f"{key}={entry[key]}" for key in ("job", "epoch", "generation") if key in entry]
    if "duration_s" in entry:
        words.append(f"for {entry['duration_s']} s")
    gpus = entry.get("gpus")
    if isinstance(gpus, dict):
        words += [f"{uuid}={value}" for uuid, value in gpus.items()]
    words.append(str(entry.get("result", "?")))
    refused = entry.get("refused")
    if isinstance(refused, dict):
        words += [f"{uuid or '*'}: {reason}" for uuid, reason in refused.items()]
    elif refused:
        words.append(str(refused))
    if "repeated" in entry:
        words.append(f"(and {entry['repeated']} times before)")
    if entry.get("why"):
        words.append(f"({entry['why']})")
    line = " ".join(str(word) for word in words)
    return "".join(c if c.isprintable() else "?" for c in line)


def noted(folder: Path, limits: Limits, op: str, act: Callable[[], int], **asked: Any) -> int:
    """Does what a person on the node asked for, and leaves a line, whatever came of it."""
    trail = Trail(folder, limits)
    entry = {"op": op, "who": _person(), "via": "node", **asked, "why": "on the node itself"}
    try:
        status = act()
    except BaseException as error:
        trail.write({**entry, "result": "failed", "refused": str(error) or type(error).__name__})
        raise
    trail.write({**entry, "result": "failed" if status else "accepted"})
    return status


def _person() -> str:
    """The user, and who logged in before he became that one."""
    uid = os.getuid()
    try:
        login = int(Path("/proc/self/loginuid").read_text())
    except (OSError, ValueError):
        login = LOGIN_UNSET
    return f"local uid {uid}" if login in {uid, LOGIN_UNSET} else f"local uid {uid}, login {login}"
