"""Notifications: receivers and their rights, one delivery each, retries, replays."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from django.db import transaction

from scheduling.clusters.models import Device, Node
from scheduling.clusters.services import node_contact
from scheduling.core.notices import NoticeEvent, event_of, mail_text, next_try, subject_of
from scheduling.enums import NodeState
from scheduling.jobs.models import Job, JobEvent
from scheduling.jobs.validation import InvalidJobError
from scheduling.notices.models import Delivery, DeliveryState, Notice, Webhook
from scheduling.notices.queries import deliveries_for
from scheduling.notices.services import deliveries, outbox, quotas, webhooks
from scheduling.notices.services.deliveries import Outcome
from scheduling.notices.services.webhooks import set_mail_events
from scheduling.runs.services.stopping import preempt_job
from tenants.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from tenants.models import AuditEntry, Membership, Tenant, User
from tenants.roles import Role, Scope
from tests.factories.cluster import NOW
from tests.factories.running import ran
from tests.factories.scheduling import end, make_two_tenants, start, submit
from tests.factories.tenants import make_member, make_tenant, make_viewer
from tests.support.interleaving import before_query

pytestmark = pytest.mark.django_db

EVENTS = ["job.running", "job.failed", "job.preempted", "job.stopped", "quota.guarantee"]


@pytest.fixture(autouse=True)
def people(db: None) -> None:
    make_two_tenants()
    for user in User.objects.all():
        User.objects.filter(pk=user.pk).update(email=f"{user.username}@example.org")


def make_hook(who: str = "ada", tenant: str | None = "vision", events: list[str] = EVENTS):
    viewer = make_viewer(who)
    names = {name: pk for pk, name in viewer.tenant_names.items()}
    return webhooks.create_hook(
        viewer=viewer,
        name="chat",
        url="https://hooks.example.org/x?key=private",
        events=events,
        tenant_id=names[tenant] if tenant else None,
        now=NOW,
    )


def tell(*, sends_mail: bool = True, now: datetime = NOW) -> int:
    return outbox.create_deliveries(
        now=now, sends_mail=sends_mail, base_url="https://tessera.example.org"
    )


def mailed() -> list[tuple[str, str]]:
    rows = Delivery.objects.filter(user__isnull=False).order_by("user__username", "id")
    return list(rows.values_list("user__username", "event"))


def fail(job: Job) -> None:
    start(job)
    end(job, 3)


def test_a_failed_job_notifies_its_owner_and_the_tenants_webhook_once():
    hook = make_hook().hook
    everywhere = make_hook("root", None).hook
    job = submit(name="train", worker={"secrets": {"TOKEN": "s3cret"}})
    fail(job)

    assert tell() == 2
    assert tell() == 0

    told = Delivery.objects.filter(hook__isnull=False).values_list("hook_id", "event")
    assert set(told) == {
        (hook.pk, "job.running"),
        (hook.pk, "job.failed"),
        (everywhere.pk, "job.running"),
        (everywhere.pk, "job.failed"),
    }
    assert mailed() == [("alice", "job.failed")]
    body = Delivery.objects.get(user__isnull=False).body
    assert body["version"] == 1
    assert body["job"]["failure_class"] == "user"
    assert body["url"] == f"https://tessera.example.org/jobs/{job.pk}/"
    assert "s3cret" not in str(body)


def test_an_event_that_was_rolled_back_notifies_nobody():
    make_hook()
    job = submit()
    start(job)
    tell()
    saved = transaction.savepoint()
    end(job, 3)
    assert JobEvent.objects.filter(untold=True).exists()
    transaction.savepoint_rollback(saved)

    assert tell() == 0


def test_webhooks_of_other_tenants_and_disabled_webhooks_get_nothing():
    made = make_hook()
    fail(submit("bob"))
    tell()
    assert not Delivery.objects.filter(hook__isnull=False).exists()

    webhooks.update_hook(viewer=make_viewer("ada"), hook_id=made.hook.pk, enabled=False)
    fail(submit())
    tell()
    assert not Delivery.objects.filter(hook__isnull=False).exists()


def test_telling_twice_at_a_time_makes_each_delivery_once():
    make_hook()
    job = submit()
    fail(job)
    tell()
    JobEvent.objects.filter(job=job, kind="fail").update(untold=True)

    tell()

    assert Delivery.objects.filter(event="job.failed").count() == 2


def test_users_get_the_events_that_they_or_their_jobs_select():
    set_mail_events(viewer=make_viewer("alice"), events=["job.running"])
    fail(submit())
    tell()
    assert mailed() == [("alice", "job.running")]

    fail(submit(notify={"on": ["failed"], "to": ["ada"]}))
    tell()
    assert mailed() == [("ada", "job.failed"), ("alice", "job.running"), ("alice", "job.failed")]


def test_a_former_tenant_member_gets_no_notifications_of_its_jobs():
    fail(submit(notify={"to": ["ada"]}))
    Membership.objects.unscoped().filter(user__username__in=["alice", "ada"]).delete()

    tell()

    assert mailed() == []


def test_mail_about_a_job_goes_to_members_of_its_tenant_only():
    with pytest.raises(InvalidJobError) as refused:
        submit(notify={"to": ["bob", "ada"]})

    (fault,) = refused.value.errors
    assert (fault.field, fault.value) == ("notify.to", "bob")


def test_preemptions_name_nobody_elses_job():
    make_hook()
    job = submit()
    start(job)
    preempt_job(job_id=job.pk, for_job=4242, rule="priority of bob's job", now=NOW)

    tell()

    body = Delivery.objects.get(event="job.preempted").body
    assert "4242" not in str(body)
    assert "bob" not in str(body)


def test_node_health_notifies_admins_and_the_clusters_webhooks():
    make_hook("root", None, ["node.down", "node.ready"])
    node = Node.objects.all()[0]
    node_contact.contact_lost(node_id=node.pk, reason="10.0.0.7 is silent", now=NOW, down=True)
    node_contact.contact_lost(node_id=node.pk, reason="10.0.0.7 is silent", now=NOW, down=True)
    node_contact.contact_back(node_id=node.pk, boot_id="", now=NOW)

    tell()

    assert Node.objects.get(pk=node.pk).state == NodeState.READY
    heard = Delivery.objects.filter(hook__isnull=False).order_by("id")
    assert [row.event for row in heard] == ["node.down", "node.ready"]
    assert "10.0.0.7" not in str([row.body for row in heard])
    assert mailed() == [("root", "node.down")]


def test_without_a_mail_server_no_mail_waits():
    fail(submit())

    tell(sends_mail=False)

    assert not Delivery.objects.exists()


def make_delivery() -> Delivery:
    make_hook()
    fail(submit())
    tell(sends_mail=False)
    return Delivery.objects.get(event="job.failed")


def test_a_delivery_is_in_one_hand_and_tried_again_later_each_time():
    row = make_delivery()
    at = NOW
    waits = []
    for _ in range(9):
        parcel = deliveries.claim(delivery_id=row.pk, now=at)
        assert parcel is not None
        assert deliveries.claim(delivery_id=row.pk, now=at) is None
        deliveries.settle(delivery_id=row.pk, outcome=Outcome(error="refused"), now=at)
        row.refresh_from_db()
        waits.append((row.next_at - at).total_seconds())
        at = row.next_at

    assert waits[:4] == [10, 30, 120, 600]
    assert row.state == DeliveryState.DEAD
    assert [one["error"] for one in row.log] == ["refused"] * 9
    assert deliveries.due(now=at + timedelta(days=1), limit=10) == [
        Delivery.objects.get(event="job.running").pk
    ]


def test_a_claim_of_a_worker_that_died_is_free_again():
    row = make_delivery()
    deliveries.claim(delivery_id=row.pk, now=NOW)

    assert deliveries.claim(delivery_id=row.pk, now=NOW + timedelta(minutes=1)) is None
    assert deliveries.claim(delivery_id=row.pk, now=NOW + timedelta(minutes=3)) is not None


def test_a_replay_is_a_delivery_of_its_own_about_the_same_event():
    row = make_delivery()
    viewer = make_viewer("ada")
    with pytest.raises(ConflictError):
        deliveries.replay(viewer=viewer, delivery_id=row.pk, now=NOW)
    deliveries.settle(delivery_id=row.pk, outcome=Outcome(status=200), now=NOW)

    made = deliveries.replay(viewer=viewer, delivery_id=row.pk, now=NOW)

    assert (made.event_uid, made.body) == (row.event_uid, row.body)
    assert made.uid != row.uid
    assert deliveries.claim(delivery_id=made.pk, now=NOW) is not None
    for stranger in ("alice", "bob", "carol"):
        with pytest.raises(NotFoundError):
            deliveries.replay(viewer=make_viewer(stranger), delivery_id=row.pk, now=NOW)


def test_the_secret_signs_and_is_in_no_row_audit_or_text():
    made = make_hook()
    row = Webhook.objects.unscoped().get()
    fail(submit())
    tell(sends_mail=False)
    parcel = deliveries.claim(delivery_id=Delivery.objects.latest("id").pk, now=NOW)

    assert parcel is not None
    assert parcel.secret == made.secret
    assert made.secret.encode() not in bytes(row.sealed_secret)
    audit = str(list(AuditEntry.objects.unscoped().values("before", "after", "object_name")))
    assert made.secret not in audit
    assert "private" not in audit
    assert made.secret not in repr(made) + repr(parcel)
    again = webhooks.rotate_secret(viewer=make_viewer("ada"), hook_id=row.pk)
    assert again.secret != made.secret


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "ftp://example.org/"},
        {"url": "https://user:pw@example.org/"},
        {"url": "https:///x"},
        {"url": "https://exa mple.org/"},
        {"url": "https://example.org/" + "x" * 500},
        {"url": "https://example.org:99999/"},
        {"url": "https://ex\u00e4mple.org/"},
        {"url": "https://127.0.0.1/"},
        {"url": "https://192.168.1.1:8443/x"},
        {"url": "http://hooks.example.org/"},
        {"events": []},
        {"events": ["node.down"]},
        {"events": ["ping"]},
        {"name": ""},
    ],
)
def test_the_faults_of_a_webhook_are_named(changes):
    right = {"name": "chat", "url": "https://example.org/", "events": ["job.failed"]}
    viewer = make_viewer("ada")
    (tenant,) = viewer.roles

    with pytest.raises(InvalidError) as refused:
        webhooks.create_hook(viewer=viewer, tenant_id=tenant, now=NOW, **(right | changes))

    assert {fault.field for fault in refused.value.errors} == set(changes)


def test_use_of_guarantees_notifies_at_80_and_100_percent_once():
    start(submit(devices=4))
    quotas.look_at_quotas(now=NOW)
    assert not Notice.objects.unscoped().exists()

    start(submit(devices=4))
    quotas.look_at_quotas(now=NOW)
    quotas.look_at_quotas(now=NOW)

    (notice,) = Notice.objects.unscoped()
    assert notice.facts["quota"]["percent"] == 100
    assert notice.facts["quota"]["virtual_cluster"] == "vision-a"
    tell()
    assert ("ada", "quota.guarantee") in mailed()


def test_of_two_concurrent_checks_of_a_quota_one_notifies():
    start(submit(devices=4))
    quotas.look_at_quotas(now=NOW)
    start(submit(devices=4))

    with before_query('UPDATE "scheduling_quotamark"', lambda: quotas.look_at_quotas(now=NOW)):
        quotas.look_at_quotas(now=NOW)

    assert Notice.objects.unscoped().count() == 1


def test_gpu_hours_of_the_month_notify_at_80_and_100_percent():
    job = submit()
    start(job)
    Device.objects.update(is_gpu=True)
    ran(job, NOW - timedelta(hours=8))
    quotas.set_budget(viewer=make_viewer("root"), tenant_id=job.tenant_id, hours=10.0)

    quotas.look_at_quotas(now=NOW + timedelta(minutes=1))
    quotas.look_at_quotas(now=NOW + timedelta(hours=1))
    quotas.look_at_quotas(now=NOW + timedelta(hours=3))

    found = Notice.objects.unscoped().filter(event="quota.gpu-hours").order_by("id")
    assert [notice.facts["quota"]["percent"] for notice in found] == [80, 100]


@pytest.mark.parametrize(
    ("percent", "told", "level"),
    [
        (79, 0, 0),
        (80, 0, 80),
        (100, 0, 100),
        (95, 100, 100),
        (89, 100, 80),
        (75, 80, 80),
        (69, 100, 0),
    ],
)
def test_a_fluctuating_share_notifies_once(percent, told, level):
    assert quotas.level_of(percent, told) == level


def test_words_of_mails_are_one_line_and_plain():
    body = {
        "event": "job.failed",
        "at": "now",
        "job": {"id": 3, "name": "a\nBcc: x", "state": "failed"},
    }

    assert subject_of(body).startswith("Job 3 a")
    assert "state: failed" in mail_text(body)
    assert event_of("released", "queued") is NoticeEvent.JOB_REQUEUED
    assert event_of("admit", "admitted") is None
    assert next_try(9, NOW) is None


def test_leads_manage_the_hooks_of_their_tenant_only():
    make_tenant("audio", ada=Role.MEMBER)

    for who, tenant in (("alice", "vision"), ("ada", None), ("ada", "audio")):
        with pytest.raises((NotFoundError, Exception), match=r"not allowed|Not found"):
            make_hook(who, tenant)


def test_a_hook_that_was_allowed_keeps_its_address_when_something_else_changes():
    made = make_hook()
    Webhook.objects.unscoped().filter(pk=made.hook.pk).update(url="http://10.0.0.1/x")
    viewer = make_viewer("ada")

    changed = webhooks.update_hook(
        viewer=viewer, hook_id=made.hook.pk, name="other", url="http://10.0.0.1/x"
    )
    with pytest.raises(InvalidError):
        webhooks.update_hook(viewer=viewer, hook_id=made.hook.pk, url="http://10.0.0.2/x")

    assert (changed.name, changed.url) == ("other", "http://10.0.0.1/x")


def test_a_token_of_one_tenant_neither_sees_nor_repeats_mails_about_another():
    make_member(Tenant.objects.unscoped().get(name="language"), User.objects.get(username="alice"))
    fail(submit())
    fail(submit(virtual_cluster="language-a"))
    tell()
    Delivery.objects.update(state=DeliveryState.DELIVERED, done_at=NOW)
    ours, theirs = (Delivery.objects.get(body__tenant=name) for name in ("vision", "language"))
    alice = make_viewer("alice")
    (vision,) = (pk for pk, name in alice.tenant_names.items() if name == "vision")
    bound = replace(alice, bound_tenant_id=vision, scopes=frozenset({Scope.JOBS_WRITE}))
    reads = replace(bound, scopes=frozenset({Scope.JOBS_READ}))
    nodes = replace(alice, scopes=frozenset({Scope.NODES_ADMIN}))

    assert set(deliveries_for(alice)) == {ours, theirs}
    assert list(deliveries_for(bound)) == list(deliveries_for(reads)) == [ours]
    assert not deliveries_for(nodes).exists()
    with pytest.raises(NotFoundError):
        deliveries.replay(viewer=bound, delivery_id=theirs.pk, now=NOW)
    with pytest.raises(ForbiddenError):
        deliveries.replay(viewer=reads, delivery_id=ours.pk, now=NOW)
    assert deliveries.replay(viewer=bound, delivery_id=ours.pk, now=NOW).replay_of == ours
