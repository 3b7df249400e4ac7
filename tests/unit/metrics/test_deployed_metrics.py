"""Dashboard and alerts under ``deploy/`` ask for metrics and labels that there are, and say what they show."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.metrics.test_metric_table import documented

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "omni-jobs.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]] + [rule["expr"] for rule in RULES]
PARTS = {"histogram": ("_bucket", "_sum", "_count")}


def shown() -> dict[str, set[str]]:
    """The labels of each series that our processes show, by its name."""
    found = {}
    for name, (kind, labels, _) in documented().items():
        for part in PARTS.get(kind, ("",)):
            found[name + part] = labels | ({"le"} if part == "_bucket" else set())
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_asks_for_series_that_there_are(expression: str) -> None:
    series = shown()
    for name, selector in re.findall(r"(omni_jobs_\w+)(?:\{([^}]*)\})?", expression):
        assert name in series
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)) <= series[name] | {"job", "instance"}


def test_each_metric_that_a_person_wants_is_on_the_dashboard() -> None:
    asked = set(re.findall(r"omni_jobs_\w+", " ".join(EXPRESSIONS)))
    parts = {part for found in PARTS.values() for part in found}
    whole = {re.sub(f"({'|'.join(parts)})$", "", name) for name in asked}
    assert set(documented()) - whole == {"omni_jobs_process_info", "omni_jobs_stage_pending"}


def test_panels_stand_beside_each_other_and_say_what_they_show() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_why_it_matters_and_what_to_do_first(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(rule["annotations"]) == {"summary", "reason", "first_step"}
