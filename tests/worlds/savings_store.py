"""A store as a controller would leave it after a week, for whoever shows reports of it.

The windows are made up (windows.py); nothing here was measured.
"""

import json
from dataclasses import replace

from windows import NOON_UNIX_S, World, windows

from joulecut_controller.ports import Event, Record, Store
from joulecut_controller.trust.window import TOPIC, MeasuredWindow, to_json

DAY_S = 86_400.0
UNTIL_UNIX_S = NOON_UNIX_S + 7.0 * DAY_S
SEED = 7
JOBS = {
    "gpt3-175b": (World(saved=0.15), 2.0),
    "llama-70b": (World(saved=0.06, slowdown=0.004), 1.0),
    "tiny": (World(), 0.15),
}


def week(ends_unix_s: float = UNTIL_UNIX_S) -> list[MeasuredWindow]:
    """Windows of three jobs of two days, one, and hours; the last ends a minute before."""
    found = []
    for job, (world, days) in JOBS.items():
        made = windows(SEED, days, world, job)
        later_s = ends_unix_s - 60.0 - made[-1].ended_unix_s
        found += [
            replace(
                one,
                begun_unix_s=one.begun_unix_s + later_s,
                ended_unix_s=one.ended_unix_s + later_s,
            )
            for one in made
        ]
    return found


def trail(ends_unix_s: float = UNTIL_UNIX_S) -> list[Event]:
    """What was done to the clocks of the first job, oldest first."""
    settings = {f"GPU-{number}": 1200 if number < 4 else 1260 for number in range(7)}
    done = json.dumps({"ttl_s": 15.0, "settings": {**settings, "GPU-7": None}, "refused": []})
    begun = ends_unix_s - 2.0 * DAY_S
    job = "gpt3-175b"
    return [
        Event(begun, "plan", job, 12, "saves 15.5 % at +0.8 % time"),
        Event(begun + 1.0, "apply", job, 12, "applied: 7 lower", done),
        Event(begun + 3600.0, "plan", "llama-70b", 13, "saves 6 %"),
        Event(begun + 7200.0, "clear", job, 12, "default clocks: hold-out window"),
        Event(begun + 7530.0, "plan", job, 14, "the hold-out is over"),
        Event(begun + 7531.0, "apply", job, 14, "applied: 7 lower", done),
    ]


def fill(store: Store, ends_unix_s: float = UNTIL_UNIX_S) -> None:
    for window in week(ends_unix_s):
        store.keep_record(Record(window.ended_unix_s, TOPIC, window.job, to_json(window)))
    for event in trail(ends_unix_s):
        store.record(event)
