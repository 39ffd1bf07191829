"""The dashboard and the alert rules speak of metrics and labels that exist, and of all that matter."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from gateway.telemetry.families import FAMILIES, REQUEST_FAMILIES, Kind
from tests.style.tree import REPOSITORY

FOLDER = REPOSITORY / "deploy" / "observability"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
EXPRESSIONS = {
    **{f"alert {rule['alert']}": rule["expr"] for rule in RULES},
    **{
        f"panel {title} {target['refId']}": target["expr"]
        for title, panel in PANELS.items()
        for target in panel["targets"]
    },
}


def family_of(name: str) -> str:
    """The family that a name in an expression belongs to."""
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    is_histogram = base in FAMILIES and FAMILIES[base].kind is Kind.HISTOGRAM
    return base if is_histogram and base != name else name


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bfareway_\w+", expression))


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS.keys())
def test_expressions_use_metrics_and_labels_that_exist(expression):
    names = names_in(expression)
    assert names
    families = {family_of(name) for name in names}
    assert families <= set(FAMILIES)
    for name in names:
        # A histogram has no series of its bare name.
        assert FAMILIES[family_of(name)].kind is not Kind.HISTOGRAM or name.endswith("_bucket")
    known = {label for family in families for label in FAMILIES[family].labels} | {"le"}
    grouped = {
        label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")
    }  # fmt: skip
    matched = set(re.findall(r"[{,]\s*(\w+)\s*=~?\"", expression))
    assert (grouped | matched) <= known
    assert expression.count("(") == expression.count(")")


@pytest.mark.parametrize("panel", PANELS.values(), ids=PANELS.keys())
def test_legends_name_labels_that_their_series_have(panel):
    for target in panel["targets"]:
        labels = {
            label for name in names_in(target["expr"]) for label in FAMILIES[family_of(name)].labels
        }
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels


def test_counters_are_shown_as_rates():
    for expression in EXPRESSIONS.values():
        for name in names_in(expression):
            if FAMILIES[family_of(name)].kind is Kind.COUNTER:
                assert re.search(rf"(rate|increase)\({name}\b", expression), expression


def test_the_dashboard_shows_every_metric_of_requests():
    shown = {
        family_of(name) for expression in EXPRESSIONS.values() for name in names_in(expression)
    }
    # The histograms of whole durations are for queries of one's own; the first token and the speed
    # say more.
    whole = {"fareway_request_duration_seconds", "fareway_attempt_duration_seconds"}
    assert set(REQUEST_FAMILIES) - whole <= shown


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert all(x < 24 for x, _ in cells)
        taken |= cells


def test_each_alert_says_how_grave_it_is_and_what_to_do():
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
