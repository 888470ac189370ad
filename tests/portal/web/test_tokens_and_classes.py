"""Tokens (the key is shown once), priority classes, and the audit page."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone, translation

from portal.web.audit import changes_between, value_words
from scheduling.clusters.models import PriorityClass
from tenants.audit import record
from tenants.models import ApiToken
from tenants.services import authenticate_token
from tests.support.cluster_pages import Stage, make_stage, read, sign_in, words_of

pytestmark = pytest.mark.django_db

KEY = re.compile(r"tsr_[a-z0-9]{8}_[0-9a-f]{64}")


@pytest.fixture
def stage() -> Stage:
    return make_stage()


@pytest.fixture
def alice(client: Client, stage: Stage) -> Client:
    return sign_in(client, "alice")


def new(**changes: object) -> dict[str, object]:
    return {"name": "laptop", "scopes": ["jobs:read"], "expires_in_days": "30", **changes}


def test_a_key_is_shown_once_and_works(alice: Client) -> None:
    html = alice.post("/tokens/", new()).content.decode()
    later = read(alice, "/tokens/")

    (key,) = set(KEY.findall(html))
    assert f"export TESSERA_URL=http://testserver TESSERA_TOKEN={key}" in html
    found = authenticate_token(key, timezone.now())
    assert found is not None
    assert found[0].username == "alice"
    assert not KEY.search(later)
    assert found[1].prefix in later


def test_the_answer_with_a_key_is_kept_nowhere(alice: Client) -> None:
    answer = alice.post("/tokens/", new())

    assert "no-store" in answer.headers["Cache-Control"]


def test_scope_expiry_and_tenant_are_kept(alice: Client, stage: Stage) -> None:
    alice.post("/tokens/", new(scopes=["jobs:read", "jobs:write"], tenant=stage.vision.pk))

    token = ApiToken.objects.get()
    assert token.scopes == ["jobs:read", "jobs:write"]
    assert token.tenant_id == stage.vision.pk
    assert token.expires_at is not None
    assert timedelta(days=29) < token.expires_at - timezone.now() < timedelta(days=31)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scopes": ["nodes:admin"]}, "Select a valid choice"),
        ({"scopes": []}, "This field is required"),
        ({"name": ""}, "This field is required"),
        ({"tenant": "999"}, "Select a valid choice"),
        ({"expires_in_days": "9999999"}, "Select a valid choice"),
    ],
)
def test_what_is_wrong_with_a_token_is_reported(
    alice: Client, changes: dict[str, object], said: str
) -> None:
    answer = alice.post("/tokens/", new(**changes))

    assert answer.status_code == 422
    assert said in answer.content.decode()
    assert not ApiToken.objects.exists()


def test_a_token_is_replaced_and_revoked(alice: Client) -> None:
    first = KEY.findall(alice.post("/tokens/", new()).content.decode())[0]
    old = ApiToken.objects.get()

    html = alice.post(f"/tokens/{old.pk}/rotate/").content.decode()
    second = KEY.findall(html)[0]
    alice.post(f"/tokens/{ApiToken.objects.exclude(pk=old.pk).get().pk}/revoke/")

    now = timezone.now()
    assert first != second
    assert authenticate_token(first, now) is None
    assert authenticate_token(second, now) is None


def test_somebody_elses_token_is_not_found(alice: Client, stage: Stage) -> None:
    alice.post("/tokens/", new())
    token = ApiToken.objects.get()
    other = sign_in(Client(), "bob")

    assert other.post(f"/tokens/{token.pk}/revoke/").status_code == 404
    other.post(f"/tokens/{token.pk}/rotate/")

    token.refresh_from_db()
    assert token.revoked_at is None
    assert ApiToken.objects.count() == 1


def test_priority_classes_are_made_changed_and_deleted(client: Client, stage: Stage) -> None:
    root = sign_in(client, "root")

    root.post("/priority-classes/", {"name": "night", "value": "5", "note": "cheap"})
    night = PriorityClass.objects.get(name="night")
    root.post(
        f"/priority-classes/{night.pk}/", {"name": "night", "value": "7", "is_default": "on"}
    )
    night.refresh_from_db()
    values = (night.value, night.is_default, PriorityClass.objects.filter(is_default=True).count())
    prod = PriorityClass.objects.get(name="prod")
    root.post(f"/priority-classes/{prod.pk}/delete/")
    refused = root.post(f"/priority-classes/{night.pk}/delete/", follow=True)

    assert values == (7, True, 1)
    assert not PriorityClass.objects.filter(name="prod").exists()
    assert "a default is required" in refused.content.decode()


def test_of_two_admins_on_one_class_the_second_gets_an_error(client: Client, stage: Stage) -> None:
    root = sign_in(client, "root")
    prod = PriorityClass.objects.get(name="prod")
    url, seen = f"/priority-classes/{prod.pk}/", {"name": "prod", "version": prod.version}
    assert f'name="version" value="{prod.version}"' in read(root, url)

    root.post(url, {**seen, "value": "101"})
    second = root.post(url, {**seen, "value": "102"}).content.decode()
    gone = root.post(f"{url}delete/", {"version": prod.version}, follow=True).content.decode()

    prod.refresh_from_db()
    assert (prod.value, prod.version) == (101, 2)
    assert "Another person changed this class meanwhile" in second
    assert 'name="version" value="2"' in second
    assert "changed since you loaded it" in gone


def test_a_class_that_is_wrong_is_refused_at_its_field(client: Client, stage: Stage) -> None:
    root = sign_in(client, "root")

    taken = root.post("/priority-classes/", {"name": "prod", "value": "5"})
    high = root.post("/priority-classes/", {"name": "x", "value": "5000"})
    prod = PriorityClass.objects.get(name="prod")
    edited = root.post(f"/priority-classes/{prod.pk}/", {"name": "prod", "value": "5000"})

    assert {taken.status_code, high.status_code, edited.status_code} == {422}
    assert "A priority class named prod already exists." in taken.content.decode()
    assert "less than or equal to 1000" in high.content.decode()
    assert "less than or equal to 1000" in edited.content.decode()


def test_members_read_the_classes_and_change_none(alice: Client) -> None:
    html = read(alice, "/priority-classes/")

    assert "crit" in html
    assert "New class" not in html
    assert alice.post("/priority-classes/", {"name": "x", "value": "1"}).status_code == 403


def test_a_lead_reads_the_audit_of_the_own_tenant_only(client: Client, stage: Stage) -> None:
    record(action="tenant.update", obj=stage.language, tenant=stage.language)
    record(action="node.cordon", obj=stage.nodes[0])

    said = words_of(read(sign_in(client, "lena"), "/audit/"))

    assert "member · add" in said
    assert "language" not in said
    assert "node · cordon" not in said


def test_the_audit_shows_before_and_after_and_its_filters(client: Client, stage: Stage) -> None:
    record(
        action="node.update",
        obj=stage.nodes[0],
        before={"port": 22, "labels": {}},
        after={"port": 2222, "labels": {"rack": "r1"}},
    )
    root = sign_in(client, "root")

    html = read(root, f"/audit/?object_type=node&object_id={stage.nodes[0].pk}")

    said = words_of(html)
    assert "port from 22 → to 2,222" in said or "port from 22 → to 2222" in said
    assert "labels from none → to rack r1" in said
    assert f'href="/nodes/{stage.nodes[0].pk}/"' in html
    assert "No matching entries" in words_of(read(root, "/audit/?actor=nobody"))
    assert "member · add" in words_of(read(root, "/audit/?action=member.&tenant=vision"))
    assert "No matching entries" in words_of(read(root, "/audit/?tenant=not-there"))


def test_the_audit_is_read_page_by_page(client: Client, stage: Stage) -> None:
    for number in range(60):
        record(action="test.one", object_type="thing", object_name=f"thing {number}")
    root = sign_in(client, "root")

    first = read(root, "/audit/?action=test.one")
    (cursor,) = set(re.findall(r"cursor=(\d+)", first))
    second = words_of(read(root, f"/audit/?action=test.one&cursor={cursor}"))

    assert "thing 59" in first
    assert "thing 9 " in second
    assert "thing 59" not in second
    assert read(root, "/audit/?cursor=nonsense", status=400)


def test_values_of_the_audit_are_cut_and_never_guessed() -> None:
    long = value_words("x" * 5000)
    (change,) = changes_between({"a_b": [1, {"c": None}]}, {})

    assert len(long) < 500
    assert (change.name, change.before, change.after) == ("a b", "1; c none", None)
    assert value_words(value=False) == "no"
    assert value_words(0) == "0"
    assert value_words("2026-12-21T22:48:15.619357+00:00") == "2026-12-21 22:48:15 UTC"
    assert value_words("2026-99-21T22:48:15Z") == "2026-99-21T22:48:15Z"


def test_columns_of_the_audit_have_the_words_of_the_catalogue_or_their_own() -> None:
    changed = {"note": 1, "contact": 2, "a_b": 3}  # only the label "Contact" is in the catalogue

    with translation.override("zh-hans"):
        chinese = [change.name for change in changes_between({}, changed)]
    with translation.override("en"):
        english = [change.name for change in changes_between({}, changed)]

    assert chinese == ["备注", "联系", "a b"]
    assert english == ["note", "contact", "a b"]
