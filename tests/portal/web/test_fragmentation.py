"""The page *Fragmentation*, its chart and its REST twin."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.web.fragmentation import chain_figure
from scheduling.estimates.models import FragmentationForecast
from scheduling.estimates.queries import fragmentation_view
from scheduling.estimates.services.fragmentation import OFFSETS, store_forecast
from tenants.viewers import Viewer
from tests.factories.scheduling import CONFIG
from tests.support.cluster_pages import Stage, make_stage, read, sign_in, words_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def stage() -> Stage:
    """Alice holds 2 devices of one node, bob 4 of another one, and one job of alice waits."""
    made = make_stage(3)
    store_forecast(config=CONFIG, now=timezone.now(), defragmentation="propose", futures=3)
    return made


def test_the_page_shows_stranded_devices_by_gang_size(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")

    text = words_of(read(client, "/fragmentation/"))

    for part in ("Forecast of 12 h in 3 simulated futures", "Idle devices", "16 devices", "now"):
        assert part in text, part
    assert "language" not in text
    assert "secret-name" not in text


def test_the_twin_has_all_times_of_the_newest_forecast(client: Client, stage: Stage) -> None:
    sign_in(client, "bob")
    store_forecast(config=CONFIG, now=timezone.now(), defragmentation="off", futures=2)

    body: dict[str, Any] = client.get("/api/v1/fragmentation/").json()

    assert body["offsets_s"] == list(OFFSETS)
    assert body["futures"] == 2
    assert FragmentationForecast.objects.count() == 1
    (chain,) = body["chains"]
    assert len(chain["idle"]) == len(OFFSETS)
    sizes = {row["devices"]: row["stranded"][0] for row in chain["gang_sizes"]}
    assert sizes[1] == [0, 0, 0]
    # After the next round, 8 - 2, 8 - 4 and 8 devices are idle, less the job that starts.
    idle = chain["idle"][0][1]
    assert sizes[8][1] == idle - 8 * (idle >= 17)
    assert chain["levels"][0]["devices"] == 1
    assert "language" not in str(body)


def test_the_chart_has_a_line_for_each_gang_size(stage: Stage) -> None:
    view = fragmentation_view(Viewer.system("tests"))

    figure = chain_figure(view.chains[0], view)

    assert [trace["name"] for trace in figure["data"]] == [
        "idle", "2 devices", "4 devices", "8 devices", "16 devices",
    ]  # fmt: skip
    for trace in figure["data"]:
        assert len(trace["x"]) == len(trace["y"]) == len(OFFSETS)


def test_before_the_first_forecast_the_page_says_when_there_will_be_one(
    client: Client, stage: Stage
) -> None:
    FragmentationForecast.objects.all().delete()
    sign_in(client, "alice")

    assert "No forecast yet" in words_of(read(client, "/fragmentation/"))
    assert client.get("/api/v1/fragmentation/").json()["chains"] == []
    assert Client().get("/api/v1/fragmentation/").status_code in {401, 403}
