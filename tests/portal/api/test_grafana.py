"""The dashboard, the alert rules and the table of names use only metrics that are served."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from tests.factories.metrics import fill_every_metric

ROOT = Path(__file__).resolve().parent.parent.parent.parent
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "tessera.json"
NAME = re.compile(r"tessera_[a-z_]+")


def alert_rules() -> list[dict[str, Any]]:
    """The rules of all groups."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_each_alert_has_a_summary_and_a_line_in_the_runbook() -> None:
    runbook = (ROOT / "docs" / "install.md").read_text()

    assert len(alert_rules()) == len({rule["alert"] for rule in alert_rules()})
    for rule in alert_rules():
        assert f"| `{rule['alert']}` |" in runbook
        assert rule["annotations"]["summary"].endswith(".")
    named = re.findall(r"^\| `(Tessera\w+)` \|", runbook, re.MULTILINE)
    assert set(named) == {rule["alert"] for rule in alert_rules()}


def test_every_metric_of_the_dashboard_and_the_docs_is_served(api, world) -> None:
    fill_every_metric()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = {
        name
        for panel in panels
        for target in panel.get("targets", ())
        for name in NAME.findall(target["expr"])
    }
    asked |= {name for rule in alert_rules() for name in NAME.findall(rule["expr"])}
    text = (ROOT / "docs" / "rest-api.md").read_text()
    written = set(NAME.findall(text[text.index("## Metrics") :])) - {"tessera_"}

    lines = api("root").get("/metrics").content.decode().splitlines()

    kinds = dict(line.split()[2:4] for line in lines if line.startswith("# TYPE "))
    served = set(kinds) | {
        f"{name}_{part}"
        for name, kind in kinds.items()
        if kind == "histogram"
        for part in ("bucket", "sum", "count")
    }
    assert asked - served == set()
    # Power is part of the newest reading only, which Redis caches.
    assert written - served == {"tessera_gpu_power_watts"}
    assert len(asked) > 20


def test_panels_have_titles_places_and_numbers_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] for panel in panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
