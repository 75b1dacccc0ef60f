"""`joulecut study report`: a study's table as one page that opens anywhere.

joulecut study report FILE [FILE ...] --out DIR
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from joulecut_cli import figures
from joulecut_cli.outfile import replacing
from joulecut_cli.page import document, table
from joulecut_cli.plot import require
from joulecut_engine.panel import Panel, html
from joulecut_lab.study import charts
from joulecut_lab.study.evaluate import Result, evaluate
from joulecut_lab.study.fit import ROWS_MIN
from joulecut_lab.study.row import Row, ordered, read, savings
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
    out = folder(args.out, "--out")
    rows = ordered(row for name in args.files for row in read(Path(name)))
    print(write_report(rows, out))
    return FINE


def folder(word: str, flag: str = "--report") -> Path:
    """Checks the page's folder before anything runs. Raises BadInput, Unavailable."""
    path = Path(word)
    if not word:
        raise BadInput(flag, "names nothing", "a folder")
    if path.exists() and not path.is_dir():
        raise BadInput(flag, f"{path} is a file", "a folder, made where it is missing")
    if not path.exists() and not path.absolute().parent.is_dir():
        raise BadInput(flag, f"no folder {path.parent}", "a folder in one that exists")
    require()
    return path


def write_report(rows: Sequence[Row], out: Path) -> Path:
    """The page's file. Raises BadInput where it cannot be written."""
    try:
        out.mkdir(exist_ok=True)
        with replacing(out / PAGE) as spare:
            spare.write_text(page(rows), encoding="utf-8")
    except OSError as error:
        raise BadInput(str(out), error.strerror or "cannot be written", "a folder") from None
    return out / PAGE


def page(rows: Sequence[Row]) -> str:
    """One self-contained HTML page; a part of it for every card and basis in the table."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.card, row.basis), []).append(row)
    parts = [part for group in groups.values() for part in _group(group)]
    return document("Decoder layers over clocks", parts)


def _group(rows: Sequence[Row]) -> list[str]:
    stable = [row for row in rows if row.stable]
    first = rows[0]
    drivers = ", ".join(sorted({row.driver for row in rows} - {""})) or "unknown"
    lines = [
        (
            f"<p>{escape(first.card)}, driver {escape(drivers)}, {len(rows)} rows "
            f'<span class="badge">{escape(first.basis)}</span></p>'
        )
    ]
    if len(stable) < len(rows):
        lines.append(f"<p>{len(rows) - len(stable)} rows were not stable and are left out.</p>")
    if not savings(stable):
        return [*lines, "<p>One clock each: there are no curves to draw.</p>"]
    results = evaluate(stable, SEED) if len(stable) >= ROWS_MIN else []
    split, source = charts.parts(stable)
    lines += [
        _charts(
            "Energy has a best clock",
            "A dot marks the fastest clock, which limits of power and heat may put below the "
            "highest; a ring marks the least energy.",
            charts.u_curves(stable),
        ),
        _savings(stable),
        _charts("Where the joules go", source, split),
        _charts(
            "Size and sequence",
            "At each layer's own clock of least energy; fronts at its longest sequence. A ring "
            "marks an end of the sweep: the best clock may lie beyond.",
            [*charts.per_operation(stable), *charts.best_clocks(stable), *charts.fronts(stable)],
        ),
    ]
    if results:
        about = "What the predictors look at, and errors of rows that did not teach."
        drawn = [*charts.importances(stable), *charts.residuals(stable, results)]
        lines += [_scores(results), _charts("Importances and residuals", about, drawn)]
    return lines


def _charts(title: str, text: str, panels: Sequence[Panel]) -> str:
    drawn = "\n".join(html(panel) for panel in panels)
    body = f'<div class="charts">{drawn}</div>' if panels else ""
    return f"<section><h2>{escape(title)}</h2><p>{escape(text)}</p>{body}</section>"


def _savings(rows: Sequence[Row]) -> str:
    lines = [
        (
            one.fastest.model,
            str(one.fastest.sequence),
            one.fastest.dtype,
            str(one.fastest.clock_asked_mhz),
            str(one.frugal.clock_asked_mhz),
            figures.percent(one.saved_ratio),
            figures.percent(one.slower_ratio),
        )
        for one in savings(rows)
    ]
    head = ("layer", "sequence", "type", "fastest, MHz", "least energy, MHz", "saved", "slower")
    return (
        "<section><h2>The fastest Pareto point against the one of least energy</h2>"
        f"{table(head, lines)}</section>"
    )


def _scores(results: Sequence[Result]) -> str:
    lines = []
    silences = "".join(f"<p>{escape(one.silence)}</p>" for one in results if one.silence)
    for one in (one for one in results if one.judged):
        said = [f"{100 * one.scores[t].mape:.2f} %" for t in ("power", "time", "energy")]
        r2 = [f"{one.scores[t].r2:.3f}" for t in ("power", "time", "energy")]
        chosen = one.choices
        judged = (
            (figures.percent(chosen.regret), f"{100 * chosen.overshoot:.2f} pt")
            if chosen
            else (figures.NONE, figures.NONE)
        )
        lines.append((one.split.name, one.predictor, *said, " / ".join(r2), *judged))
    head = ("split", "predictor", "power", "time", "energy", "R2", "regret", "overshoot")
    return (
        "<section><h2>How well predictors learn it</h2><p>Mean absolute errors in per cent; "
        "regret and overshoot of the clocks they would choose.</p>"
        f"{table(head, lines)}{silences}</section>"
    )
