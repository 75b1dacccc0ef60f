"""The difference between two policies, as `policy_json` gives them. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

NOT_COMPARED = ("source", "digest")  # the file's name, and the digest of its bytes

Json = dict[str, Any]


def difference(before: Json, after: Json) -> Json:
    """Jobs added and removed by name, and every changed value by its dotted key."""
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
