"""What a tenant and its people have used, as far as the viewer may see it."""

import pytest
from django.utils import timezone

from scheduling.usage.queries.device_hours import use_by_person, use_by_tenant, use_together
from tenants.models import User
from tenants.selectors import viewer_of
from tests.support.cluster_pages import make_stage

pytestmark = pytest.mark.django_db


def test_a_member_is_told_of_the_own_tenant_alone() -> None:
    stage = make_stage()
    alice = viewer_of(User.objects.get(username="alice"))
    now = timezone.now()

    by_tenant = use_by_tenant(alice, now=now)
    own = use_by_person(alice, stage.vision.pk, now=now)
    foreign = use_by_person(alice, stage.foreign.tenant_id, now=now)

    assert set(by_tenant) == {stage.vision.pk}
    assert sum(use.devices for use in own.values()) == by_tenant[stage.vision.pk].devices > 0
    assert foreign == {}


def test_a_tenant_has_used_what_its_people_have() -> None:
    stage = make_stage()
    root = viewer_of(User.objects.get(username="root"))
    now = timezone.now()

    people = use_by_person(root, stage.vision.pk, now=now)

    assert use_together(people.values()) == use_by_tenant(root, now=now)[stage.vision.pk]
