"""Every page is made in Chinese for whoever chose it, and no English words are left on it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from django.conf import settings
from django.core.management import call_command
from django.test import Client
from django.utils import timezone, translation

from portal.i18n import translated
from portal.web.policy_fields import policy_names
from scheduling.clusters.models import Node, PriorityClass, VirtualCluster
from scheduling.core.policies import COMBINATORS, POLICIES, parameters_of
from scheduling.jobs.models import Job
from scheduling.watching.models import LogRule
from tenants.models import Tenant, User
from tests.support.cluster_pages import Stage, make_stage, sign_in, store_a_round
from tests.support.latin import PROPER, SPELLED, english_in

pytestmark = pytest.mark.django_db

PAGES: Final = (
    "/",
    "/cluster/?view=table",
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
    tenants = (stage.vision, stage.language, stage.vision_a, stage.language_a)
    jobs = (stage.running, stage.foreign, stage.waiting)
    named: tuple[Node | Tenant | VirtualCluster | Job, ...] = (*stage.nodes, *tenants, *jobs)
    yield from (row.name for row in named)
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


RENAMED: Final = {"vision": "prune", "language": "rotate", "vision-a": "binding"}
"""Names that are words of ours as well: nobody may translate them."""


@pytest.fixture
def stage(client: Client) -> Stage:
    made = make_stage(2)
    for row in (made.vision, made.language, made.vision_a):
        row.name = RENAMED[row.name]
        row.save(update_fields=["name"])
    Job.objects.unscoped().filter(pk=made.running.pk).update(name="issue")
    for job in (made.running, made.waiting):
        job.refresh_from_db()
    sign_in(client, "root")
    User.objects.filter(username="root").update(language="zh-hans")
    return made


def test_answers_failures_and_the_traces_they_leave_speak_no_english(
    client: Client, stage: Stage
) -> None:
    vc, failed = stage.vision_a, stage.foreign
    shadow = {"add": "srtf", "version": vc.version}
    asked = {"virtual_cluster": vc.name, "policy": "srtf", "period": "1"}
    store_a_round(Path(settings.TESSERA.data_dir))
    client.post(f"/policies/{vc.pk}/shadows/", shadow)
    answer = client.post("/policies/what-if/", asked).headers["Location"]
    call_command("answer_what_ifs", verbosity=0)
    Job.objects.unscoped().filter(pk=failed.pk).update(
        state="failed", failure_class="user", exit_code=1, finished_at=timezone.now()
    )

    pages = (answer, f"/jobs/{failed.pk}/", "/jobs/?state=failed", "/audit/", "/policies/")
    texts = {page: client.get(page).content.decode() for page in pages}

    names = frozenset(names_in_use(stage))
    assert {page: left for page, text in texts.items() if (left := english_in(text, names))} == {}
    assert "作业失败，原因：作业自身的错误。" in texts[f"/jobs/{failed.pk}/"]


def test_a_size_that_never_fits_is_no_token_that_was_never_used(
    client: Client, stage: Stage
) -> None:
    room = client.get(f"/virtual-clusters/{stage.vision_a.pk}/room/").content.decode()
    people = client.get("/people/").content.decode()

    assert "永不" in room
    assert "从未" not in room
    assert "从未" in people


@pytest.mark.parametrize(
    ("address", "sent"),
    [
        ("/nodes/{node}/cordon/", {"reason": "fan"}),
        ("/nodes/{node}/drain/", {"reason": "fan"}),
        ("/nodes/{node}/declare-dead/", {"reason": "fan"}),
        ("/people/{person}/keep-out/", {}),
        ("/people/{person}/make-admin/", {}),
        ("/tenants/{tenant}/members/new/", {"username": "bob", "role": "lead"}),
        ("/policies/{vc}/shadows/", {"add": "srtf"}),
        ("/jobs/{job}/stop/", {}),
    ],
)
def test_what_an_act_has_done_is_shown_in_the_language_of_the_page(
    client: Client, stage: Stage, address: str, sent: dict[str, str]
) -> None:
    numbers = {
        "node": stage.nodes[0].pk,
        "vc": stage.vision_a.pk,
        "tenant": stage.vision.pk,
        "job": stage.waiting.pk,
        "person": User.objects.get(username="alice").pk,
    }
    version = {"version": stage.vision_a.version} if "shadows" in address else {}

    page = client.post(address.format(**numbers), {**sent, **version}, follow=True)

    toasts = re.findall(r'<div class="toast.*?</div>', page.content.decode(), re.DOTALL)
    assert toasts, address
    assert english_in(toasts[0], frozenset(names_in_use(stage))) == []


def test_every_language_has_its_dates_on_charts() -> None:
    design = json.loads((settings.BASE_DIR / "static" / "plotly.json").read_text("utf-8"))

    assert set(design["timeaxis"]) == {code.split("-")[0] for code, _ in settings.LANGUAGES}


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
        chinese = [str(translated(name)) for name in (*RENAMED.values(), "issue")]
    assert not names.intersection(chinese)
    left: dict[str, list[str]] = {}
    for page in PAGES:
        response = client.get(page.format(**numbers))
        assert response.status_code == 200, page
        text = response.content.decode()
        assert '<html lang="zh-hans"' in text, page
        if english := english_in(text, names):
            left[page] = english
        if said_anew := [word for word in chinese if word in text]:
            left[page] = said_anew

    assert left == {}
