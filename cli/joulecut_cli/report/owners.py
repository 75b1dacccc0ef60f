"""Energy of a period by owner: owners, idle time and what is unknown add up to the boards."""

from collections import Counter
from typing import Any

from joulecut_cli.figures import length, moment, table
from joulecut_cli.report.table import energy

Json = dict[str, Any]


def by_owner(report: Json, key: str) -> Json:
    """Joules by `key` of the owners; "" is an owner that has none."""
    sheet = report.get("energy") or {"owners": [], "total_j": 0.0}
    owners, rest = Counter[str](), Counter[str]()
    for row in sheet["owners"]:
        (owners if row["kind"] == "job" else rest)[
            row[key] if row["kind"] == "job" else row["kind"]
        ] += row["energy_j"]
    return {
        "since_unix_s": sheet.get("since_unix_s"),
        "until_unix_s": sheet.get("until_unix_s"),
        "by": key,
        "rows": [{"name": name, "energy_j": joules} for name, joules in owners.most_common()],
        "idle_j": rest["idle"] + 0.0,
        "unknown_j": rest["unknown"] + 0.0,
        "total_j": sheet["total_j"],
    }


def by_text(report: Json, key: str) -> str:
    """The same for a terminal."""
    made = by_owner(report, key)
    if made["since_unix_s"] is None:
        return "No energy was booked in this period: a controller books it while it leads."
    rows = [(row["name"] or "-", row["energy_j"]) for row in made["rows"]]
    rows += [("(idle)", made["idle_j"]), ("(unknown)", made["unknown_j"])]
    whole_j = made["total_j"] or 1.0
    head = (key.upper(), "KWH", "SHARE")
    cells = [(name, energy(joules), f"{joules / whole_j:.1%}") for name, joules in rows]
    cells.append(("all GPUs", energy(made["total_j"]), ""))
    since, until = made["since_unix_s"], made["until_unix_s"]
    span = f"{moment(since)} to {moment(until)} UTC ({length(until - since)})"
    return "\n".join([f"Energy of GPUs, {span}", *table(head, cells, frozenset(head[1:]))])
