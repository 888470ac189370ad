"""Every page is made in Chinese for whoever chose it, and no English words are left on it."""

from collections.abc import Iterator
from typing import Final

import pytest
from django.test import Client
from django.utils import translation

from portal.i18n import said
from portal.web.policy_fields import policy_names
from scheduling.core.policies import COMBINATORS, POLICIES, parameters_of
from scheduling.models import Job, LogRule, PriorityClass
from tenants.models import User
from tests.support.cluster_pages import Stage, make_stage, sign_in
from tests.support.latin import PROPER, SPELLED, english_in

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


def names_in_use(stage: Stage) -> Iterator[str]:
    """What people have named, what the policies are called, and what is spelled the same."""
    named = (*stage.nodes, stage.vision, stage.language, stage.vision_a, stage.language_a)
    yield from (row.name for row in (*named, stage.running, stage.foreign, stage.waiting))
    yield from User.objects.values_list("username", flat=True)
    yield from PriorityClass.objects.values_list("name", flat=True)
    for rule in LogRule.objects.all():
        yield from (rule.name, rule.pattern)
    yield from policy_names()
    yield from COMBINATORS
    for factory in (*POLICIES.values(), *COMBINATORS.values()):
        for item in parameters_of(factory):
            yield from (item.name.replace("_", " ").capitalize(), *item.choices)
    yield from (*RENAMED, *PROPER, *SPELLED)


RENAMED: Final = {"vision": "prune", "language": "timezone", "vision-a": "binding"}
"""Names that are words of ours as well: nobody may translate them."""


@pytest.fixture
def stage(client: Client) -> Stage:
    made = make_stage(2)
    for row in (made.vision, made.language, made.vision_a):
        row.name = RENAMED[row.name]
        row.save(update_fields=["name"])
    Job.objects.unscoped().filter(pk=made.running.pk).update(name="issue")
    for row in (made.running, made.waiting):
        row.refresh_from_db()
    sign_in(client, "root")
    User.objects.filter(username="root").update(language="zh-hans")
    return made


def test_every_page_speaks_the_chosen_language_and_no_english(
    client: Client, stage: Stage
) -> None:
    numbers = {
        "node": stage.nodes[0].pk,
        "vc": stage.vision_a.pk,
        "tenant": stage.vision.pk,
        "job": stage.waiting.pk,
        "running": stage.running.pk,
    }
    names = frozenset(names_in_use(stage))
    with translation.override("zh-hans"):
        translated = [str(said(name)) for name in (*RENAMED.values(), "issue")]
    assert not names.intersection(translated)
    left: dict[str, list[str]] = {}
    for page in PAGES:
        response = client.get(page.format(**numbers))
        assert response.status_code == 200, page
        text = response.content.decode()
        assert '<html lang="zh-hans"' in text, page
        if english := english_in(text, names):
            left[page] = english
        if said_anew := [word for word in translated if word in text]:
            left[page] = said_anew

    assert left == {}
