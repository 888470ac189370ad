"""Storages: who may define and use them, which nodes have them, and what jobs get."""

from collections.abc import Mapping
from typing import Any

import pytest

from scheduling.clusters.models import Node, Storage, VirtualCluster
from scheduling.clusters.queries.storages import list_storages
from scheduling.clusters.services.storages import (
    create_storage,
    delete_storage,
    record_storages,
    update_storage,
)
from scheduling.jobs.models import Job
from scheduling.jobs.validation import InvalidJobError
from scheduling.runs.models import Member
from tenants.errors import (
    ConflictError,
    DuplicateError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    StaleEditError,
)
from tenants.models import AuditEntry
from tessera.storage import NOT_MOUNTED, StorageProbe
from tests.factories.scheduling import ADMIN, NOW, end, make_two_tenants, run_round, start, submit
from tests.factories.tenants import make_viewer

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _nodes() -> None:
    make_two_tenants(3)
    Node.objects.update(isolation_level="namespace")


def make_storage(name: str = "sets", **values: Any) -> Storage:
    fields = {"source": f"/srv/{name}", "mount": f"/{name}", **values}
    return create_storage(viewer=ADMIN, name=name, now=NOW, **fields)


def found_on(*nodes: str, source: str = "/srv/sets", **more: Any) -> None:
    for node in Node.objects.all():
        cause = "" if node.name in nodes else "missing"
        probe = StorageProbe(source, **{"cause": cause, "path": source, **more})
        record_storages(node_id=node.pk, probes=[probe])


def mounts_of(job: Job) -> list[Mapping[str, Any]]:
    return Job.objects.unscoped().get(pk=job.pk).spec.get("storage")


def faults_of(**changes: Any) -> list[tuple[str, str | None]]:
    with pytest.raises(InvalidJobError) as refused:
        submit("alice", **changes)
    return [(fault.field, fault.code) for fault in refused.value.errors]


# -- who may define them -------------------------------------------------------------------------


def test_only_node_managers_define_storages() -> None:
    lead = make_viewer("ada")
    row = make_storage()

    for act in (
        lambda: create_storage(viewer=lead, name="x", source="/srv/x", mount="/x", now=NOW),
        lambda: update_storage(viewer=lead, storage_id=row.pk, writable=True),
        lambda: delete_storage(viewer=lead, storage_id=row.pk),
    ):
        with pytest.raises(ForbiddenError):
            act()


def test_every_change_is_in_the_audit_with_names() -> None:
    row = make_storage(tenants=["vision"])
    update_storage(viewer=ADMIN, storage_id=row.pk, virtual_clusters=["language-a"])
    update_storage(viewer=ADMIN, storage_id=row.pk, virtual_clusters=["language-a"])
    delete_storage(viewer=ADMIN, storage_id=row.pk)

    entries = AuditEntry.objects.unscoped().filter(action__startswith="storage.").order_by("id")
    assert [entry.action for entry in entries] == [
        *("storage.create", "storage.update", "storage.delete"),
    ]
    assert entries[0].after["tenants"] == ["vision"]
    assert (entries[1].before, entries[1].after) == ({"vcs": []}, {"vcs": ["language-a"]})


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"name": "Sets"}, "name"),
        ({"name": "../x"}, "name"),
        ({"source": "/etc"}, "source"),
        ({"source": "/srv/../etc"}, "source"),
        ({"source": "/home/x/.tessera/runs"}, "source"),
        ({"source": "/var/lib/docker/volumes"}, "source"),
        ({"source": "nas:/x,rw"}, "source"),
        ({"source": 7}, "source"),
        ({"mount": "/usr/data"}, "mount"),
        ({"mount": ""}, "mount"),
        ({"mount": "/a/../b"}, "mount"),
        ({"writable": "yes"}, "writable"),
        ({"tenants": ["nobody"]}, "tenants"),
        ({"tenants": "vision"}, "tenants"),
        ({"default_for": ["vision-a"], "tenants": ["language"]}, "default_for"),
        ({"checkpoints": True}, "mount"),
        ({"checkpoints": True, "mount": "", "source": "nas:/saved"}, "source"),
    ],
)
def test_values_that_are_not_valid_are_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidError) as refused:
        make_storage(**{"name": "sets", "source": "/srv/sets", "mount": "/sets", **values})

    assert [fault.field for fault in refused.value.errors] == [field]
    assert refused.value.errors[0].remedy
    assert not Storage.objects.exists()


@pytest.mark.parametrize("source", ["/srv", "/srv/sets/inner"])
def test_sources_are_equal_or_apart(source: str) -> None:
    make_storage()
    make_storage("again", source="/srv/sets", writable=True)

    with pytest.raises(InvalidError, match="storage"):
        make_storage("nested", source=source)
    with pytest.raises(InvalidError, match="storage"):
        make_storage("saved", source="/srv/sets", mount="", checkpoints=True)


def test_names_are_unique_and_edits_are_not_lost() -> None:
    row = make_storage()

    with pytest.raises(DuplicateError):
        make_storage()
    update_storage(viewer=ADMIN, storage_id=row.pk, note="a", expected_version=1)
    with pytest.raises(StaleEditError):
        update_storage(viewer=ADMIN, storage_id=row.pk, note="b", expected_version=1)
    with pytest.raises(NotFoundError):
        update_storage(viewer=ADMIN, storage_id=row.pk + 1, note="b")


# -- who may use them ----------------------------------------------------------------------------


def test_a_job_gets_the_mount_point_and_mode_of_the_storage() -> None:
    make_storage()
    make_storage("out", writable=True)

    job = submit(
        "alice", storage=["sets", {"name": "out", "mount": "/results", "read_only": True}]
    )

    assert mounts_of(job) == [
        {"name": "sets", "mount": "/sets", "read_only": True},
        {"name": "out", "mount": "/results", "read_only": True},
    ]


def test_the_storage_of_another_tenant_does_not_exist_for_a_job() -> None:
    make_storage("theirs", tenants=["language"])
    make_storage("of-vc", virtual_clusters=["language-a"])

    assert faults_of(storage=["theirs", "of-vc", "absent"]) == [
        (f"storage[{place}].name", "unknown-storage") for place in range(3)
    ]
    messages = []
    for name in ("theirs", "absent"):
        with pytest.raises(InvalidJobError) as refused:
            submit("alice", storage=[name])
        (fault,) = refused.value.errors
        messages.append((fault.message, fault.remedy))
    assert messages[0] == messages[1]
    submit("bob", storage=["theirs", "of-vc"])


def test_a_job_cannot_write_to_a_read_only_storage() -> None:
    make_storage()

    assert faults_of(storage=[{"name": "sets", "read_only": False}]) == [
        ("storage[0].read_only", "conflict")
    ]


def test_mount_points_of_storages_do_not_contain_each_other() -> None:
    make_storage(mount="/data")
    make_storage("out", mount="/data/out")

    assert faults_of(storage=["sets", "out"]) == [("storage[1].mount", "conflict")]
    assert faults_of(
        storage=[{"name": "sets", "mount": "/x"}, {"name": "out", "mount": "/x"}]
    ) == [("storage[1].mount", "conflict")]


@pytest.mark.parametrize("mount", ["/data/../etc", "/etc", "data", "/tessera/work", "/.ssh", 7])
def test_mount_points_of_the_system_are_refused(mount: object) -> None:
    make_storage()

    ((field, _),) = faults_of(storage=[{"name": "sets", "mount": mount}])

    assert field == "storage[0].mount"


def test_jobs_get_the_defaults_of_their_virtual_cluster_unless_they_ask_for_none() -> None:
    make_storage(default_for=["vision-a"])
    make_storage("saved", mount="", checkpoints=True, default_for=["vision-a"])

    usual, without, other = submit("alice"), submit("alice", storage=[]), submit("bob")

    assert [mount["name"] for mount in mounts_of(usual)] == ["sets"]
    assert usual.spec["checkpoint_dir"] == "saved"
    assert mounts_of(without) == []
    assert mounts_of(other) == []
    assert "checkpoint_dir" not in other.spec


def test_a_storage_for_checkpoints_is_not_mounted_and_no_other_is_a_store() -> None:
    make_storage()
    make_storage("saved", mount="", checkpoints=True)

    assert faults_of(storage=["saved"]) == [("storage[0].name", "unknown-storage")]
    assert faults_of(checkpoint_dir="sets") == [("checkpoint_dir", "unknown-storage")]
    submit("alice", checkpoint_dir="saved", worker={"image": "python:3.12"})


def test_a_virtual_cluster_has_one_default_store() -> None:
    make_storage("a", mount="", checkpoints=True, default_for=["vision-a"])

    with pytest.raises(InvalidError) as refused:
        make_storage("b", mount="", checkpoints=True, default_for=["vision-a"])

    assert [fault.field for fault in refused.value.errors] == ["default_for"]


# -- where they are ------------------------------------------------------------------------------


def test_a_job_runs_only_on_nodes_that_have_its_storages() -> None:
    make_storage()
    found_on("node-2")
    jobs = [submit("alice", storage=["sets"]) for _ in range(3)]

    run_round()

    nodes = {Member.objects.get(attempt__job=job).node.name for job in jobs}
    assert nodes == {"node-2"}


def test_a_job_waits_for_a_node_with_its_storages() -> None:
    make_storage()
    found_on()
    job = submit("alice", storage=["sets"])

    run_round()

    job.refresh_from_db()
    assert job.reason_code == "storage-not-on-nodes"
    assert "3 nodes do not have all storages of the job (sets)" in job.reason_text
    found_on("node-1")
    run_round()
    assert Member.objects.get(attempt__job=job).node.name == "node-1"


def test_a_plain_job_with_storages_avoids_nodes_without_isolation() -> None:
    make_storage()
    found_on("node-1", "node-2", "node-3")
    Node.objects.exclude(name="node-3").update(isolation_level="none")
    job = submit("alice", storage=["sets"])

    run_round()

    assert Member.objects.get(attempt__job=job).node.name == "node-3"


def test_a_waiting_job_that_loses_the_right_does_not_start() -> None:
    row = make_storage()
    found_on("node-1", "node-2", "node-3")
    job = submit("alice", storage=["sets"])
    update_storage(viewer=ADMIN, storage_id=row.pk, tenants=["language"])

    run_round()

    job.refresh_from_db()
    assert (job.state, job.reason_code) == ("queued", "no-storage")
    assert "may not use it any more" in job.reason_text


def test_exports_that_are_not_mounted_serve_containers_of_rootful_engines() -> None:
    make_storage(source="nas:/sets")
    found_on(source="nas:/sets", cause=NOT_MOUNTED, path="")
    Node.objects.update(has_docker=True, inventory={"rootless": True})
    Node.objects.filter(name="node-2").update(inventory={"rootless": False})
    plain = submit("alice", storage=["sets"])
    contained = submit("alice", storage=["sets"], worker={"image": "python:3.12"})

    run_round()

    plain.refresh_from_db()
    assert plain.reason_code == "storage-not-on-nodes"
    assert Member.objects.get(attempt__job=contained).node.name == "node-2"


def test_a_storage_in_use_is_not_deleted() -> None:
    row = make_storage()
    found_on("node-1")
    job = submit("alice", storage=["sets"])

    with pytest.raises(ConflictError, match="1 queued or running job uses"):
        delete_storage(viewer=ADMIN, storage_id=row.pk)

    start(job)
    end(job)
    delete_storage(viewer=ADMIN, storage_id=row.pk)
    assert not Storage.objects.exists()


# -- what viewers see ----------------------------------------------------------------------------


def test_viewers_see_the_storages_of_their_tenants_without_sources_and_nodes() -> None:
    make_storage(tenants=["vision", "language"])
    make_storage("theirs", tenants=["language"])
    found_on("node-1", total_bytes=1000, free_bytes=400)

    (seen,) = list_storages(make_viewer("alice"))

    assert (seen.name, seen.source, seen.nodes, seen.tenants) == ("sets", "", (), ("vision",))
    assert (seen.usable_nodes, seen.total_bytes, seen.free_bytes) == (1, 1000, 400)
    assert list_storages(make_viewer("carol")) == ()
    assert [one.name for one in list_storages(make_viewer("root"))] == ["sets", "theirs"]


def test_an_edit_does_not_open_a_storage_of_an_archived_virtual_cluster() -> None:
    vc = VirtualCluster.objects.unscoped().order_by("pk")[0]
    row = make_storage(virtual_clusters=[vc.name])
    VirtualCluster.objects.unscoped().filter(pk=vc.pk).update(archived_at=NOW)

    (view,) = list_storages(ADMIN)
    update_storage(
        viewer=ADMIN,
        storage_id=row.pk,
        note="moved",
        tenants=list(view.tenants),
        virtual_clusters=list(view.virtual_clusters),
    )

    row.refresh_from_db()
    assert (row.vcs, row.tenants) == ([vc.pk], [])
