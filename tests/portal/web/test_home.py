"""Home: own jobs, share and messages of a person, and problems for cluster admins."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from portal.web.components import words
from portal.web.home import remaining
from portal.web.inbox import MessageRow, folded
from scheduling.clusters.models import Device, Node
from scheduling.jobs.models import Job
from scheduling.notices.models import Delivery, DeliveryState, GpuHourBudget, Webhook
from scheduling.notices.services.outbox import create_deliveries
from scheduling.runs.models import Attempt
from scheduling.watching.models import IdleSpell
from tenants.models import InboxMessage, Membership, Snooze, User
from tests.factories.cluster import job_document, make_job
from tests.factories.running import put_into
from tests.factories.scheduling import make_many_jobs
from tests.support.cluster_pages import HTMX, Stage, make_stage, read, sign_in, words_of
from workers.goodput import CurvePoint
from workers.models import GoodputSample

pytestmark = pytest.mark.django_db

NOW = timezone.now()


@pytest.fixture
def stage() -> Stage:
    return make_stage()


def fail(owner: str = "alice", name: str = "broken", vc: str = "vision-a", **changes: Any) -> Job:
    document = job_document(name=name, virtual_cluster=vc)
    job = put_into(make_job(owner, document), "failed", now=timezone.now())
    values = {"end_message": "CUDA out of memory", "exit_code": 1, "failure_class": "user"}
    Job.objects.unscoped().filter(pk=job.pk).update(**values, **changes)
    return job


def message(user: str, stage: Stage, **changes: Any) -> InboxMessage:
    values = {
        "user": User.objects.get(username=user),
        "tenant": stage.vision,
        "event_uid": uuid4(),
        "event": "job.failed",
        "job": stage.running.pk,
        "body": {"job": {"id": stage.running.pk, "name": "train-a", "exit_code": 3}},
        "at": timezone.now(),
    }
    return InboxMessage.objects.unscoped().create(**{**values, **changes})


def test_a_person_starts_with_their_own_jobs_and_an_admin_with_the_cluster(
    client: Client, stage: Stage
) -> None:
    fail()

    said = words_of(read(sign_in(client, "alice"), "/"))
    admin = words_of(read(sign_in(Client(), "root"), "/"))

    assert "Running 1 jobs" in said
    assert "train-a" in said
    assert "waits-here" in said
    assert "CUDA out of memory" in said
    assert "Devices Each tile" not in said
    assert "Needs attention" in admin
    assert "Devices Each tile" in admin


def test_nothing_of_other_people_is_shown(client: Client, stage: Stage) -> None:
    fail("bob", name="foreign-failure", vc="language-a")
    message("bob", stage, body={"job": {"id": 1, "name": "foreign-message"}})

    html = read(sign_in(client, "lena"), "/mine/") + read(client, "/inbox/")

    for name in ("secret-name", "foreign-failure", "foreign-message", "train-a", "language-a"):
        assert name not in html


def test_a_waiting_job_shows_its_reason_in_one_line(client: Client, stage: Stage) -> None:
    Job.objects.unscoped().filter(pk=stage.waiting.pk).update(
        reason_code="vc-guarantee-in-use", reason_text="vision-a uses its whole guarantee."
    )

    said = words_of(read(sign_in(client, "alice"), "/mine/"))

    assert "vision-a uses its whole guarantee. vc-guarantee-in-use" in said


def test_failures_leave_the_list_once_they_are_seen(client: Client, stage: Stage) -> None:
    fail(name="seen-soon")
    sign_in(client, "alice")
    assert "seen-soon" in read(client, "/mine/")

    client.post("/mine/failures/seen/")

    assert "seen-soon" not in read(client, "/mine/")
    fail(name="newer")
    assert "newer" in read(client, "/mine/")


def test_a_failure_of_another_month_is_not_news(client: Client, stage: Stage) -> None:
    fail(name="old-one", finished_at=timezone.now() - timedelta(days=8))

    assert "old-one" not in read(sign_in(client, "alice"), "/mine/")


def test_the_outbox_fills_the_inbox_and_is_repeatable(client: Client, stage: Stage) -> None:
    job = make_job("alice", job_document(name="sad-end"))
    job.events.create(at=timezone.now(), kind="exit", state="failed", untold=True)
    job.events.create(at=timezone.now(), kind="done", state="succeeded", untold=True)

    create_deliveries(now=timezone.now(), sends_mail=False)
    job.events.update(untold=True)
    create_deliveries(now=timezone.now(), sends_mail=False)

    rows = InboxMessage.objects.unscoped().filter(user__username="alice", job=job.pk)
    read_state = {row.event: row.read_at is not None for row in rows}
    assert read_state == {"job.failed": False, "job.succeeded": True}
    assert rows.count() == 2
    assert "sad-end" in read(sign_in(client, "alice"), "/inbox/")


def test_opening_a_message_reads_it_and_the_disc_toggles_it(client: Client, stage: Stage) -> None:
    row = message("alice", stage)
    sign_in(client, "alice")
    assert "1 unread" in words_of(read(client, "/mine/"))

    assert client.get(f"/inbox/{row.pk}/").headers["Location"] == f"/jobs/{stage.running.pk}/"
    assert "1 unread" not in words_of(read(client, "/mine/"))

    client.post("/inbox/mark/", {"ids": str(row.pk), "read": "0"})
    assert "1 unread" in words_of(read(client, "/mine/"))
    client.post("/inbox/mark/", {"all": "1"})
    assert "1 unread" not in words_of(read(client, "/mine/"))


def test_messages_of_others_and_of_a_tenant_one_has_left_are_out_of_reach(
    client: Client, stage: Stage
) -> None:
    foreign = message("bob", stage, tenant=stage.language)
    mine = message("alice", stage)
    sign_in(client, "alice")

    assert client.get(f"/inbox/{foreign.pk}/").status_code == 404
    client.post("/inbox/mark/", {"ids": f"{foreign.pk},x,-1", "read": "1"})
    foreign.refresh_from_db()
    assert foreign.read_at is None

    Membership.objects.unscoped().filter(user__username="alice").delete()
    assert client.get(f"/inbox/{mine.pk}/").status_code == 404
    assert "train-a" not in read(client, "/inbox/")


def test_a_name_of_a_job_is_text(client: Client, stage: Stage) -> None:
    message("alice", stage, body={"job": {"id": 1, "name": "<img src=x>"}})

    assert "<img" not in read(sign_in(client, "alice"), "/mine/")


def test_messages_of_one_job_fold() -> None:
    rows = [
        MessageRow(
            id=number, name="a", text="failed.", icon="failed", tone="bad", url="/jobs/1/",
            at=NOW, is_read=False,
        )
        for number in (9, 8, 7)
    ]  # fmt: skip

    (one,) = folded(rows)

    assert (one.id, one.repeats, one.ids) == (9, 2, (9, 8, 7))


def test_the_budget_of_the_tenant_is_on_the_page(client: Client, stage: Stage) -> None:
    GpuHourBudget.objects.unscoped().create(tenant=stage.vision, hours=2400)
    GpuHourBudget.objects.unscoped().create(tenant=stage.language, hours=7777)

    said = words_of(read(sign_in(client, "alice"), "/mine/"))

    assert "of 2,400 GPU-hours left" in said
    assert "7,777" not in said


def test_the_queries_do_not_grow_with_the_jobs(
    client: Client, stage: Stage, django_assert_max_num_queries: Any
) -> None:
    sign_in(client, "alice")
    read(client, "/mine/")
    with django_assert_max_num_queries(40) as few:
        read(client, "/mine/")
    jobs = make_many_jobs(60, owner="alice", virtual_cluster=stage.vision_a, tenant=stage.vision)
    for job in jobs[:20]:
        put_into(job, "failed", now=timezone.now())
    for _ in range(30):
        message("alice", stage)
    fail()

    with django_assert_max_num_queries(len(few.captured_queries) + 2):  # failures have rows
        read(client, "/mine/")
    with django_assert_max_num_queries(30):
        html = read(client, "/mine/", **HTMX)
    assert "<html" not in html
    assert html.count("data-key=") <= 24


def test_progress_and_end_come_from_reported_steps(client: Client, stage: Stage) -> None:
    spec = {**stage.running.spec, "elastic": {"total_steps": 1000}}
    Job.objects.unscoped().filter(pk=stage.running.pk).update(spec=spec)
    attempt = Attempt.objects.get(job=stage.running)
    now = timezone.now()
    for number in range(8):
        GoodputSample.objects.create(
            job_id=stage.running.pk, attempt_id=attempt.pk, seconds=10, step=100 * (number + 1),
            at=now - timedelta(seconds=80 - 10 * number), steps=100, samples=100, throughput=10,
            efficiency=1.0, goodput=10, devices=2, loss=2.0 - number / 10,
        )  # fmt: skip

    said = words_of(read(sign_in(client, "alice"), "/mine/"))

    assert "loss 1.3" in said
    assert "800 of 1,000 steps" in said
    assert "No end declared" not in said


@given(
    steps=st.lists(st.integers(0, 500), min_size=6, max_size=30),
    total=st.integers(1, 10_000),
)
def test_the_remaining_time_is_an_ordered_range(steps: list[int], total: int) -> None:
    points, at = [], 0
    for number, step in enumerate(steps):
        at += step
        points.append(
            CurvePoint(
                at=NOW + timedelta(seconds=10 * number), attempt=1, step=at, throughput=1.0,
                goodput=1.0, step_seconds=None, loss=None,
            )
        )  # fmt: skip

    found = remaining(points, total)

    assert remaining(points, None) is None
    assert remaining(points[:3], total) is None
    if found is not None:
        low, high = found
        assert 0 <= low <= high
        assert (low == 0) == (at >= total)


def test_the_remaining_time_to_a_huge_last_step_can_be_shown() -> None:
    points = [
        CurvePoint(
            at=NOW + timedelta(seconds=10 * step), attempt=1, step=step, throughput=1.0,
            goodput=1.0, step_seconds=None, loss=None,
        )
        for step in range(8)
    ]  # fmt: skip

    found = remaining(points, 1 << 53)

    assert found is not None
    assert words.estimate(*found, NOW)


def test_problems_are_listed_by_urgency_and_close_with_their_cause(
    client: Client, stage: Stage
) -> None:
    long_ago = timezone.now() - timedelta(hours=1)
    first, second, third = stage.nodes
    Node.objects.filter(pk=first.pk).update(state="down", state_reason="no response")
    Node.objects.filter(pk=second.pk).update(state="cordoned", state_reason="fan replaced")
    Device.objects.filter(node=third, index=1).update(healthy=False, health_reason="Xid 79")
    stuck = put_into(make_job("alice", job_document(name="never-up")), "starting", now=long_ago)
    Job.objects.unscoped().filter(pk=stuck.pk).update(state_since=long_ago)
    IdleSpell.objects.create(
        job=stage.running, attempt=Attempt.objects.get(job=stage.running), since=long_ago,
        until=timezone.now(),
    )  # fmt: skip
    Job.objects.unscoped().filter(pk=stage.waiting.pk).update(
        state_since=long_ago, reason_code="no-cell-of-level"
    )
    hook = Webhook.objects.unscoped().create(
        name="pager", url="https://hooks.example.org/", events=["job.failed"],
        sealed_secret=b"x", created_at=long_ago,
    )  # fmt: skip
    Delivery.objects.create(
        event_uid=uuid4(), event="job.failed", hook=hook, body={}, state=DeliveryState.DEAD,
        created_at=long_ago, next_at=long_ago,
    )  # fmt: skip

    html = read(sign_in(client, "root"), "/")
    said = words_of(html)

    order = ["Node down", "Devices unhealthy", "Job stuck", "Held but idle", "Cordoned"]
    places = [said.index(label) for label in order]
    assert places == sorted(places)
    assert "pager: 1 delivery failed in the last 24 h." in said
    assert "Guarantee short" in said
    assert "devices 1: Xid 79" in said

    Node.objects.update(state="ready")
    assert "Node down" not in words_of(read(client, "/"))


def test_a_suspect_device_is_proposed_for_quarantine_until_it_is_in_one(
    client: Client, stage: Stage
) -> None:
    device = stage.nodes[0].devices.order_by("index")[2]
    Device.objects.filter(pk=device.pk).update(suspect_since=timezone.now())
    proposal = f"{stage.nodes[0].name}, device {device.index}: more jobs of several tenants fail"
    sign_in(client, "root")

    html = read(client, "/")

    assert proposal in words_of(html)
    assert "Quarantine the device." in words_of(html)
    assert f'href="/nodes/{stage.nodes[0].pk}/"' in html
    key = f"device-suspect:{stage.nodes[0].pk}:{device.index}"
    client.post("/cluster/attention/snooze/", {"key": key, "for": "4h"})
    assert proposal not in words_of(read(client, "/"))
    assert proposal in words_of(read(client, "/cluster/?snoozed=1"))

    Device.objects.filter(pk=device.pk).update(healthy=False)
    assert proposal not in words_of(read(client, "/cluster/?snoozed=1"))


def test_only_admins_get_problems(client: Client, stage: Stage) -> None:
    Node.objects.update(state="down")

    assert "Needs attention" not in read(sign_in(client, "lena"), "/cluster/")
    assert client.post("/cluster/attention/snooze/", {"key": "a", "for": "4h"}).status_code == 403
    assert not Snooze.objects.exists()


def test_a_snooze_hides_one_problem_from_one_admin(client: Client, stage: Stage) -> None:
    Node.objects.filter(pk=stage.nodes[0].pk).update(state="down")
    key = f"node-down:{stage.nodes[0].pk}"
    sign_in(client, "root")

    client.post("/cluster/attention/snooze/", {"key": key, "for": "4h"})

    assert "Node down" not in words_of(read(client, "/cluster/"))
    assert "Node down" in words_of(read(client, "/cluster/?snoozed=1"))
    Snooze.objects.update(until=timezone.now())
    assert "Node down" in words_of(read(client, "/cluster/"))
    assert client.post("/cluster/attention/snooze/", {"key": key, "for": "9y"}).status_code == 400
