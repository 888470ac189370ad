"""Every page is made in Chinese for whoever chose it."""

from typing import Final

import pytest
from django.test import Client

from tenants.models import User
from tests.support.cluster_pages import Stage, make_stage, sign_in

pytestmark = pytest.mark.django_db

PAGES: Final = (
    "/",
    "/?view=table",
    "/jobs/",
    "/jobs/?state=ended&q=nothing",
    "/jobs/{job}/",
    "/jobs/{running}/",
    "/jobs/{running}/logs/",
    "/jobs/{running}/attempts/",
    "/jobs/{running}/events/",
    "/jobs/{running}/receipts/",
    "/jobs/{running}/spec/",
    "/jobs/{running}/calls/",
    "/jobs/{job}/evidence/",
    "/submit/",
    "/job-templates/",
    "/sweeps/",
    "/sweeps/new/",
    "/timeline/",
    "/nodes/",
    "/nodes/new/",
    "/nodes/{node}/",
    "/nodes/{node}/edit/",
    "/virtual-clusters/",
    "/virtual-clusters/new/",
    "/virtual-clusters/reconfigure/",
    "/virtual-clusters/{vc}/",
    "/virtual-clusters/{vc}/idle/",
    "/priority-classes/",
    "/log-rules/",
    "/tenants/",
    "/tenants/new/",
    "/tenants/{tenant}/",
    "/tenants/{tenant}/edit/",
    "/people/",
    "/tokens/",
    "/usage/",
    "/policies/",
    "/policies/what-if/",
    "/estimates/",
    "/audit/",
    "/notifications/",
    "/hooks/",
    "/announcements/",
    "/password/",
)


@pytest.fixture
def stage(client: Client) -> Stage:
    made = make_stage(2)
    sign_in(client, "root")
    User.objects.filter(username="root").update(language="zh-hans")
    return made


def test_every_page_is_made_in_the_language_that_its_reader_chose(
    client: Client, stage: Stage
) -> None:
    numbers = {
        "node": stage.nodes[0].pk,
        "vc": stage.vision_a.pk,
        "tenant": stage.vision.pk,
        "job": stage.waiting.pk,
        "running": stage.running.pk,
    }
    for page in PAGES:
        response = client.get(page.format(**numbers))
        assert response.status_code == 200, page
        text = response.content.decode()
        assert '<html lang="zh-hans"' in text, page
