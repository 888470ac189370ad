"""What scripts and documents may count on in the demo."""

from demo.content import MEMBERS, SHARES, TENANTS
from demo.nodes import declared_devices
from demo.places import NODES
from scheduling.clusters.services.priority_classes import USUAL


def test_the_demo_has_the_names_and_numbers_that_scripts_know() -> None:
    assert {name: value for name, value, _ in USUAL} == {
        "crit": 120,
        "prod": 100,
        "test": 10,
        "oppo": -1,
    }
    assert set(TENANTS) == {"vision", "language"}
    assert {(name, tenant) for name, tenant, _ in MEMBERS} == {
        ("alice", "vision"),
        ("bob", "language"),
    }
    assert {"vision-a", "language-a"} <= set(SHARES)
    assert {tenant for tenant, _ in SHARES.values()} == set(TENANTS)


def test_each_device_comes_with_four_processors_and_eight_gibibytes() -> None:
    assert len(NODES) == 3
    for node in NODES:
        declared = declared_devices(node)
        count = len(declared["devices"])
        assert (count, declared["cpus"] / count) == (8, 4)
        assert declared["memory_bytes"] / count == 8 << 30
