"""What the node of a job is told about its storages, and rights that were withdrawn meanwhile."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest

from scheduling.clusters.models import Node, Storage
from scheduling.clusters.services.storages import create_storage, update_storage
from tessera import protocol
from tessera.isolation import ContainerView, VisiblePath
from tessera.protocol import NodeHello, RunSpec
from tessera.storage import NOT_MOUNTED, StorageMount
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import ADMIN, run_round
from workers.conf import WorkerSettings
from workers.services.dispatch import Directive, claim_directives
from workers.transports.base import Container
from workers.transports.container_config import container_config

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _cluster() -> None:
    make_cluster(2)
    Node.objects.update(isolation_level="namespace", has_docker=True)
    make_priority_classes()
    make_virtual_cluster(cells=2)


def make_storage(name: str, cause: str = "", **values: Any) -> Storage:
    fields = {"source": f"/srv/{name}", "mount": f"/{name}", **values}
    row = create_storage(viewer=ADMIN, name=name, now=NOW, **fields)
    for node in Node.objects.all():
        node.storages = {**node.storages, row.source: {"cause": cause, "path": row.source}}
        node.save()
    return row


def directives(tmp_path: Path) -> list[Directive]:
    nodes = list(Node.objects.values_list("id", flat=True))
    settings = WorkerSettings(data_dir=tmp_path, installation="here")
    return claim_directives(node_ids=nodes, busy=[], settings=settings, now=NOW)


def run_of(tmp_path: Path) -> RunSpec:
    run_round()
    (directive,) = directives(tmp_path)
    assert directive.preparation is not None
    return directive.preparation.run


def test_a_run_has_the_sources_places_and_modes_of_its_storages(tmp_path: Path) -> None:
    make_storage("sets")
    make_storage("out", writable=True)
    make_storage("more", writable=True)
    make_job(storage=["sets", "out", {"name": "more", "mount": "/x", "read_only": True}])

    run = run_of(tmp_path)

    assert run.storage == [
        StorageMount("sets", "/srv/sets", "/sets"),
        StorageMount("out", "/srv/out", "/out", writable=True),
        StorageMount("more", "/srv/more", "/x"),
    ]
    assert RunSpec.from_json(run.to_json()) == run


def test_a_storage_that_became_read_only_is_mounted_read_only(tmp_path: Path) -> None:
    row = make_storage("out", writable=True)
    make_job(storage=["out"])
    update_storage(viewer=ADMIN, storage_id=row.pk, writable=False)

    assert [mount.writable for mount in run_of(tmp_path).storage] == [False]


def test_storages_that_a_job_does_not_use_are_hidden_from_it(tmp_path: Path) -> None:
    make_storage("sets")
    make_storage("other")
    make_storage("again", source="/srv/sets", mount="/again")
    make_storage("export", source="nas:/exp")
    for node in Node.objects.all():
        node.storages["nas:/exp"]["path"] = "/mnt/exp"
        node.save()
    make_job(storage=["sets"])

    assert run_of(tmp_path).hidden_paths == ["/srv/other", "/mnt/exp"]


def test_a_right_that_is_withdrawn_after_the_round_fails_the_attempt(tmp_path: Path) -> None:
    row = make_storage("sets")
    make_job(storage=["sets"])
    run_round()
    Storage.objects.filter(pk=row.pk).update(tenants=[row.pk + 1000])

    (directive,) = directives(tmp_path)

    assert directive.preparation is None
    assert "storage sets was deleted, or this job may not use it any more" in directive.refusal


def test_checkpoints_of_containers_and_plain_jobs_lie_in_the_storage(tmp_path: Path) -> None:
    make_storage("saved", mount="", checkpoints=True)
    make_job(checkpoint_dir="saved", worker={"image": "python:3.12"})

    run = run_of(tmp_path)

    assert run.checkpoint_dir == "/srv/saved"
    assert run.visible_paths == [VisiblePath("/srv/saved", checkpoints=True)]
    assert protocol.checkpoint_dir("/home/t/.tessera", run) == f"/srv/saved/here/{run.job_id}"


def test_an_export_is_mounted_by_the_engine_only_where_the_node_has_not(tmp_path: Path) -> None:
    make_storage("sets", cause=NOT_MOUNTED, source="nas:/sets")
    make_job(storage=["sets"], worker={"image": "python:3.12"})

    run = run_of(tmp_path)

    assert run.storage == [StorageMount("sets", "nas:/sets", "/sets", by_engine=True)]
    config = container_of(run)
    (mount,) = (one for one in config["HostConfig"]["Mounts"] if one["Target"] == "/sets")
    assert (mount["Type"], mount["ReadOnly"]) == ("volume", True)
    assert mount["VolumeOptions"]["DriverConfig"] == {
        "Name": "local",
        "Options": {"type": "nfs", "o": "addr=nas,ro,nosuid,nodev", "device": ":/sets"},
    }
    rw = container_of(replace(run, storage=[replace(run.storage[0], writable=True)]))
    (mount,) = (one for one in rw["HostConfig"]["Mounts"] if one["Target"] == "/sets")
    assert mount["VolumeOptions"]["DriverConfig"]["Options"]["o"] == "addr=nas,rw,nosuid,nodev"


def container_of(run: RunSpec) -> Any:
    hello = NodeHello(
        protocol=2, pid=1, boot_id="", hostname="", python="3.11", home="/home/t",
        root="/home/t/.tessera", bundle="/home/t/node.pyz", uid=1, gid=1, clock=0.0, runs=0,
    )  # fmt: skip
    engine = docker.APIClient(base_url="unix:///nowhere.sock", version="1.41")
    try:
        view = ContainerView(checkpoints="/home/t/saved")
        return container_config(engine, run, Container(image="python:3.12"), hello, view)
    finally:
        engine.close()
