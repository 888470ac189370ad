"""The dashboard for Grafana and the table of names ask for nothing that is not there."""

import json
import re
from pathlib import Path

from tests.factories.metrics import fill_every_metric

ROOT = Path(__file__).resolve().parent.parent.parent.parent
DASHBOARD = ROOT / "deploy" / "grafana" / "tessera.json"
NAME = re.compile(r"tessera_[a-z_]+")


def test_every_metric_of_the_dashboard_and_the_docs_is_served(api, world) -> None:
    fill_every_metric()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = {
        name
        for panel in panels
        for target in panel.get("targets", ())
        for name in NAME.findall(target["expr"])
    }
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
