"""`joulecut study report`: a study's table as one page that opens anywhere."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from joulecut_cli.page import document
from joulecut_cli.plot import require
from joulecut_lab.exhibit import Exhibit, kept
from joulecut_lab.study import charts
from joulecut_lab.study.evaluate import evaluate
from joulecut_lab.study.fit import ROWS_MIN, SCORE_HEAD, score_rows
from joulecut_lab.study.row import SAVING_HEAD, Row, ordered, read, saving_rows
from joulecut_wire.command import FINE, Parser
from joulecut_wire.errors import BadInput

PAGE = "study.html"
SEED = 1  # of the random split that the page shows


def run(argv: list[str]) -> int:
    """The exit status. Raises BadInput."""
    parser = Parser("joulecut study report", "A study's table as one page.")
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="table of joulecut study layer --out"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the page")
    args = parser.parse_args(argv)
    out = folder(args.out)
    rows = ordered(row for name in args.files for row in read(Path(name)))
    print(kept(out, PAGE, page(rows)))
    return FINE


def folder(word: str) -> Path:
    """Checks the page's folder before anything runs. Raises BadInput, Unavailable."""
    path = Path(word)
    if not word:
        raise BadInput("--out", "names nothing", "a folder")
    if path.exists() and not path.is_dir():
        raise BadInput("--out", f"{path} is a file", "a folder, made where it is missing")
    if not path.exists() and not path.absolute().parent.is_dir():
        raise BadInput("--out", f"no folder {path.parent}", "a folder in one that exists")
    require()
    return path


def page(rows: Sequence[Row]) -> str:
    """One self-contained HTML page; a part of it for every card and basis in the table."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.card, row.basis), []).append(row)
    parts = [one.html() for group in groups.values() for one in _exhibits(group)]
    return document("Decoder layers over clocks", parts)


def _exhibits(rows: Sequence[Row]) -> Iterator[Exhibit]:
    stable = [row for row in rows if row.stable]
    card, basis = rows[0].card, rows[0].basis
    drivers = ", ".join(sorted({row.driver for row in rows} - {""})) or "unknown"
    about = f"Driver {drivers}, {len(rows)} rows."
    if len(stable) < len(rows):
        about += f" {len(rows) - len(stable)} rows were not stable and are left out."
    saved = saving_rows(stable)
    if not saved:
        yield Exhibit(card, basis, f"{about} One clock each: there are no curves to draw.")
        return
    yield Exhibit(
        card, basis, f"{about}\nThe fastest Pareto point of each layer against the one of least "
        "energy.", rows=[SAVING_HEAD, *saved],
    )  # fmt: skip
    usual = charts.usual_dtype(stable)
    longest = charts.at_longest(stable, usual)
    yield Exhibit(
        "Energy has a best clock", basis,
        f"{usual}; above the dashed line a limit of power or heat holds the clock down; a ring "
        "marks the least energy.",
        panels=[panel for curve in longest.values() for panel in charts.over_clock(curve)],
        columns=3,
    )  # fmt: skip
    if causes := charts.parts(stable):
        text = "As the simulated card spends it, without noise."
        yield Exhibit("Where the joules go", basis, text, panels=causes)
    by_dtype = {d: charts.at_longest(stable, d) for d in dict.fromkeys(r.dtype for r in stable)}
    yield Exhibit(
        "Pareto fronts and best clocks", basis,
        "Fronts at the longest sequence. A ring marks an end of the sweep: the best clock may lie "
        "beyond.",
        panels=[
            *(charts.front(model, {d: found.get(model, ()) for d, found in by_dtype.items()})
              for model in longest),
            *charts.best_clocks(stable),
        ],
    )  # fmt: skip
    if len(stable) < ROWS_MIN:
        return
    results = evaluate(stable, SEED)
    text = (
        "Errors of rows that did not teach; regret and overshoot of the clocks they would choose."
    )
    yield Exhibit(
        "How well predictors learn it", basis,
        "\n".join([text, *(one.silence for one in results if one.silence)]),
        rows=[SCORE_HEAD, *score_rows(results)],
    )  # fmt: skip
    yield Exhibit(
        "Importances and residuals", basis, "What the predictors look at, and their errors.",
        panels=[*charts.importances(stable), *charts.residuals(stable, results)],
    )  # fmt: skip
