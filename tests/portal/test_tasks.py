"""Periodic work."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.utils import timezone

from portal.celery import DEFAULT_QUEUE, NODES_QUEUE, ROUNDS_QUEUE, app
from portal.tasks import run_maintenance
from scheduling import tasks
from scheduling.jobs.models import Job
from scheduling.rounds.models import Round
from tenants.models import FormToken, KnownSource, SignInTally
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.tenants import make_user
from tests.support.interleaving import before_query

pytestmark = pytest.mark.django_db


def test_pruning_deletes_old_rows_and_no_live_ones():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster()
    live, over = make_job(), make_job()
    long_ago = timezone.now() - timedelta(days=1000)
    Job.objects.unscoped().filter(pk=over.pk).update(state="succeeded", finished_at=long_ago)
    for number, at in ((1, long_ago), (2, timezone.now())):
        Round.objects.create(number=number, started_at=at, committed_at=at, duration_ms=1)

    run_maintenance()
    run_maintenance()

    assert list(Job.objects.unscoped().values_list("id", flat=True)) == [live.pk]
    assert list(Round.objects.values_list("number", flat=True)) == [2]


def test_housekeeping_keeps_things_for_as_long_as_is_set(settings):
    long_ago = timezone.now() - timedelta(days=1000)
    for number in (1, 2):  # the newest stays in any case
        Round.objects.create(
            number=number, started_at=long_ago, committed_at=long_ago, duration_ms=1
        )
    settings.TESSERA = replace(settings.TESSERA, keep_days={"rounds": -1.0})

    run_maintenance()
    assert Round.objects.count() == 2

    settings.TESSERA = replace(settings.TESSERA, keep_days={"rounds": 999.0})
    run_maintenance()
    assert Round.objects.count() == 1


def test_housekeeping_forgets_sessions_and_sign_ins_that_are_over():
    now = timezone.now()
    for key, days in (("over", -1), ("open", 1)):
        Session.objects.create(
            session_key=key, session_data="", expire_date=now + timedelta(days=days)
        )
    alice = make_user("alice")
    for key, days in (("old", 2), ("new", 0)):
        SignInTally.objects.create(key=key, failures=1, at=now - timedelta(days=days))
    for key, days in (("last year's", 401), ("today's", 0)):
        KnownSource.objects.create(user=alice, key=key, last_at=now - timedelta(days=days))

    run_maintenance()

    assert list(Session.objects.values_list("session_key", flat=True)) == ["open"]
    assert list(SignInTally.objects.values_list("key", flat=True)) == ["new"]
    assert list(KnownSource.objects.values_list("key", flat=True)) == ["today's"]


def test_housekeeping_forgets_forms_that_were_sent_long_ago():
    alice, now = make_user("alice"), timezone.now()
    for word, days in (("old", 2), ("new", 0)):
        FormToken.objects.create(
            user=alice, word=word, digest="", made=1, at=now - timedelta(days=days)
        )

    run_maintenance()

    assert list(FormToken.objects.values_list("word", flat=True)) == ["new"]


def test_a_round_that_lost_to_a_faster_one_is_requested_again(
    requested, django_capture_on_commit_callbacks
):
    make_cluster()
    make_priority_classes()
    make_virtual_cluster()
    job = make_job()

    def be_overtaken():
        # This round has read its number; another worker commits the round of that number.
        now = timezone.now()
        Round.objects.create(number=1, started_at=now, committed_at=now, duration_ms=1)

    overtaken = before_query('FROM "scheduling_virtualcluster"', be_overtaken)
    with overtaken, django_capture_on_commit_callbacks(execute=True):
        tasks.run_round(cause="submit")

    job.refresh_from_db()
    assert job.state == "queued"
    assert requested.causes() == ["lost"]


def test_every_scheduled_task_belongs_to_a_served_queue(settings):
    app.loader.import_default_modules()
    scheduled = settings.CELERY_BEAT_SCHEDULE.values()

    assert {entry["task"] for entry in scheduled} <= set(app.tasks)
    assert {"scheduling.tasks.run_round", "portal.tasks.run_maintenance"} <= {
        entry["task"] for entry in scheduled
    }
    queues = {ROUNDS_QUEUE, NODES_QUEUE, DEFAULT_QUEUE}
    assert {entry["options"].get("queue", DEFAULT_QUEUE) for entry in scheduled} <= queues
