"""The pages of the policy advisor: request, progress, cancel, result, shadow for a day, adopt."""

import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from scheduling.clusters.models import VirtualCluster
from scheduling.core.policies import POLICIES
from scheduling.rounds.models import Round
from scheduling.runs.models import Attempt
from scheduling.storage.directory import DirectoryStorage
from scheduling.what_if.models import WhatIf
from scheduling.what_if.services import shadows
from scheduling.what_if.services.what_if import answer_what_if
from tests.support.cluster_pages import HTMX, Stage, make_stage, read, sign_in, store_a_round

pytestmark = pytest.mark.django_db
DATA = "scheduling.what_if.services.advice"


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    found = {name: POLICIES[name] for name in ("fifo", "srtf")}
    monkeypatch.setattr(f"{DATA}.POLICIES", found)
    made = make_stage(2)
    store_a_round(Path(settings.TESSERA.data_dir))
    return made


def ask(client: Client, **changes: str) -> WhatIf:
    sent = {"virtual_cluster": "vision-a", "period": "1", **changes}
    client.post("/policies/advisor/", sent)
    return WhatIf.objects.unscoped().get()


def answer(row: WhatIf) -> None:
    Attempt.objects.update(running_at=timezone.now())
    data_dir = Path(settings.TESSERA.data_dir)
    assert answer_what_if(pk=row.pk, storage=DirectoryStorage(data_dir), now=timezone.now())
    row.refresh_from_db()
    assert row.fault == ""


def decide() -> int:
    """Decide the newest stored round by the shadow policies; return the number of decisions."""
    data_dir = Path(settings.TESSERA.data_dir)
    number = Round.objects.exclude(snapshot_path="").latest("number").number
    return shadows.decide_shadows(
        number=number, storage=DirectoryStorage(data_dir), now=timezone.now()
    )


def recommend(row: WhatIf, policy: str) -> None:
    """Store a recommendation, as if the replays had found it."""
    result = row.result
    result["recommendation"] = {"verdict": "change", "policy": policy}
    WhatIf.objects.unscoped().filter(pk=row.pk).update(result=result)


def test_an_advice_is_requested_shown_in_progress_and_with_its_result(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "alice")

    row = ask(client)
    waiting = client.get(f"/policies/advisor/{row.pk}/", headers=HTMX).content.decode()
    answer(row)
    page = read(client, f"/policies/advisor/{row.pk}/")

    assert "Queued: what-ifs run one at a time" in waiting
    assert page.index("Accuracy of the replay") < page.index("Recommendation")
    assert page.index("Recommendation") < page.index("chart-advice")
    assert "language-a" not in page
    assert "Shadow for 1 day" not in page
    assert f"/policies/advisor/{row.pk}/" in read(client, "/policies/advisor/")


def test_another_tenant_gets_404(client: Client, stage: Stage) -> None:
    row = ask(sign_in(client, "alice"))

    sign_in(client, "bob")

    assert client.get(f"/policies/advisor/{row.pk}/").status_code == 404
    assert client.post(f"/policies/advisor/{row.pk}/cancel/").status_code == 404
    assert client.post(f"/policies/what-if/{row.pk}/cancel/").status_code == 404


def test_the_requester_cancels_the_replays(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")
    row = ask(client)

    shown = read(client, f"/policies/advisor/{row.pk}/")
    client.post(f"/policies/advisor/{row.pk}/cancel/")

    assert "Cancel replays" in shown
    assert "Cancelled." in read(client, f"/policies/advisor/{row.pk}/")


def test_an_admin_shadows_the_recommendation_for_a_day_and_adopts_it(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "root")
    row = ask(client)
    answer(row)
    recommend(row, "srtf")
    vc = VirtualCluster.objects.unscoped().get(name="vision-a")

    page = read(client, f"/policies/advisor/{row.pk}/")
    sent = {"add": "srtf", "hours": "24", "version": vc.version}
    client.post(f"/policies/{vc.pk}/shadows/", sent)
    vc.refresh_from_db()
    (shadow,) = vc.shadows
    past = (timezone.now() - timedelta(minutes=1)).isoformat()
    rows = VirtualCluster.objects.unscoped().filter(pk=vc.pk)
    rows.update(shadows=[{**shadow, "until": past}])
    ended = decide()
    rows.update(shadows=[shadow])

    assert "Shadow for 1 day" in page
    (adopt,) = re.findall(r'href="(/virtual-clusters/\d+/\?policy=srtf)', page)
    form = read(client, adopt)
    assert re.search(r'<option value="srtf"[^>]*selected', form)
    until = datetime.fromisoformat(shadow["until"]) - timezone.now()
    assert timedelta(hours=23) < until <= timedelta(hours=24)
    assert (ended, decide()) == (0, 1)


def test_the_regret_is_on_the_page_of_policies(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")
    row = ask(client)
    answer(row)
    regret = {"best": "srtf", "seconds": 600.0, "share": 0.5}
    WhatIf.objects.unscoped().filter(pk=row.pk).update(result={**row.result, "regret": regret})

    mine = read(client, "/policies/")
    other = read(sign_in(client, "bob"), "/policies/")

    assert "Regret of fifo: 10 min (50" in mine.replace("\N{NO-BREAK SPACE}", " ")
    assert "Regret of" not in other


@pytest.mark.parametrize("nodes", ["1001", "x", "-1001"])
def test_planned_nodes_that_are_not_valid_are_refused(
    client: Client, stage: Stage, nodes: str
) -> None:
    sign_in(client, "alice")
    page = read(client, "/policies/advisor/")
    (field,) = set(re.findall(r'name="(nodes-[^"]+)"', page)) or {""}

    refused = client.post(
        "/policies/advisor/", {"virtual_cluster": "vision-a", "period": "1", field: nodes}
    )

    assert refused.status_code == 422
    assert not WhatIf.objects.unscoped().exists()
