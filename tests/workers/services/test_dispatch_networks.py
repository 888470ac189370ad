"""Which runs get a network of their own, and what they are told about addresses then."""

from pathlib import Path
from typing import Any

import pytest

from scheduling.clusters.models import Node
from scheduling.runs.models import Member
from tenants.models import Tenant
from tests.factories.cluster import (
    NOW,
    make_cluster,
    make_job,
    make_priority_classes,
    make_virtual_cluster,
)
from tests.factories.scheduling import run_round
from workers.conf import WorkerSettings
from workers.services.dispatch import Directive, claim_directives

pytestmark = pytest.mark.django_db
IMAGE: dict[str, Any] = {"image": "python:3.11"}


@pytest.fixture(autouse=True)
def _cluster() -> None:
    make_cluster(2)
    for node in Node.objects.all():
        node.has_docker, node.host = True, f"10.0.0.{node.pk % 250 + 1}"
        node.inventory = {**node.inventory, "firewall": "iptables"}
        node.save()
    make_priority_classes()
    make_virtual_cluster(cells=2)


def directives(tmp_path: Path, *, host_network: bool = True, **role: object) -> list[Directive]:
    make_job(worker=role)
    run_round()
    nodes = list(Node.objects.values_list("id", flat=True))
    settings = WorkerSettings(data_dir=tmp_path, installation="here", host_network=host_network)
    return claim_directives(node_ids=nodes, busy=[], settings=settings, now=NOW)


def test_one_container_has_an_own_network_and_meets_itself_on_loopback(tmp_path: Path) -> None:
    (directive,) = directives(tmp_path, ports={"http": 1}, **IMAGE)

    assert directive.preparation is not None
    run = directive.preparation.run
    assert run.network == "own"
    assert run.env["MASTER_ADDR"] == "127.0.0.1"
    assert run.env["TESSERA_JOB_HOSTS_WORKER"] == "127.0.0.1"
    assert run.env["TESSERA_JOB_NODE_HOST"].startswith("10.0.0.")
    assert [str(port) for port in run.ports] == run.env["TESSERA_JOB_PORTS_HTTP"].split(",")
    assert run.env["MASTER_PORT"] not in map(str, run.ports)


def test_one_plain_job_with_ports_has_an_own_network_as_its_node_is_set(tmp_path: Path) -> None:
    Node.objects.update(job_network="isolated")

    (directive,) = directives(tmp_path, ports={"http": 1})

    assert directive.preparation is not None
    run = directive.preparation.run
    assert (run.network, run.job_network) == ("own", "isolated")
    assert run.env["MASTER_ADDR"] == "127.0.0.1"
    assert [str(port) for port in run.ports] == run.env["TESSERA_JOB_PORTS_HTTP"].split(",")


def test_containers_of_a_gang_share_the_network_of_their_nodes(tmp_path: Path) -> None:
    found = directives(tmp_path, instances=2, devices=4, **IMAGE)

    runs = [directive.preparation.run for directive in found if directive.preparation]
    assert [run.network for run in runs] == ["shared", "shared"]
    assert {run.env["MASTER_ADDR"] for run in runs} <= {n.host for n in Node.objects.all()}
    assert runs[0].env["MASTER_PORT"] in map(str, runs[0].ports)


def test_a_gang_meets_in_the_fastest_network_that_its_nodes_share(tmp_path: Path) -> None:
    for node in Node.objects.all():
        interfaces = [
            {"name": "eth0", "address": f"10.0.0.{node.pk % 250 + 1}/24", "speed": 1_000},
            {"name": "ib0", "address": f"10.9.0.{node.pk % 250 + 1}/24", "speed": 200_000},
        ]
        more = {"interfaces": interfaces, "infiniband": ["mlx5_0"]}
        node.inventory = {**node.inventory, **more}
        node.save()

    found = directives(tmp_path, instances=2, devices=8)

    runs = [directive.preparation.run for directive in found if directive.preparation]
    assert {run.env["MASTER_ADDR"][:7] for run in runs} == {"10.9.0."}
    assert {run.env["NCCL_SOCKET_IFNAME"] for run in runs} == {"=ib0"}
    assert {run.env["NCCL_IB_HCA"] for run in runs} == {"=mlx5_0"}
    assert {run.env["TESSERA_JOB_NODE_HOST"] for run in runs} == {
        n.host for n in Node.objects.all()
    }


def test_a_gang_on_one_node_needs_no_network(tmp_path: Path) -> None:
    (first, second) = directives(tmp_path, instances=2, devices=1)

    assert first.preparation is not None
    assert second.preparation is not None
    assert "NCCL_IB_HCA" not in first.preparation.run.env


def test_the_ipc_of_a_node_is_refused_if_its_tenants_have_changed(tmp_path: Path) -> None:
    tenant = Tenant.objects.unscoped().get()
    Node.objects.update(dedicated_to=[tenant.pk])
    make_job(worker={**IMAGE, "container": {"ipc": "host"}})
    run_round()
    settings = WorkerSettings(data_dir=tmp_path, installation="here")
    member = Member.objects.get()
    Node.objects.update(dedicated_to=[])

    (directive,) = claim_directives(node_ids=[member.node_id], busy=[], settings=settings, now=NOW)

    assert directive.preparation is None
    assert "dedicated to the tenant alone" in directive.refusal


@pytest.mark.parametrize("image", [{}, IMAGE])
def test_a_gang_that_waited_while_the_host_network_was_forbidden_is_refused(
    tmp_path: Path, image: dict[str, str]
) -> None:
    found = directives(tmp_path, host_network=False, instances=2, devices=4, **image)

    assert len(found) == 2
    assert all(directive.preparation is None for directive in found)
    assert all("TESSERA_HOST_NETWORK" in directive.refusal for directive in found)


def test_a_node_that_cannot_filter_packets_gives_its_own_network(tmp_path: Path) -> None:
    Node.objects.update(inventory={})

    (directive,) = directives(tmp_path, **IMAGE)

    assert directive.preparation is not None
    assert directive.preparation.run.network == "shared"
    assert directive.preparation.run.env["MASTER_ADDR"].startswith("10.0.0.")
