"""What all pages about the cluster have in common: who may open them, and how they are made."""

import csv
import io
import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from scheduling.clusters.models import PriorityClass, VirtualCluster
from tenants.audit import record
from tenants.models import AuditEntry
from tenants.roles import Role
from tests.factories.cluster import job_document, make_job
from tests.factories.tenants import make_member, make_tenant, make_user
from tests.support.cluster_pages import HOSTILE, Stage, make_stage, read, sign_in

pytestmark = pytest.mark.django_db

FOR_ALL = (
    "/",
    "/cluster/?view=table&colour=state",
    "/nodes/",
    "/nodes/{node}/",
    "/virtual-clusters/",
    "/virtual-clusters/{vc}/",
    "/tenants/",
    "/tenants/{tenant}/",
    "/tokens/",
    "/priority-classes/",
    "/import-rules/",
    "/device-types/",
)
FOR_LEADS = (
    "/audit/",
    "/tenants/{tenant}/members/new/",
    "/tenants/{tenant}/members/{member}/",
    "/tenants/{tenant}/job-limits/",
)
FOR_ADMINS = (
    "/nodes/new/",
    "/nodes/{node}/edit/",
    "/nodes/{node}/drain/",
    "/virtual-clusters/new/",
    "/virtual-clusters/policy/",
    "/tenants/new/",
    "/job-limits/",
    "/tenants/{tenant}/edit/",
    "/priority-classes/{priority}/",
    "/people/",
    "/people/{person}/",
)
EVERYTHING = FOR_ALL + FOR_LEADS + FOR_ADMINS
ROLES = {"victor": FOR_ALL, "alice": FOR_ALL, "lena": FOR_ALL + FOR_LEADS}


@pytest.fixture
def stage() -> Stage:
    return make_stage()


def address(path: str, stage: Stage) -> str:
    member = stage.vision.memberships.get(user__username="alice")
    return path.format(
        node=stage.nodes[0].pk,
        vc=stage.vision_a.pk,
        tenant=stage.vision.pk,
        member=member.pk,
        person=member.user_id,
        priority=PriorityClass.objects.get(name="prod").pk,
    )


def test_nobody_sees_a_page_without_signing_in(client: Client, stage: Stage) -> None:
    answers = {path: client.get(address(path, stage)) for path in EVERYTHING}

    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(
        EVERYTHING, 302
    )
    assert all(a.headers["Location"].startswith("/login/") for a in answers.values())


@pytest.mark.parametrize("username", [*ROLES, "root"])
def test_each_role_opens_its_pages_and_no_others(
    client: Client, stage: Stage, username: str
) -> None:
    may = EVERYTHING if username == "root" else ROLES[username]
    sign_in(client, username)

    answers = {path: client.get(address(path, stage)).status_code for path in EVERYTHING}

    assert answers == {path: 200 if path in may else 403 for path in EVERYTHING}


def test_every_page_is_strict_and_has_one_heading_and_unique_ids(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "root")
    for path in EVERYTHING:
        response = client.get(address(path, stage))
        html = response.content.decode()
        policy = response.headers["Content-Security-Policy"]
        ids = re.findall(r'\sid="([^"]+)"', html)

        assert "script-src 'self'" in policy, path
        assert "unsafe" not in policy, path
        assert " style=" not in html, path
        assert not re.search(r"<script(?![^>]*(src=|application/json))", html), path
        assert not re.search(r"\son\w+=", html), path
        assert "<html" not in html or html.count("<h1") == 1, path
        assert len(ids) == len(set(ids)), path


@pytest.mark.parametrize(
    "path", ["/nodes/999999/", "/virtual-clusters/999999/", "/tenants/999999/", "/audit/nope/"]
)
def test_what_is_not_there_is_not_found(client: Client, stage: Stage, path: str) -> None:
    read(sign_in(client, "root"), path, status=404)


def test_shares_and_tenants_of_others_do_not_exist_for_the_reader(
    client: Client, stage: Stage
) -> None:
    sign_in(client, "alice")

    read(client, f"/virtual-clusters/{stage.language_a.pk}/", status=404)
    read(client, f"/tenants/{stage.language.pk}/", status=404)


def test_no_page_names_a_job_a_person_or_a_tenant_of_others(client: Client, stage: Stage) -> None:
    sign_in(client, "alice")
    for path in (*FOR_ALL, f"/nodes/{stage.nodes[1].pk}/"):
        html = read(client, address(path, stage))

        assert "secret-name" not in html, path
        assert "language-a" not in html, path
        assert ">language" not in html, path
        assert ">bob" not in html, path


def test_hostile_names_are_shown_as_they_were_written(client: Client, stage: Stage) -> None:
    VirtualCluster.objects.unscoped().update(note=HOSTILE)
    stage.vision.display_name = HOSTILE[:80]
    stage.vision.note = HOSTILE
    stage.vision.save()
    node = stage.nodes[0]
    node.labels, node.state, node.held = {"rack": HOSTILE}, "cordoned", "cordoned"
    node.state_reason = node.held_reason = HOSTILE
    node.save()
    record(action="node.cordon", obj=node, tenant=stage.vision, after={HOSTILE: HOSTILE})
    sign_in(client, "lena")

    pages = {path: read(client, address(path, stage)) for path in FOR_ALL + FOR_LEADS}

    assert not [path for path, html in pages.items() if "<img" in html]
    assert "&lt;img src=x" in pages["/nodes/{node}/"]
    assert "&lt;img src=x" in pages["/tenants/{tenant}/"]
    assert "&lt;img src=x" in pages["/audit/"]
    assert "{{ x }}" in pages["/virtual-clusters/{vc}/"]


@pytest.mark.parametrize("path", ["/", "/nodes/", "/virtual-clusters/", "/tenants/", "/audit/"])
def test_a_page_asks_as_often_whatever_its_length(client: Client, path: str) -> None:
    stage = make_stage(2)
    sign_in(client, "root")
    client.get(path)
    with CaptureQueriesContext(connection) as few:
        client.get(path)

    for number in range(6):
        tenant = make_tenant(f"more{number}", **{f"p{number}": Role.MEMBER})
        make_member(tenant, make_user())
        VirtualCluster.objects.create(
            name=f"more{number}", tenant=tenant, created_at=stage.vision_a.created_at
        )
        make_job("alice", job_document())
    with CaptureQueriesContext(connection) as many:
        client.get(path)

    assert len(many) == len(few)
    assert len(many) <= 40


def test_the_audit_is_limited_to_days_of_the_reader(client: Client, stage: Stage) -> None:
    record(action="node.drain", object_type="node", object_id=1, object_name="demo-of-today")
    sign_in(client, "root")
    today = f"{timezone.now():%Y-%m-%d}"

    assert "demo-of-today" in read(client, f"/audit/?since={today}&until={today}")
    assert "demo-of-today" in read(client, f"/audit/?since={today}")
    assert "demo-of-today" not in read(client, "/audit/?until=2020-01-01")
    for wrong in ("31.12.2025", "2025-02-30", "<b>", "9999-12-31"):
        assert client.get(f"/audit/?until={wrong}").status_code == 400, wrong


def test_the_audit_as_csv_has_the_filtered_rows_of_visible_tenants_without_formulas(
    client: Client, stage: Stage
) -> None:
    for number in range(230):
        record(action="node.drain", object_type="node", object_id=number, object_name=f"n{number}")
    record(
        action="member.add", object_type="member", object_id=1, object_name="=1+1",
        tenant=stage.vision.pk, message="@sum", after={"role": "lead"},
    )  # fmt: skip
    path = "/audit/export.csv"
    assert f'href="{path}?action=node.drain"' in read(
        sign_in(client, "root"), "/audit/?action=node.drain"
    )

    rows = list(csv.DictReader(io.StringIO(read(client, f"{path}?action=node.drain"))))
    own = list(csv.DictReader(io.StringIO(read(sign_in(Client(), "lena"), path))))

    assert [row["object_name"] for row in rows] == [f"n{number}" for number in range(229, -1, -1)]
    assert {row["tenant"] for row in own} == {"vision"}
    added = next(row for row in own if row["action"] == "member.add" and row["message"])
    assert (added["object_name"], added["message"]) == ("'=1+1", "'@sum")
    assert added["after"] == '{"role":"lead"}'
    assert sign_in(Client(), "alice").get(path).status_code == 403
    assert AuditEntry.objects.unscoped().filter(action="audit.export").count() == 2
