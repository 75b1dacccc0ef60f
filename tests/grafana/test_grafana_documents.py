"""The dashboards' JSON: held to the rules of Grafana's linter, and equal in every copy."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from queries import WIDTH

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "grafana"
# Grafana's unit ids (packages/grafana-data/src/valueFormats/categories.ts), those in use here.
UNITS = {
    "bytes", "celsius", "hertz", "joule", "kwatth", "massg", "none", "ops", "percentunit", "s",
    "short", "watt",
}  # fmt: skip
PAGES = sorted((GRAFANA / "dashboards").glob("*.json"))
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)


def _page(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def _panels(path: Path) -> list[dict[str, Any]]:
    return [panel for panel in _page(path)["panels"] if panel["type"] != "row"]


def _targets(path: Path) -> list[dict[str, Any]]:
    return [target for panel in _panels(path) for target in panel["targets"]]


def test_every_copy_is_equal_to_its_source() -> None:
    command = [sys.executable, str(ROOT / "tools" / "dashboards"), "--check"]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, f"run tools/dashboards: {judged.stdout}{judged.stderr}"
    maps = yaml.safe_load_all((GRAFANA / "kubernetes" / "dashboards.yaml").read_text())
    assert {path.stem for path in PAGES} == {item["metadata"]["name"] for item in maps}


@page
def test_ids_are_unique_and_panels_do_not_overlap(path: Path) -> None:
    panels = _page(path)["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        box = panel["gridPos"]
        assert box["x"] + box["w"] <= WIDTH
        cells = {
            (x, y)
            for x in range(box["x"], box["x"] + box["w"])
            for y in range(box["y"], box["y"] + box["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@page
def test_each_panel_has_title_description_unit_and_the_chosen_datasource(path: Path) -> None:
    for panel in _panels(path):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["datasource"] == DATASOURCE
        assert panel["targets"]
        for override in panel["fieldConfig"]["overrides"]:
            units = {item["value"] for item in override["properties"] if item["id"] == "unit"}
            assert units <= UNITS
        refs = [target["refId"] for target in panel["targets"]]
        assert refs == sorted(set(refs))


@page
def test_variables_begin_with_the_datasource_and_are_used(path: Path) -> None:
    told = _page(path)
    variables = told["templating"]["list"]
    assert (variables[0]["name"], variables[0]["type"]) == ("datasource", "datasource")
    text = json.dumps([told["panels"], variables])
    for variable in variables:
        assert variable["label"]
        assert variable["description"]
        assert re.search(rf"\$\{{?{variable['name']}\b", text), variable["name"]
        if variable["type"] == "query":
            assert variable["datasource"] == DATASOURCE
            assert variable["multi"]
            assert variable["includeAll"]
    known = {variable["name"] for variable in variables} | {"__rate_interval", "__range"}
    for target in _targets(path):
        used = set(re.findall(r"\$\{?(\w+)", target["expr"]))
        assert used <= known, target["expr"]


@page
def test_rates_use_the_interval_that_fits_the_scrape(path: Path) -> None:
    for target in _targets(path):
        for function, window in re.findall(
            r"\b(rate|irate|increase|delta)\(.*?\[(.*?)\]", target["expr"]
        ):
            allowed = {"increase": "$__range"}.get(function, "$__rate_interval")
            assert window == allowed, target["expr"]
        if "[" in target["expr"]:
            assert re.search(r"\b(rate|increase)\(", target["expr"]), target["expr"]


@page
def test_choices_match_any_of_several(path: Path) -> None:
    """A variable of many values is a regular expression, so `=` would find nothing."""
    for target in _targets(path):
        assert not re.search(r'[^~]="\$', target["expr"]), target["expr"]


def test_config_maps_fit_the_api_server() -> None:
    """It refuses an annotation or object above about a mebibyte."""
    maps = yaml.safe_load_all((GRAFANA / "kubernetes" / "dashboards.yaml").read_text())
    assert max(len(text) for item in maps for text in item["data"].values()) < 2**19


def test_provisioning_and_scrape_say_what_the_pages_rest_on() -> None:
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/joulecut.yaml").read_text())
    assert provider["apiVersion"] == 1
    assert not provider["providers"][0]["allowUiUpdates"]
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/joulecut.yaml").read_text())
    assert source["datasources"][0]["type"] == "prometheus"
    scrape = yaml.safe_load((GRAFANA / "prometheus.yaml").read_text())
    assert not any("honor_labels" in job for job in scrape["scrape_configs"])
    interval = scrape["global"]["scrape_interval"]
    assert source["datasources"][0]["jsonData"]["timeInterval"] == interval
