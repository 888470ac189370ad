"""Periodic work."""

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.tasks import keep_house
from scheduling.models import Job, Round
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)

pytestmark = pytest.mark.django_db


def test_housekeeping_forgets_what_is_old_and_leaves_what_lives():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster()
    live, over = make_job(), make_job()
    long_ago = timezone.now() - timedelta(days=1000)
    Job.objects.unscoped().filter(pk=over.pk).update(state="succeeded", finished_at=long_ago)
    for number, at in ((1, long_ago), (2, timezone.now())):
        Round.objects.create(number=number, started_at=at, committed_at=at, duration_ms=1)

    keep_house()
    keep_house()

    assert list(Job.objects.unscoped().values_list("id", flat=True)) == [live.pk]
    assert list(Round.objects.values_list("number", flat=True)) == [2]
