"""Turns dashboards into Grafana's classic JSON, the one form that every version from 10.3 reads."""

from typing import Any

from joulecut_dashboards.panels import WIDTH, Choice, Dashboard, Entry, Panel, Query, Row

SCHEMA_VERSION = 39  # of Grafana 10.3; newer versions migrate it on load
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
TAG = "joulecut"


def document(dashboard: Dashboard) -> dict[str, Any]:
    """The whole page, ready for a file, a ConfigMap or the API."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,  # one cross-hair over all panels: power, clock and time of a moment
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "links": [
            {
                "type": "dashboards",
                "title": "Joulecut",
                "tags": [TAG],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {
            "list": [
                _datasource(),
                *map(_choice, dashboard.choices),
                *map(_entry, dashboard.entries),
            ]
        },
        "panels": _laid_out(dashboard.rows),
    }


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "description": "The Prometheus that scrapes Joulecut.",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "hide": 0,
        "refresh": 1,
        "multi": False,
        "includeAll": False,
    }


def _choice(choice: Choice) -> dict[str, Any]:
    query = f"label_values({choice.metric}, {choice.value_of})"
    return {
        "name": choice.name,
        "label": choice.label,
        "description": choice.description,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": choice.name},
        "refresh": 2,  # at every change of the time range: jobs come and go
        "sort": 1,
        "hide": 0,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _entry(entry: Entry) -> dict[str, Any]:
    now = {"selected": True, "text": entry.default, "value": entry.default}
    return {
        "name": entry.name,
        "label": entry.label,
        "description": entry.description,
        "type": "textbox",
        "query": entry.default,
        "current": now,
        "options": [now],
        "hide": 0,
    }


def _laid_out(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    """Panels from left to right; a new line where the next one does not fit."""
    placed: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        head = {"type": "row", "title": row.title, "collapsed": False, "panels": []}
        placed.append({**head, "id": len(placed) + 1, "gridPos": _box(0, y, WIDTH, 1)})
        y, x, line_height = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                y, x, line_height = y + line_height, 0, 0
            box = _box(x, y, panel.width, panel.height)
            placed.append({**_panel(panel), "id": len(placed) + 1, "gridPos": box})
            x, line_height = x + panel.width, max(line_height, panel.height)
        y += line_height
    return placed


def _box(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel) -> dict[str, Any]:
    steps = [{"color": color, "value": value} for color, value in panel.thresholds]
    body: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "targets": [_target(panel, n, query) for n, query in enumerate(panel.queries)],
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "color": {"mode": "palette-classic"},
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
    }
    {"timeseries": _timeseries, "stat": _stat, "table": _table}[panel.kind](panel, body)
    return body


def _target(panel: Panel, n: int, query: Query) -> dict[str, Any]:
    return {
        "refId": chr(ord("A") + n),
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "instant": panel.kind != "timeseries",
        "range": panel.kind == "timeseries",
        "format": "table" if panel.kind == "table" else "time_series",
    }


def _timeseries(panel: Panel, body: dict[str, Any]) -> None:
    body["fieldConfig"]["defaults"]["custom"] = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 20 if panel.stacked else 0,
        "showPoints": "never",
        "spanNulls": False,  # absence is shown as absence
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }
    body["options"] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _stat(panel: Panel, body: dict[str, Any]) -> None:
    body["fieldConfig"]["defaults"]["color"] = {"mode": "thresholds"}
    body["options"] = {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "name" if panel.show_name else "auto",
    }


def _table(panel: Panel, body: dict[str, Any]) -> None:
    """One line a set of labels, one column a query."""
    values = [f"Value #{chr(ord('A') + n)}" for n in range(len(panel.queries))]
    if len(values) == 1:
        values = ["Value"]  # Grafana numbers the columns only where there are several
    titles = [title for title, _ in panel.columns]
    kept = [*panel.by, *(value for value, title in zip(values, titles, strict=True) if title)]
    body["options"] = {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}}
    body["transformations"] = [
        {"id": "merge", "options": {}},
        {"id": "filterFieldsByName", "options": {"include": {"names": kept}}},
        {
            "id": "organize",
            "options": {
                "indexByName": {name: place for place, name in enumerate(kept)},
                "renameByName": {v: t for v, t in zip(values, titles, strict=True) if t},
            },
        },
    ]
    body["fieldConfig"]["overrides"] = [
        {
            "matcher": {"id": "byName", "options": title},
            "properties": [{"id": "unit", "value": unit}],
        }
        for title, unit in panel.columns
        if title
    ]
