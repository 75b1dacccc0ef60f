"""Energy of a period by owner: owners, idle time and what is unknown add up to the boards."""

from collections import Counter
from typing import Any

from joulecut_cli.figures import length, moment, table
from joulecut_cli.report.table import energy
from joulecut_engine.money import SECONDS_PER_HOUR, Prices

Json = dict[str, Any]


def by_owner(report: Json, key: str) -> Json:
    """Joules by `key` of the owners; "" is an owner that has none."""
    sheet = report.get("energy") or {"owners": [], "total_j": 0.0}
    owners, rest = Counter[str](), Counter[str]()
    unused_j, unused_s = Counter[str](), Counter[str]()
    for row in sheet["owners"]:
        held = row["kind"] in {"job", "unused"}
        (owners if held else rest)[row[key] if held else row["kind"]] += row["energy_j"]
        if row["kind"] == "unused":
            unused_j[row[key]] += row["energy_j"]
            unused_s[row[key]] += row["gpu_s"]
    return {
        "since_unix_s": sheet.get("since_unix_s"),
        "until_unix_s": sheet.get("until_unix_s"),
        "by": key,
        "rows": [
            {
                "name": name,
                "energy_j": joules,
                "unused_j": unused_j[name],
                "unused_gpu_s": unused_s[name],
                "unused_money": _money(report["factors"], unused_j[name], unused_s[name]),
            }
            for name, joules in owners.most_common()
        ],
        "idle_j": rest["idle"] + 0.0,
        "unknown_j": rest["unknown"] + 0.0,
        "total_j": sheet["total_j"],
    }


def by_text(report: Json, key: str) -> str:
    """The same for a terminal."""
    made = by_owner(report, key)
    if made["since_unix_s"] is None:
        return "No energy was booked in this period: a controller books it while it leads."
    whole_j = made["total_j"] or 1.0
    head: tuple[str, ...] = (key.upper(), "KWH", "SHARE")
    cells = [
        (name, energy(one_j), f"{one_j / whole_j:.1%}")
        for name, one_j in (
            *((row["name"] or "-", row["energy_j"]) for row in made["rows"]),
            ("(idle)", made["idle_j"]),
            ("(unknown)", made["unknown_j"]),
        )
    ]
    cells.append(("all GPUs", energy(made["total_j"]), ""))
    since, until = made["since_unix_s"], made["until_unix_s"]
    span = f"{moment(since)} to {moment(until)} UTC ({length(until - since)})"
    lines = [f"Energy of GPUs, {span}", *table(head, cells, frozenset(head[1:]))]
    unused = [row for row in made["rows"] if row["unused_gpu_s"]]
    if unused:
        word = report["factors"].get("currency") or "in the currency of cluster.cost"
        head = (key.upper(), "KWH", "GPU-HOURS", "COST")
        lines += ["", f"Of that on GPUs that a job held and did not use; cost of both, {word}"]
        lines += table(head, [_unused(row) for row in unused], frozenset(head[1:]))
    return "\n".join(lines)


def _unused(row: Json) -> tuple[str, ...]:
    money = row["unused_money"]
    hours = f"{row['unused_gpu_s'] / SECONDS_PER_HOUR:.1f}"
    cost = "-" if money is None else f"{money:.2f}"
    return (row["name"] or "-", energy(row["unused_j"]), hours, cost)


def _money(factors: Json, joules: float, gpu_s: float) -> float | None:
    """Of GPUs held and not used; None without prices."""
    if factors["gpu_hour"] is None or factors["kwh"] is None:
        return None
    hosts_w = factors["host_power_w"]
    prices = Prices(factors["gpu_hour"], factors["kwh"], factors["pue"], hosts_w)
    cost: float = prices.cost(gpu_s, joules, 1)
    return cost
