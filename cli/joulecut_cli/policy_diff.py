"""`joulecut policy diff FILE`: what a file would change, against the policy in force.

Compared as values, after defaults: a comment or another order of keys is no difference.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from joulecut_cli.controller_client import Controller, Json
from joulecut_cli.status import add_controller_flags
from joulecut_controller.policy.shown import policy_json
from joulecut_controller.sources.policy_file import load
from joulecut_wire.command import FINE, Parser

NOT_COMPARED = ("source", "digest")  # where it was read from, and of which bytes


def run(argv: list[str]) -> int:
    """Raises BadInput where the file is wrong, Unavailable without a controller."""
    parser = Parser("joulecut policy diff", "What a policy file would change if it were in force.")
    parser.add_argument("file", type=Path, metavar="FILE")
    add_controller_flags(parser)
    given = parser.parse_args(argv)
    mine = policy_json(load(given.file))
    controller = Controller(given.controller)
    theirs = controller.policy()
    found = difference(theirs, mine)
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(_lines(found, theirs, str(given.file), controller.url)))
    return FINE


def difference(before: Json, after: Json) -> Json:
    """Jobs added and removed by name, and every value that is another, by its dotted key."""
    old, new = ({job["name"]: job for job in one["jobs"]} for one in (before, after))
    both = [name for name in old if name in new]
    changed = list(_changed("", _cluster(before), _cluster(after)))
    changed += [one for name in both for one in _changed(name, old[name], new[name])]
    moved = both != [name for name in new if name in old]
    added, removed = [n for n in new if n not in old], [n for n in old if n not in new]
    return {
        "same": not (changed or added or removed or moved),
        "added": added,
        "removed": removed,
        "changed": changed,
        "order_changed": moved,
    }


def _cluster(policy: Json) -> Json:
    return {key: value for key, value in policy.items() if key not in (*NOT_COMPARED, "jobs")}


def _changed(job: str, before: Json, after: Json) -> Iterator[Json]:
    old, new = dict(_flat(before)), dict(_flat(after))
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield {"job": job, "key": key, "before": old.get(key), "after": new.get(key)}


def _flat(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner, f"{path}{key}.")
        else:
            yield path + key, inner


def _lines(found: Json, theirs: Json, file: str, url: str) -> Iterator[str]:
    yield f"--- in force at {url}: {theirs['source']} ({theirs['digest']})"
    yield f"+++ {file}"
    if found["same"]:
        yield "No difference."
        return
    for name in found["removed"]:
        yield f"- job {name}: its GPUs would be given back"
    for name in found["added"]:
        yield f"+ job {name}"
    about = None
    for one in found["changed"]:
        if one["job"] != about:
            about = one["job"]
            yield f"  job {about}" if about else "  cluster"
        yield f"-   {one['key']}: {_word(one['before'])}"
        yield f"+   {one['key']}: {_word(one['after'])}"
    if found["order_changed"]:
        yield "  the order of jobs changes: the first that matches a GPU has it"


def _word(value: Any) -> str:
    return "none" if value is None else json.dumps(value) if isinstance(value, list) else str(value)
