"""Tenants, members, people and passwords: who may change what, and what is recorded."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from scheduling.clusters.models import Device, VcLimit
from tenants.models import ApiToken, AuditEntry, Membership, PasswordLink, Tenant, User
from tenants.roles import Role
from tests.factories.running import ran
from tests.factories.tenants import PASSWORD, make_tenant, make_token, make_user
from tests.support.cluster_pages import Stage, make_stage, read, sign_in, words_of

pytestmark = pytest.mark.django_db

NEW_PASSWORD = "another long sentence"


@pytest.fixture
def stage() -> Stage:
    return make_stage()


@pytest.fixture
def lena(client: Client, stage: Stage) -> Client:
    return sign_in(client, "lena")


@pytest.fixture
def root(client: Client, stage: Stage) -> Client:
    return sign_in(client, "root")


def member_of(stage: Stage, username: str) -> Membership:
    return stage.vision.memberships.get(user__username=username)


def home(stage: Stage, end: str = "") -> str:
    return f"/tenants/{stage.vision.pk}/{end}"


def edit(member: Membership, **changes: object) -> dict[str, object]:
    return {"version": member.version, "role": member.role, "max_devices": "", **changes}


def test_the_list_is_of_ones_own_tenants_with_what_they_hold(lena: Client, stage: Stage) -> None:
    said = words_of(read(lena, "/tenants/"))

    assert "vision you are a lead Leads lena members 3 vision-a 8 devices guaranteed" in said
    assert "language" not in said


def test_hours_count_gpus_and_slots_apart(lena: Client, stage: Stage) -> None:
    hour_ago = timezone.now() - timedelta(hours=1)
    ran(stage.running, hour_ago)
    Device.objects.filter(node=stage.nodes[0], index=0).update(is_gpu=True)

    said = words_of(read(lena, home(stage)))

    assert "GPU-hours so far 1.0" in said
    assert "Slot-hours so far 1.0" in said
    assert "Devices held 2 of 8 guaranteed" in said
    assert "alice member all virtual clusters no limit devices held 2 GPU-hours 1.0" in said


def test_a_member_sees_the_members_and_no_buttons(client: Client, stage: Stage) -> None:
    html = read(sign_in(client, "victor"), home(stage))

    assert "alice" in html
    assert "Add member" not in html
    assert "/members/" not in html


def test_a_lead_ends_a_token_of_a_member_on_the_page(client: Client, stage: Stage) -> None:
    alice = User.objects.get(username="alice")
    bound, free = make_token(alice, tenant=stage.vision), make_token(alice)
    address = home(stage, f"tokens/{bound.token.pk}/revoke/")

    as_member = read(sign_in(client, "alice"), home(stage))
    refused = client.post(address).status_code
    page = read(sign_in(client, "lena"), home(stage))
    other = client.post(home(stage, f"tokens/{free.token.pk}/revoke/")).status_code
    client.post(address)

    assert bound.token.prefix not in as_member
    assert f"tsr_{bound.token.prefix}_…" in page
    assert free.token.prefix not in page
    assert bound.key not in page
    assert (refused, other) == (404, 404)
    assert ApiToken.objects.get(pk=bound.token.pk).revoked_at is not None
    assert ApiToken.objects.get(pk=free.token.pk).revoked_at is None
    assert bound.token.prefix not in read(client, home(stage))


def test_a_lead_adds_a_member(lena: Client, stage: Stage) -> None:
    make_user("carol")

    lena.post(home(stage, "members/new/"), {"username": "CAROL", "role": "member"})

    assert member_of(stage, "carol").role == "member"
    assert AuditEntry.objects.unscoped().filter(action="member.add", actor_name="lena").exists()


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"username": "nobody", "role": "member"}, "No active user has this name"),
        ({"username": "alice", "role": "member"}, "is already a member of vision"),
        ({"username": "alice", "role": "king"}, "Select a valid choice"),
        ({"username": "alice", "role": "member", "max_devices": "0"}, "greater than or equal"),
    ],
)
def test_what_is_wrong_with_a_new_member_is_reported(
    lena: Client, stage: Stage, sent: dict[str, str], said: str
) -> None:
    answer = lena.post(home(stage, "members/new/"), sent)

    assert answer.status_code == 422
    assert said in answer.content.decode()
    assert stage.vision.memberships.count() == 3


def test_role_cap_and_virtual_clusters_change_together(lena: Client, stage: Stage) -> None:
    alice = member_of(stage, "alice")

    lena.post(
        home(stage, f"members/{alice.pk}/"),
        edit(alice, role="lead", max_devices="6", virtual_clusters=["vision-a"]),
    )

    alice.refresh_from_db()
    assert (alice.role, alice.max_devices) == ("lead", 6)
    assert VcLimit.objects.get(membership=alice).virtual_cluster == stage.vision_a
    assert "alice lead vision-a device limit 6" in words_of(read(lena, home(stage)))


def test_of_two_leads_the_second_gets_an_error_and_nothing_is_half_done(
    lena: Client, stage: Stage
) -> None:
    alice = member_of(stage, "alice")
    late = edit(alice, role="viewer", virtual_clusters=["vision-a"])
    lena.post(home(stage, f"members/{alice.pk}/"), edit(alice, max_devices="5"))

    html = lena.post(home(stage, f"members/{alice.pk}/"), late).content.decode()

    alice.refresh_from_db()
    assert "Another person changed this member meanwhile" in html
    assert (alice.role, alice.max_devices) == ("member", 5)
    assert not VcLimit.objects.filter(membership=alice).exists()


def test_the_last_lead_stays(lena: Client, stage: Stage) -> None:
    me = member_of(stage, "lena")

    demoted = lena.post(home(stage, f"members/{me.pk}/"), edit(me, role="member"))
    removed = lena.post(home(stage, f"members/{me.pk}/remove/"), follow=True)

    me.refresh_from_db()
    assert me.role == "lead"
    assert "is the last lead of vision" in demoted.content.decode()
    assert "is the last lead of vision" in removed.content.decode()


def test_a_member_may_leave(client: Client, stage: Stage) -> None:
    me = member_of(stage, "victor")

    answer = sign_in(client, "victor").post(home(stage, f"members/{me.pk}/remove/"))

    assert answer.headers["Location"] == "/tenants/"
    assert not Membership.objects.unscoped().filter(pk=me.pk).exists()


def test_a_member_removes_nobody_else(client: Client, stage: Stage) -> None:
    other = member_of(stage, "victor")

    sign_in(client, "alice").post(home(stage, f"members/{other.pk}/remove/"))

    assert Membership.objects.unscoped().filter(pk=other.pk).exists()


def test_a_member_of_another_tenant_is_not_found(lena: Client, stage: Stage) -> None:
    bob = stage.language.memberships.get()

    assert lena.get(home(stage, f"members/{bob.pk}/")).status_code == 404
    assert lena.post(home(stage, f"members/{bob.pk}/remove/")).status_code in {302, 404}
    assert Membership.objects.unscoped().filter(pk=bob.pk).exists()


def test_an_admin_makes_edits_and_archives_a_tenant(root: Client) -> None:
    root.post("/tenants/new/", {"name": "speech", "display_name": "Speech group"})
    tenant = Tenant.objects.unscoped().get(name="speech")
    root.post(f"/tenants/{tenant.pk}/edit/", {"version": 1, "display_name": "Speech", "note": "n"})
    root.post(f"/tenants/{tenant.pk}/archive/")
    tenant.refresh_from_db()
    archived = tenant.is_archived
    root.post(f"/tenants/{tenant.pk}/archive/")
    tenant.refresh_from_db()

    assert (tenant.display_name, tenant.note) == ("Speech", "n")
    assert archived
    assert not tenant.is_archived


def test_a_stale_edit_of_a_tenant_writes_nothing(root: Client, stage: Stage) -> None:
    root.post(home(stage, "edit/"), {"version": 1, "display_name": "Early", "note": ""})

    html = root.post(
        home(stage, "edit/"), {"version": 1, "display_name": "Late", "note": ""}
    ).content.decode()

    stage.vision.refresh_from_db()
    assert stage.vision.display_name == "Early"
    assert "Another person changed this tenant meanwhile" in html


def test_a_tenants_name_is_checked(root: Client) -> None:
    answer = root.post("/tenants/new/", {"name": "Bad Name!"})

    assert answer.status_code == 422
    assert "aria-invalid" in answer.content.decode()
    assert Tenant.objects.unscoped().count() == 2


def test_edits_with_faults_are_answered_by_422(root: Client, stage: Stage) -> None:
    alice = member_of(stage, "alice")

    answers = [
        root.post(home(stage, "edit/"), {"version": "1", "gpu_hours_per_month": "-1"}),
        root.post(home(stage, f"members/{alice.pk}/"), edit(alice, role="king")),
        root.post("/people/", {"username": "carol", "password": "tiny-pw"}),
    ]

    assert [answer.status_code for answer in answers] == [422, 422, 422]
    assert all("aria-invalid" in answer.content.decode() for answer in answers)
    assert root.get(home(stage, "edit/")).status_code == 200


def test_leads_make_no_tenants_and_no_people(lena: Client, stage: Stage) -> None:
    posts = [
        lena.post("/tenants/new/", {"name": "x"}).status_code,
        lena.post("/people/", {"username": "x", "password": NEW_PASSWORD}).status_code,
        lena.post(f"/people/{User.objects.get(username='lena').pk}/make-admin/").status_code,
    ]

    assert posts == [403, 403, 403]
    assert not User.objects.filter(username="x").exists()


def test_an_admin_makes_a_person_who_can_sign_in(root: Client, client: Client) -> None:
    root.post("/people/", {"username": "carol", "password": NEW_PASSWORD})

    assert Client().login(username="carol", password=NEW_PASSWORD)


def test_the_page_of_a_new_person_leads_to_the_tenants(root: Client, stage: Stage) -> None:
    made = root.post("/people/", {"username": "carol", "password": NEW_PASSWORD})
    before = read(root, made.headers["Location"])
    add = f"/tenants/{stage.vision.pk}/members/new/"

    assert f'href="{add}?user=carol"' in before
    assert 'value="carol"' in read(root, f"{add}?user=carol")
    root.post(add, {"username": "carol", "role": "member"})
    after = read(root, made.headers["Location"])
    assert f'href="{add}?user=carol"' not in after
    assert f'<a href="/tenants/{stage.vision.pk}/">vision</a>' in after


def test_an_admin_goes_from_a_tenant_without_a_virtual_cluster_to_its_first(
    client: Client, stage: Stage
) -> None:
    tenant = make_tenant("robots")
    Membership.objects.create(tenant=tenant, user=make_user("rosa"), role=Role.LEAD)
    new = "/virtual-clusters/new/?tenant=robots"

    assert new not in read(sign_in(client, "rosa"), f"/tenants/{tenant.pk}/")
    assert new in read(sign_in(client, "root"), f"/tenants/{tenant.pk}/")
    assert '<option value="robots" selected>' in read(client, new)


def test_only_who_may_make_people_is_led_there(client: Client, stage: Stage) -> None:
    add = f"/tenants/{stage.vision.pk}/members/new/"

    assert 'href="/people/">Create the user first' in read(sign_in(client, "root"), add)
    assert "Create the user first" not in read(sign_in(client, "lena"), add)


def test_a_weak_password_is_refused_and_never_repeated(root: Client) -> None:
    answer = root.post("/people/", {"username": "carol", "password": "tiny-pw"})

    html = answer.content.decode()
    assert answer.status_code == 422
    assert "aria-invalid" in html
    assert "tiny-pw" not in html
    assert not User.objects.filter(username="carol").exists()


def test_an_admin_creates_a_password_link_and_keeps_somebody_out(
    root: Client, stage: Stage
) -> None:
    alice = User.objects.get(username="alice")

    shown = root.post(f"/people/{alice.pk}/password-link/").content.decode()
    again = root.get(f"/people/{alice.pk}/").content.decode()
    link = re.search(r"http://testserver(/password/link/[^<]+/)<", shown)
    assert link
    assert "/password/link/" not in again
    Client().post(link[1], {"password": NEW_PASSWORD, "repeated": NEW_PASSWORD})
    root.post(f"/people/{alice.pk}/keep-out/")

    alice.refresh_from_db()
    assert alice.check_password(NEW_PASSWORD)
    assert not alice.is_active
    root.post(f"/people/{alice.pk}/password-link/")
    assert not PasswordLink.objects.exists()
    assert root.post(f"/people/{alice.pk}/explode/").status_code == 404


def test_a_person_without_a_password_is_led_to_a_link(root: Client) -> None:
    made = root.post("/people/", {"username": "carol", "password": ""}, follow=True)

    assert "Create a password link now" in made.content.decode()
    assert "Create password link" in made.content.decode()
    assert not User.objects.get(username="carol").has_usable_password()


@pytest.mark.parametrize(("viewer", "other"), [("lena", "alice"), ("root", "root")])
def test_only_admins_create_password_links_and_for_others_only(
    client: Client, stage: Stage, viewer: str, other: str
) -> None:
    person = User.objects.get(username=other)

    sign_in(client, viewer).post(f"/people/{person.pk}/password-link/")

    assert not PasswordLink.objects.exists()


def test_the_last_cluster_admin_stays(root: Client) -> None:
    me = User.objects.get(username="root")

    root.post(f"/people/{me.pk}/unmake-admin/")
    root.post(f"/people/{me.pk}/keep-out/")

    me.refresh_from_db()
    assert me.is_cluster_admin
    assert me.is_active


def test_ones_own_password_is_changed_by_the_service_and_the_session_goes_on(
    lena: Client,
) -> None:
    answer = lena.post(
        "/password/",
        {
            "old_password": PASSWORD,
            "new_password1": NEW_PASSWORD,
            "new_password2": NEW_PASSWORD,
        },
    )

    entry = AuditEntry.objects.unscoped().get(action="user.set_password")
    assert answer.headers["Location"] == "/password/changed/"
    assert entry.actor_name == "lena"
    assert NEW_PASSWORD not in str(entry.after)
    assert lena.get("/tenants/").status_code == 200
    assert User.objects.get(username="lena").check_password(NEW_PASSWORD)


def test_a_wrong_old_password_changes_nothing(lena: Client) -> None:
    html = lena.post(
        "/password/",
        {
            "old_password": "not it at all",
            "new_password1": NEW_PASSWORD,
            "new_password2": NEW_PASSWORD,
        },
    ).content.decode()

    assert "incorrect" in html
    assert User.objects.get(username="lena").check_password(PASSWORD)
    assert not AuditEntry.objects.unscoped().filter(action="user.set_password").exists()
