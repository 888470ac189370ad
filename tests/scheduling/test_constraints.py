"""What the database itself refuses, whoever writes: the last line behind the promises."""

import pytest
from django.db import IntegrityError, connection, transaction

from scheduling.clusters.models import Device, Node, PriorityClass, Topology, VcQuota
from scheduling.jobs.models import Job
from scheduling.runs.models import Attempt, Lease, Member
from tests.factories.cluster import NOW
from tests.factories.scheduling import make_two_tenants, start, submit

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _running():
    """One job that runs, and one that waits."""
    make_two_tenants()
    start(submit())
    submit()


FREE_PORT = 40_000
OTHER = {"uid": "x", "port": FREE_PORT}

# Rule, whose newest row is written once more with which changes, and what makes that harmless.
TWICE = [
    ("lease_one_live_per_slot", Lease, {}, {"released_at": NOW}),
    ("lease_one_live_per_slot", Lease, {"virtual_cell": "elsewhere"}, {"slot": 1}),
    ("attempt_one_open_per_job", Attempt, {**OTHER, "number": 2}, {"ended_at": NOW}),
    ("attempt_one_per_number", Attempt, {**OTHER, "ended_at": NOW}, {"number": 2}),
    ("member_one_per_rank", Member, {}, {"rank": 7}),
    ("node_one_per_name", Node, {"host": "elsewhere"}, {"removed_at": NOW}),
    ("node_one_per_address", Node, {"name": "other"}, {"port": 2222}),
    ("device_one_per_index", Device, {"address": "x"}, {"index": 99}),
    ("vc_quota_one_per_level", VcQuota, {}, {"level": "another"}),
    ("priority_class_one_default", PriorityClass, {"name": "new"}, {"is_default": False}),
    ("topology_one_per_version", Topology, {}, {"version": 99}),
]


def write_again(model, **changes):
    """The newest row of ``model`` once more, under another key."""
    row = rows_of(model).order_by("pk").last()
    if model is PriorityClass:
        row = model.objects.get(is_default=True)
    for name, value in changes.items():
        setattr(row, name, value)
    row.pk = None
    row._state.adding = True
    row.save(force_insert=True)


def rows_of(model):
    manager = model.objects
    return manager.unscoped() if hasattr(manager, "unscoped") else manager.all()


@pytest.mark.parametrize(("rule", "model", "changes", "harmless"), TWICE)
def test_what_there_may_be_once_is_refused_a_second_time(rule, model, changes, harmless):
    # SQLite names the columns of a unique rule instead of the rule.
    sign = "UNIQUE" if connection.vendor == "sqlite" else rule

    with pytest.raises(IntegrityError, match=sign), transaction.atomic():
        write_again(model, **changes)

    write_again(model, **{**changes, **harmless})


def test_of_two_live_attempts_one_has_a_port():
    waiting = Job.objects.unscoped().get(state="queued")
    sign = "UNIQUE" if connection.vendor == "sqlite" else "attempt_one_open_per_port"

    with pytest.raises(IntegrityError, match=sign), transaction.atomic():
        write_again(Attempt, job=waiting, uid="x")

    write_again(Attempt, job=waiting, uid="x", port=FREE_PORT)


UNFIT = [
    # Of two rules that it breaks, PostgreSQL names the first in the alphabet.
    ("job_state_is_known|job_ended_has_a_time", Job, {"state": "asleep"}),
    ("job_class_is_known", Job, {"job_class": "best-effort"}),
    ("job_priority_is_in_range", Job, {"priority": 1001}),
    ("job_failure_class_is_known", Job, {"failure_class": "weather"}),
    ("job_ended_has_a_time", Job, {"state": "succeeded"}),
    ("job_ended_has_a_time", Job, {"finished_at": NOW}),
    ("lease_kind_is_known", Lease, {"kind": "wishing"}),
    ("member_step_is_known", Member, {"step": "dancing"}),
    ("node_state_is_known", Node, {"state": "fine"}),
    ("node_contact_is_known", Node, {"contact": "cordoned"}),
    ("node_held_is_known", Node, {"held": "ready"}),
    ("node_port_is_in_range", Node, {"port": 65536}),
    ("vc_quota_is_positive", VcQuota, {"count": 0}),
    ("attempt_number_is_positive", Attempt, {"number": 0}),
]


@pytest.mark.parametrize(("rule", "model", "values"), UNFIT)
def test_a_value_that_cannot_be_is_refused(rule, model, values):
    newest = rows_of(model).order_by("pk").last().pk

    with pytest.raises(IntegrityError, match=rule), transaction.atomic():
        rows_of(model).filter(pk=newest).update(**values)
