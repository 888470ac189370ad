"""Network interfaces and InfiniBand adapters that the probe finds."""

import ipaddress
from pathlib import Path

from tessera.inventory import MAX_ADAPTERS, MAX_INTERFACES
from tessera.node import interfaces
from tessera.protocol import Inventory


def adapter(top: Path, name: str, *states: str) -> None:
    for port, state in enumerate(states, start=1):
        place = top / name / "ports" / str(port)
        place.mkdir(parents=True)
        (place / "state").write_text(f"{state}\n")


def test_adapters_count_with_an_active_port_and_device_files(tmp_path: Path) -> None:
    adapters, verbs = tmp_path / "class", tmp_path / "dev"
    adapter(adapters, "mlx5_0", "4: ACTIVE")
    adapter(adapters, "mlx5_1", "1: DOWN", "4: ACTIVE")
    adapter(adapters, "mlx5_2", "1: DOWN")
    verbs.mkdir()
    before = interfaces.infiniband(str(adapters), str(verbs))
    (verbs / "uverbs0").touch()

    assert before == []
    assert interfaces.infiniband(str(adapters), str(verbs)) == ["mlx5_0", "mlx5_1"]
    assert interfaces.infiniband(str(tmp_path / "none"), str(verbs)) == []


def test_interfaces_that_are_down_and_loopback_are_left_out(tmp_path: Path) -> None:
    listed = interfaces.found()
    (tmp_path / "speedless").mkdir()
    for one in listed:
        (tmp_path / one.name).mkdir()
        (tmp_path / one.name / "operstate").write_text("down\n")

    assert "lo" not in {one.name for one in listed}
    assert all(ipaddress.IPv4Interface(one.address) for one in listed)
    assert interfaces.found(str(tmp_path)) == []


def test_the_speed_is_that_of_the_driver_or_unknown(tmp_path: Path) -> None:
    for one in interfaces.found():
        (tmp_path / one.name).mkdir()
        (tmp_path / one.name / "operstate").write_text("up\n")
        (tmp_path / one.name / "speed").write_text("100000\n")

    assert {one.speed for one in interfaces.found(str(tmp_path))} <= {100_000}
    for one in interfaces.found():
        (tmp_path / one.name / "speed").write_text("-1\n")
    assert {one.speed for one in interfaces.found(str(tmp_path))} <= {0}


def test_an_inventory_keeps_interfaces_and_adapters() -> None:
    found = Inventory(
        devices=[],
        levels=["node", "device"],
        cpus=1,
        memory_bytes=0,
        interfaces=interfaces.found(),
        infiniband=["mlx5_0"],
    )

    assert Inventory.from_json(found.to_json()) == found


def test_a_node_with_more_than_an_inventory_may_have_sends_the_first_ones(tmp_path: Path) -> None:
    adapters, verbs = tmp_path / "class", tmp_path / "dev"
    for number in range(MAX_ADAPTERS + 1):
        adapter(adapters, f"mlx5_{number:03}", "4: ACTIVE")
    verbs.mkdir()
    (verbs / "uverbs0").touch()
    name = next((one.name for one in interfaces.found()), "")
    more = MAX_INTERFACES + 1 if name else 0

    listed = interfaces.found(names=[name] * more)
    names = interfaces.infiniband(str(adapters), str(verbs))

    assert len(listed) == min(more, MAX_INTERFACES)
    assert names == [f"mlx5_{number:03}" for number in range(MAX_ADAPTERS)]
