"""`joulecut study fit`: trains the predictors on a study's table and judges them."""

import json
from collections.abc import Sequence
from pathlib import Path

from joulecut_cli import figures
from joulecut_lab.study.evaluate import OURS, Result, by_clock, evaluate
from joulecut_lab.study.row import Row, ordered, read
from joulecut_lab.study.scoring import BUDGETS, TARGETS, Score
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput
from joulecut_wire.flags import whole

CLOCKS_SHOWN = 10
ROWS_MIN = 20  # fewer leave nothing to judge by
SEED_MAX = 2**32 - 1
SCORE_HEAD = ("split", "predictor", "rows", "of", "MAE", "MAPE", "R2", "regret", "overshoot")
# A study of decoder layers on an A30 by plain random forests, random rows (its slides).
REPORTED = "reported elsewhere, A30, random rows: power 1.5 %, time 3.5 %, energy 3.0 % (MAPE)"


def run(argv: list[str]) -> int:
    """The exit status. Raises BadInput."""
    parser = Parser("joulecut study fit", "How well the predictors learn from a study's table.")
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="table of joulecut study layer --out"
    )
    parser.add_argument(
        "--seed", type=whole(0, SEED_MAX), default=1, metavar="N", help="seed of the random split"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    rows, left_out = usable(args.files)
    results = evaluate(rows, args.seed)
    print(_json(rows, results) if args.json else _text(rows, left_out, results))
    return FINE


def usable(files: Sequence[str]) -> tuple[list[Row], int]:
    """The stable rows of all files, and how many were left out. Raises BadInput."""
    rows = ordered(row for name in files for row in read(Path(name)))
    if len({row.basis for row in rows}) > 1:
        raise BadInput(", ".join(files), "measured and simulated rows are mixed", "one of them")
    stable = [row for row in rows if row.stable]
    if len(stable) < ROWS_MIN:
        raise BadInput(", ".join(files), f"{len(stable)} stable rows", f"at least {ROWS_MIN}")
    keys = {(row.setting, row.clock_asked_mhz) for row in stable}
    if len(keys) < len(stable):
        raise BadInput(", ".join(files), "a card's layer is there twice at one clock", "once each")
    return stable, len(rows) - len(stable)


def _text(rows: Sequence[Row], left_out: int, results: Sequence[Result]) -> str:
    cards = ", ".join(dict.fromkeys(row.card for row in rows))
    lines = [f"{len(rows)} rows, {rows[0].basis}, of {cards}"]
    if left_out:
        lines.append(f"{left_out} rows left out: they were not stable")
    lines.append("")
    lines += figures.table(SCORE_HEAD, score_rows(results), frozenset(SCORE_HEAD[4:]) | {"rows"})
    budgets = ", ".join(f"{budget:.0%}" for budget in BUDGETS)
    lines += ["", f"regret and overshoot: means over curves and budgets of {budgets}"]
    splits = {one.split.name: one.split.says for one in results}
    lines += [f"{name}: {says}" for name, says in splits.items()]
    lines += [one.silence for one in results if one.silence]
    lines += _clocks(rows, results)
    lines += [REPORTED, "                 R2: power 0.997, time 0.992, energy 0.997"]
    return "\n".join(lines)


def _clocks(rows: Sequence[Row], results: Sequence[Result]) -> list[str]:
    """Errors of our predictor by clock, of clocks that it has not seen."""
    for one in results:
        if one.split.name == "held-out clocks" and one.predictor == OURS and one.judged:
            errors = by_clock(rows, one)
            every = max(1, -(-len(errors) // CLOCKS_SHOWN))
            shown = [
                (f"{mhz:.0f}", f"{100 * time:.2f} %", f"{100 * energy:.2f} %")
                for mhz, (time, energy) in list(errors.items())[::every]
            ]
            return figures.table(("MHz, not seen", "time", "energy"), shown,
                                 frozenset({"MHz, not seen", "time", "energy"}))  # fmt: skip
    return []


def score_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """One line per target of every result that judged rows."""
    units = {"power": figures.watts, "time": figures.seconds, "energy": figures.joules}
    lines: list[tuple[str, ...]] = []
    for result in (one for one in results if one.judged):
        name, chosen = (result.split.name, result.predictor, str(result.judged)), result.choices
        ends = ("", "")
        if chosen:
            ends = f"{100.0 * chosen.regret:.2f} %", f"{100.0 * chosen.overshoot:.2f} pt"
        for target, found in result.scores.items():
            cells = units[target](found.mae), f"{100.0 * found.mape:.2f} %", f"{found.r2:.4f}"
            lines.append((*name, target, *cells, *ends))
            name, ends = ("", "", ""), ("", "")
    return lines


def _json(rows: Sequence[Row], results: Sequence[Result]) -> str:
    return json.dumps(
        {
            "rows": len(rows),
            "basis": rows[0].basis,
            "results": [
                {
                    "split": result.split.name,
                    "predictor": result.predictor,
                    "rows": result.judged,
                    "silent": result.silent,
                    **{target: _score_json(result.scores.get(target)) for target in TARGETS},
                    "regret_ratio": result.choices.regret if result.choices else None,
                    "overshoot_ratio": result.choices.overshoot if result.choices else None,
                }
                for result in results
            ],
        },
        allow_nan=False,
        indent=1,
    )


def _score_json(found: Score | None) -> dict[str, float] | None:
    if found is None:
        return None
    return {"mae": found.mae, "mape_ratio": found.mape, "r2": found.r2}
