"""Who may listen to which topic."""

import pytest

from portal.live.access import RefusedTopicError, group_for, job_group, log_group, queue_group
from tenants.roles import Role
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.tenants import make_tenant, make_viewer

pytestmark = pytest.mark.django_db


@pytest.fixture
def job():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(tenant=make_tenant("vision", alice=Role.MEMBER))
    make_tenant("language", bob=Role.LEAD)
    return make_job()


@pytest.mark.parametrize("topic", ["overview", "nodes", "rounds"])
def test_everybody_who_is_signed_in_may_listen_to_the_cluster(job, topic):
    assert group_for(topic, make_viewer("bob")) == f"live.{topic}"


def test_a_job_its_log_and_its_queue_are_for_its_tenant(job):
    alice = make_viewer("alice")

    assert group_for(f"job:{job.pk}", alice) == job_group(job.pk)
    assert group_for(f"log:{job.pk}:worker:0", alice) == log_group(job.pk, "worker", 0)
    assert group_for("queue:vision-a", alice) == queue_group(job.virtual_cluster_id)


@pytest.mark.parametrize("topic", ["job:{}", "log:{}:worker:0", "queue:vision-a"])
def test_nobody_else_hears_of_them(job, topic):
    with pytest.raises(RefusedTopicError):
        group_for(topic.format(job.pk), make_viewer("bob"))


@pytest.mark.parametrize(
    "topic",
    ["", "jobs", "job:", "job:x", "job:-1", "log:1:worker", "log:1:W:0", "queue:", "overview.t1"],
)
def test_what_is_no_topic_is_refused_in_the_same_way(job, topic):
    with pytest.raises(RefusedTopicError):
        group_for(topic, make_viewer("alice"))
