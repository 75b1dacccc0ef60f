"""Pages of the commands that write HTML: one style, nothing fetched from anywhere."""

from collections.abc import Sequence
from html import escape

from joulecut_engine.panel import palette

_RULES = """
body{margin:28px auto;max-width:940px;padding:0 20px;background:var(--paper);color:var(--ink);
font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif;
font-variant-numeric:tabular-nums}
h1{font-size:20px;font-weight:650;letter-spacing:-.01em;margin:0 0 2px}
h2{font-size:16px;font-weight:600;margin:0 0 4px}
p{margin:2px 0;color:var(--muted)}p.note{margin-top:10px;font-size:12.5px}
section{margin-top:16px;padding:16px 18px;background:var(--card);border:1px solid var(--line);
border-radius:12px;overflow-x:auto}
.chart{display:block;width:100%;height:auto}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(330px,1fr));
gap:14px 18px;margin-top:8px}figure{margin:0}figcaption{font-weight:550;font-size:13px}
.legend{font-size:12px}.legend span{margin-right:12px;white-space:nowrap}
.legend span::before{content:"";display:inline-block;width:10px;height:10px;border-radius:3px;
background:var(--c);margin-right:5px}
.badge{display:inline-block;padding:1px 8px;border-radius:9px;border:1px solid var(--line)}
table{border-collapse:collapse;width:100%;margin-top:8px;font-size:13px}
th{font-weight:500;color:var(--muted);font-size:12px}
td{border-top:1px solid var(--line)}th,td{padding:4px 0 4px 14px;text-align:right}
td{white-space:nowrap}td.text,td:first-child{white-space:normal}
th:first-child,td:first-child{text-align:left;padding-left:0}
td.text,th.text{text-align:left}
@media print{body{background:#fff;margin:0}section{break-inside:avoid}}
"""


def document(title: str, body: Sequence[str], *, rules: str = "") -> str:
    """A whole page below its title; `rules` are its own, besides those of all."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{palette()}{_RULES}{rules}</style></head>",
            f"<body><h1>{escape(title)}</h1>",
            *body,
            "</body></html>",
            "",
        ]
    )
