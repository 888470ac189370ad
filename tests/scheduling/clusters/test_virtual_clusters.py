"""Virtual clusters: what may be promised, who may change it, and what stays."""

from datetime import timedelta
from typing import Any

import pytest

from scheduling.clusters.models import Topology, VcLimit, VcQuota, VirtualCluster
from scheduling.clusters.queries.virtual_clusters import virtual_cluster_detail
from scheduling.clusters.services.topology import DoesNotFitError
from scheduling.clusters.services.virtual_clusters import set_member_limits
from scheduling.core.lifecycle import JobState
from scheduling.runs.models import Lease
from tenants.errors import (
    ConflictError,
    DomainError,
    DuplicateError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    StaleEditError,
)
from tenants.models import AuditEntry, Membership
from tests.factories.scheduling import (
    ADMIN,
    NOW,
    archive_vc,
    change_vc,
    create_vc,
    make_two_tenants,
    run_round,
    start,
    submit,
)
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def clusters():
    return make_two_tenants()


def update(name="vision-a", **changes):
    return change_vc(name, **changes)


def cell(level="a-node", count=1, chain="a-node"):
    return {"chain": chain, "level": level, "count": count}


def quotas(name):
    rows = VcQuota.objects.filter(virtual_cluster__name=name).order_by("level")
    return {row.level: row.count for row in rows}


def test_a_virtual_cluster_is_made_with_its_guarantee_and_the_record_of_it():
    vc = create_vc(cells=[cell("node"), cell("a-socket", 0)], max_devices_per_user=4, note="new")

    assert quotas("vision-b") == {"a-node": 1}
    assert (vc.policy, vc.max_devices_per_user, vc.version) == ("fifo", 4, 1)
    assert Topology.objects.order_by("-version")[0].version == 2
    entry = AuditEntry.objects.unscoped().get(action="virtual_cluster.create")
    assert entry.after["cells"] == [cell()]
    assert entry.tenant_id == vc.tenant_id


def test_a_guarantee_that_does_not_fit_beside_the_others_says_at_which_level():
    with pytest.raises(DoesNotFitError) as caught:
        create_vc(cells=[cell(count=2)])

    assert "a-node needs 4, has 3" in str(caught.value)
    assert not VirtualCluster.objects.unscoped().filter(name="vision-b").exists()
    assert Topology.objects.count() == 1


def test_smaller_cells_count_against_larger_ones():
    create_vc(cells=[cell("a-socket", 2)])

    with pytest.raises(DoesNotFitError):
        update("vision-a", cells=[cell("a-node", 1), cell("a-pcie", 1)])
    assert quotas("vision-a") == {"a-node": 1}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "x" * 64}, "name"),
        ({"name": 7}, "name"),
        ({"tenant": "nobody"}, "tenant"),
        ({"tenant": "a\x00"}, "tenant"),
        ({"tenant": None}, "tenant"),
        ({"policy": "magic"}, "policy"),
        ({"policy": 7}, "policy"),
        ({"policy_args": {"speed": 9}}, "policy_args"),
        ({"policy_args": {"backfill": "yes"}}, "policy_args"),
        ({"cells": "a-node"}, "cells"),
        ({"cells": [7]}, "cells[0]"),
        ({"cells": [{"chain": "a-node"}]}, "cells[0]"),
        ({"cells": [cell(chain="b")]}, "cells[0].chain"),
        ({"cells": [cell(chain=None)]}, "cells[0].chain"),
        ({"cells": [cell(level="rack")]}, "cells[0].level"),
        ({"cells": [cell(level=["a"])]}, "cells[0].level"),
        ({"cells": [cell(count=-1)]}, "cells[0].count"),
        ({"cells": [cell(count=1.5)]}, "cells[0].count"),
        ({"cells": [cell(count=True)]}, "cells[0].count"),
        ({"cells": [cell(), cell("node")]}, "cells[1]"),
        ({"pinned": "node-1"}, "pinned"),
        ({"pinned": [{"name": "p"}]}, "pinned[0]"),
        ({"pinned": [{"name": "", "address": "node-3"}]}, "pinned[0].name"),
        ({"pinned": [{"name": "p", "address": "node-9"}]}, "pinned[0].address"),
        ({"max_devices_per_user": 0}, "max_devices_per_user"),
        ({"max_devices_per_user": "4"}, "max_devices_per_user"),
        ({"max_opportunistic_devices": -1}, "max_opportunistic_devices"),
        ({"note": "x" * 501}, "note"),
        ({"note": "a\x00"}, "note"),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_nothing_is_stored(changes, field):
    with pytest.raises(InvalidError) as caught:
        create_vc(**changes)

    assert caught.value.field == field
    assert caught.value.remedy
    assert VirtualCluster.objects.unscoped().count() == 2
    assert Topology.objects.count() == 1


def test_a_taken_name_is_refused():
    with pytest.raises(DuplicateError):
        create_vc(name="language-a")


def test_a_pinned_cell_belongs_to_one_virtual_cluster_and_to_its_guarantee():
    pin = {"name": "p", "address": "node-3"}
    create_vc(pinned=[pin])

    detail = virtual_cluster_detail(ADMIN, "vision-b")
    assert [(row.address, row.level, row.devices) for row in detail.pinned] == [
        ("node-3", "node", 8)
    ]
    assert detail.use.guarantee == 8
    with pytest.raises(InvalidError) as caught:
        update("language-a", pinned=[pin])
    assert caught.value.value == "node-3"
    update("vision-b", pinned=[pin])


def test_a_reshape_keeps_what_runs_and_moves_the_version():
    job = submit(devices=8)
    start(job)

    vc = update(cells=[cell("a-socket", 1)], expected_version=1)
    run_round(NOW + timedelta(seconds=10))

    job.refresh_from_db()
    assert (job.state, vc.version) == (JobState.RUNNING, 2)
    assert quotas("vision-a") == {"a-socket": 1}
    assert Lease.objects.filter(job=job, released_at=None).count() == 8
    assert Topology.objects.count() == 2


def test_an_edit_of_an_old_version_is_refused_and_changes_nothing():
    update(note="first")

    with pytest.raises(StaleEditError):
        update(cells=[cell("a-socket", 1)], expected_version=1)

    assert quotas("vision-a") == {"a-node": 1}


def test_an_edit_that_changes_nothing_is_not_recorded():
    update(note="", cells=[cell()])

    assert not AuditEntry.objects.unscoped().filter(action="virtual_cluster.update").exists()
    assert Topology.objects.count() == 1


def test_another_policy_begins_with_an_empty_state():
    VirtualCluster.objects.unscoped().update(policy_state={"seen": 1})

    vc = update(policy="fifo", policy_args={"backfill": False})
    assert (vc.policy_args, vc.policy_state) == ({"backfill": False}, {"seen": 1})


def test_rules_around_a_policy_are_checked_kept_audited_and_forget_nothing():
    VirtualCluster.objects.unscoped().update(policy_state={"seen": 1})
    args = {"wrap": {"reserve-head": {"patience": 600}}}

    vc = update(policy_args=args, shadows=[{"policy": "sia", "policy_args": args}])

    assert (vc.policy_args, vc.policy_state) == (args, {"seen": 1})
    assert vc.shadows == [{"policy": "sia", "policy_args": args}]
    (entry,) = AuditEntry.objects.unscoped().filter(action="virtual_cluster.update")
    assert entry.after["policy_args"] == args
    with pytest.raises(InvalidError) as refused:
        update(policy_args={"wrap": {"reserve-head": {"patience": -1}}})
    (fault,) = refused.value.errors
    assert (fault.field, "patience is -1" in fault.message) == ("policy_args", True)


def test_a_lead_sets_caps_and_nothing_else():
    ada = make_viewer("ada")

    assert update(viewer=ada, max_devices_per_user=2).max_devices_per_user == 2
    assert update(viewer=ada, max_devices_per_user=None).max_devices_per_user is None
    changes: dict[str, Any]
    for changes in ({"cells": []}, {"policy": "fifo"}, {"note": "x"}, {}):
        with pytest.raises(ForbiddenError):
            update(viewer=ada, **changes)
    with pytest.raises(ForbiddenError):
        update(viewer=make_viewer("alice"), max_devices_per_user=2)
    with pytest.raises(NotFoundError):
        update("language-a", viewer=ada, max_devices_per_user=2)


def test_only_cluster_admins_make_and_archive():
    for name in ("alice", "ada", "carol"):
        with pytest.raises(ForbiddenError):
            create_vc(viewer=make_viewer(name))
    with pytest.raises(ForbiddenError):
        archive_vc("vision-a", viewer=make_viewer("ada"))


def test_an_archived_virtual_cluster_gives_its_cells_back():
    vc = archive_vc("vision-a")

    assert vc.archived_at == NOW
    assert quotas("vision-a") == {}
    create_vc(cells=[cell(count=2)])
    with pytest.raises(ConflictError):
        update(note="x")


def test_a_virtual_cluster_with_live_jobs_is_not_archived():
    submit()

    with pytest.raises(ConflictError) as caught:
        archive_vc("vision-a")

    assert "1 job waits or runs" in str(caught.value)


def test_a_lead_limits_a_member_to_some_virtual_clusters():
    create_vc()
    member = Membership.objects.unscoped().get(user__username="alice")
    ada = make_viewer("ada")

    names = set_member_limits(
        viewer=ada, membership_id=member.pk, virtual_clusters=["vision-b"], now=NOW
    )

    assert names == ("vision-b",)
    assert virtual_cluster_detail(ada, "vision-b").limited_members == ("alice",)
    with pytest.raises(DomainError, match="limited to other virtual clusters"):
        submit("alice")
    set_member_limits(viewer=ada, membership_id=member.pk, virtual_clusters=[], now=NOW)
    assert VcLimit.objects.count() == 0
    assert AuditEntry.objects.unscoped().filter(action="member.limit").count() == 2


def test_limits_name_only_virtual_clusters_of_the_tenant_and_only_leads_set_them():
    member = Membership.objects.unscoped().get(user__username="alice")

    with pytest.raises(InvalidError):
        set_member_limits(
            viewer=make_viewer("ada"),
            membership_id=member.pk,
            virtual_clusters=["language-a"],
            now=NOW,
        )
    for name, error in (("alice", ForbiddenError), ("bob", NotFoundError)):
        with pytest.raises(error):
            set_member_limits(
                viewer=make_viewer(name), membership_id=member.pk, virtual_clusters=[], now=NOW
            )
