"""Pages and REST show every device type of a node."""

import pytest
from django.test import Client

from scheduling.clusters.models import Device, Node
from scheduling.clusters.services.inventory import apply_inventory
from tessera.inventory import Device as Found
from tessera.inventory import Inventory
from tests.factories.scheduling import NOW
from tests.support.cluster_pages import make_stage, sign_in

pytestmark = pytest.mark.django_db

STATION = [
    Found(
        index=index,
        type=kind,
        path=[index // 2, index],
        uuid=f"GPU-{index}",
        memory_bytes=memory << 30,
        display=kind == "T400",
    )
    for index, (kind, memory) in enumerate(
        [("V100", 32), ("V100", 32), ("T400", 4), ("MIG-1g", 10)]
    )
]


@pytest.fixture
def station(client: Client) -> Node:
    make_stage()
    node = Node.objects.create(name="station", host="station", state_since=NOW, created_at=NOW)
    found = Inventory(
        devices=STATION, levels=["node", "socket", "pcie", "device"], cpus=32, memory_bytes=1 << 36
    )
    apply_inventory(node_id=node.pk, inventory=found, now=NOW)
    sign_in(client, "root")
    return node


def test_the_page_of_a_node_shows_all_its_types_and_devices(client: Client, station: Node) -> None:
    page = client.get(f"/nodes/{station.pk}/")
    devices = client.get(f"/nodes/{station.pk}/devices/")

    assert page.status_code == 200
    for kind in (b"V100", b"T400-display", b"MIG-1g"):
        assert kind in page.content
    assert devices.status_code == 200
    assert devices.content.count(b"T400-display") >= 1


def test_nodes_are_found_by_each_of_their_types(client: Client, station: Node) -> None:
    for kind in ("V100", "T400-display", "MIG-1g"):
        assert b"station" in client.get(f"/nodes/?type={kind}").content
    assert b"station" not in client.get("/nodes/?type=a").content


def test_rest_lists_the_types_of_a_node(client: Client, station: Node) -> None:
    body = client.get(f"/api/v1/nodes/{station.pk}/").json()

    assert body["device_type"] == "V100"
    assert body["types"] == [
        {"type": "V100", "devices": 2},
        {"type": "MIG-1g", "devices": 1},
        {"type": "T400-display", "devices": 1},
    ]


@pytest.mark.parametrize("path", ["/", "/cluster/", "/nodes/", "/virtual-clusters/new/"])
def test_drawings_of_the_cluster_contain_all_parts(
    client: Client, station: Node, path: str
) -> None:
    assert Device.objects.filter(node=station).count() == 4
    assert client.get(path).status_code == 200
