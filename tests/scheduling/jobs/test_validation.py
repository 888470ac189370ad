"""A document becomes a draft only if all that it names is there."""

import pytest

from scheduling.clusters.models import PriorityClass
from scheduling.jobs.queries.submit_context import read_submit_context
from scheduling.jobs.validation import InvalidJobError, check_draft
from tenants.models import Tenant, User
from tenants.selectors import viewer_of
from tests.factories.cluster import (
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
    pin_cell,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _cluster():
    make_cluster()
    make_priority_classes()
    make_virtual_cluster(cells=2)


def draft(*, host_network=True, **changes):
    viewer = viewer_of(User.objects.get(username="alice"))
    document = {
        "name": "hello",
        "virtual_cluster": "vision-a",
        "roles": {"worker": {"command": "true"}},
        **changes,
    }
    submit_context = read_submit_context(
        viewer=viewer, images_ignored=False, host_network=host_network
    )
    return check_draft(document=document, viewer=viewer, submit_context=submit_context)


def test_a_job_may_wait_for_jobs_that_its_owner_sees():
    first = make_job()

    assert draft(after=[first.pk]).after == (first.pk,)


@pytest.mark.parametrize("job_id", [10**6, 2**63 - 1])
def test_a_job_cannot_wait_for_one_that_is_not_there(job_id):
    with pytest.raises(InvalidJobError) as refused:
        draft(after=[job_id])

    assert [(error.field, error.value) for error in refused.value.errors] == [("after", job_id)]


def test_the_code_tells_what_does_not_work_yet_from_what_is_wrong():
    with pytest.raises(InvalidJobError) as not_yet:
        draft(model={})
    with pytest.raises(InvalidJobError) as wrong:
        draft(model={}, held="no")

    assert not_yet.value.code == "unsupported-field"
    assert wrong.value.code == "invalid-spec"


def test_a_rack_is_refused_where_no_node_is_in_one():
    with pytest.raises(InvalidJobError) as refused:
        draft(roles={"worker": {"command": "true", "within": "rack"}})

    assert [(error.field, error.code) for error in refused.value.errors] == [
        ("roles.worker.within", "no-cell-of-level")
    ]
    assert "here: device, pcie, socket, node." in refused.value.errors[0].message


def pin_faults(**changes):
    roles = {"worker": {"command": "true", "pinned_cell": "lab"}}
    with pytest.raises(InvalidJobError) as refused:
        draft(roles=roles, **changes)
    return [(error.field, error.value, error.remedy) for error in refused.value.errors]


def test_a_pinned_cell_must_be_one_of_the_virtual_cluster():
    none = pin_faults()
    pin_cell("vision-a", "one", "node-1/0")
    pin_cell("vision-a", "two", "node-1/1")
    pin_cell(
        make_virtual_cluster("vision-b", Tenant.objects.unscoped().get()).name, "lab", "node-2/0"
    )
    others = pin_faults()

    where = ("roles.worker.pinned_cell", "lab")
    assert none == [
        (*where, "It has no pinned cells. Omit pinned_cell, or ask a cluster admin to pin one.")
    ]
    assert others == [(*where, "Use one of: one, two.")]


def test_a_priority_that_makes_a_job_opportunistic_excludes_pinned_cells_too():
    pin_cell("vision-a", "lab", "node-1/0")

    assert pin_faults(priority="oppo") == [
        ("roles.worker.pinned_cell", "lab", "Use class: guaranteed, or omit pinned_cell.")
    ]


def test_a_pinned_cell_of_the_virtual_cluster_is_asked_for():
    pin_cell("vision-a", "lab", "node-1/0")

    made = draft(roles={"worker": {"command": "true", "pinned_cell": "lab"}})

    assert made.demand.members[0].pinned_cell == "lab"


def test_what_openpai_calls_a_job_without_a_class_has_the_default_where_no_class_was_made():
    PriorityClass.objects.all().delete()
    default = draft().priority

    assert draft(priority="test", compat={"format": "openpai"}).priority == default
    for wrong in ({"priority": "test"}, {"priority": "prod", "compat": {"format": "openpai"}}):
        with pytest.raises(InvalidJobError) as refused:
            draft(**wrong)
        assert refused.value.errors[0].remedy == "Use a number from 0 to 1000."


@pytest.mark.parametrize("changes", [{"instances": 1}, {"gang": False}])
@pytest.mark.parametrize("image", [{}, {"image": "busybox"}])
def test_without_the_host_network_only_gangs_of_several_instances_are_refused(image, changes):
    changes = dict(changes)
    role = {"command": "true", "instances": 2, "devices": 1, **image}
    gang = {"gang": changes.pop("gang")} if "gang" in changes else {}
    allowed = {name: value for name, value in {**role, **changes}.items() if value is not None}

    with pytest.raises(InvalidJobError) as refused:
        draft(host_network=False, roles={"worker": role})

    (error,) = refused.value.errors
    assert (error.field, error.code) == ("roles.worker.instances", "host-network-not-allowed")
    assert draft(host_network=False, roles={"worker": allowed}, **gang)
    assert draft(host_network=True, roles={"worker": role})
