"""A comparison for people: what each rule saves, then stragglers and the power limit."""

from joulecut_cli import figures
from joulecut_lab.compare.outcome import LATE, Outcome
from joulecut_lab.compare.setting import Entry


def as_text(outcome: Outcome) -> list[str]:
    """What each rule saves, then stragglers and the power limit where asked."""
    setting, start = outcome.setting, outcome.fastest
    count = len(setting.problem.graph.operations)
    head = ["", "iteration", "slower", "energy", "saving", "gap", "took"]
    rows = [line(outcome, entry) for entry in outcome.entries]
    lines = [
        f"{outcome.job.path}: {count} operations, deadline {figures.seconds(setting.deadline_s)}",
        "one iteration, one GPU per stage; predicted from the profile, not measured",
        (
            f"baseline {figures.seconds(start.time_s)}, {figures.joules(start.energy_j)}; "
            "gap to a bound for the time each plan takes"
        ),
        "",
        *figures.table(head, rows, frozenset(head[1:])),
        *late(outcome),
    ]
    if setting.stragglers:
        lines += ["", *_straggler_table(outcome)]
    if setting.power_w is not None:
        lines += ["", *_budget_table(outcome)]
    return [*lines, "", *notes(outcome)]


def line(outcome: Outcome, entry: Entry) -> list[str]:
    if entry.plan is None:
        return [entry.name, entry.remark, *[figures.NONE] * 4, figures.seconds(entry.seconds)]
    return [
        entry.name,
        figures.seconds(entry.plan.time_s),
        f"{outcome.slowdown(entry.plan) * 100 + 0.0:+.2f} %" + "*" * (outcome.late(entry.plan) > 0),
        figures.joules(entry.plan.energy_j),
        figures.percent(outcome.saving(entry.plan.energy_j)),
        "-" if entry.gap is None else f"{entry.gap * 100:.2f} %",
        f"{entry.seconds:.2f} s",
    ]


def _straggler_table(outcome: Outcome) -> list[str]:
    against_j = outcome.baseline_cluster_j()
    head = ["", *(f"x{factor:g}" for factor in outcome.setting.stragglers)]
    rows = []
    for entry in outcome.entries:
        if entry.plan is None:
            continue
        cells = [
            figures.percent(outcome.saving(joules, base_j)) + ("*" if late > LATE else "")
            for joules, base_j, late in zip(entry.cluster_j, against_j, entry.late, strict=True)
        ]
        rows.append([entry.name, *cells])
        if entry.claimed_cluster_j:
            claims = outcome.claimed_stragglers(entry)
            rows.append([f"  {entry.name}, its claim", *map(figures.percent, claims)])
    title = f"saving of {outcome.setting.pipelines} pipelines while one of them is a straggler"
    return [title, *figures.table(head, rows, frozenset(head[1:])), *late_there(outcome)]


def late(outcome: Outcome) -> list[str]:
    """The footnote of starred times: a rule that cannot be on time is shown as it is."""
    if any(entry.plan and outcome.late(entry.plan) for entry in outcome.entries):
        return ["* later than the deadline"]
    return []


def late_there(outcome: Outcome) -> list[str]:
    """The footnote of starred savings: they were bought with everybody's time."""
    latest = max((late for entry in outcome.entries for late in entry.late), default=0.0)
    return [f"* later than the straggler, by up to {latest * 100:.2f} %"] if latest > LATE else []


def _budget_table(outcome: Outcome) -> list[str]:
    pipelines, power_w = outcome.setting.pipelines, outcome.setting.power_w
    assert power_w is not None
    head = ["", "iteration", "slower", "power"]
    rows = []
    for entry in outcome.entries:
        limited = entry.limited
        if limited is None:
            rows.append([entry.name, "out of reach", figures.NONE, figures.NONE])
            continue
        drawn_w = pipelines * limited.energy_j / limited.time_s
        slower = f"{outcome.slowdown(limited) * 100 + 0.0:+.2f} %"
        rows.append([entry.name, figures.seconds(limited.time_s), slower, figures.watts(drawn_w)])
    full_w = pipelines * outcome.fastest.energy_j / outcome.fastest.time_s
    limit_w = pipelines * power_w
    change = figures.percent(limit_w / full_w - 1, signed=True)
    title = (
        f"fastest within {figures.watts(limit_w)}, {change} of the {figures.watts(full_w)} "
        "at full speed"
    )
    return [title, *figures.table(head, rows, frozenset(head[1:]))]


def notes(outcome: Outcome) -> list[str]:
    """What has to be known of a rule that reckons for itself."""
    found = []
    if outcome.left_out():
        found.append(f"Compared {outcome.left_out()}.")
    if outcome.setting.stragglers and outcome.setting.sync == "layer":
        found.append("Siblings meet at every layer (sync: layer): nobody gains by reacting.")
    unit_ms = outcome.perseus_unit_s * 1e3
    for entry in outcome.entries:
        if entry.claimed is not None:
            claim = figures.percent(outcome.claimed_saving(entry))
            found.append(
                f"Perseus reckons in units of {unit_ms:g} ms with fitted costs and claims {claim}; "
                "shown is what its clocks really take."
            )
            found.append(
                "Its plan is computed by a linear program of the same optimum: what it took says "
                "nothing about the published walk."
            )
    return found
