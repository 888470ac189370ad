"""Tiles are whole cells, and strangers stay strangers."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.templatetags.tessera import map_row
from portal.web.components.mapvalues import (
    DeviceNow,
    MapCell,
    MapGroup,
    MapNode,
    MapOccupant,
    Tile,
)
from portal.web.devicemap import device_map, node_tiles, tenant_categories, utilisation_step

TENANTS = ("vision", "language")


def pair(first: int) -> MapCell:
    leaves = tuple(MapCell(level="device", device=first + n) for n in (0, 1))
    return MapCell(level="pcie", children=leaves)


def eight() -> MapCell:
    sockets = tuple(
        MapCell(level="socket", children=(pair(first), pair(first + 2))) for first in (0, 4)
    )
    return MapCell(level="node", children=sockets)


def job(number: int, **more: object) -> MapOccupant:
    values = {"tenant": "vision", "name": "train", "user": "alice", **more}
    return MapOccupant(allocation=str(number), job_id=number, **values)  # type: ignore[arg-type]


def node(devices: dict[int, DeviceNow], **more: object) -> MapNode:
    return MapNode(name="a100-01", tree=eight(), devices=devices, **more)  # type: ignore[arg-type]


def tiles(group: MapGroup) -> Iterator[Tile]:
    for part in group.parts:
        if isinstance(part, MapGroup):
            yield from tiles(part)
        else:
            yield part


def drawn(one: MapNode) -> list[Tile]:
    return list(tiles(device_map([one], tenants=TENANTS).racks[0].rows[0].cells))


def held(indices: range | list[int], occupant: MapOccupant) -> dict[int, DeviceNow]:
    return {index: DeviceNow(occupant=occupant) for index in indices}


def test_a_job_on_the_whole_node_is_one_tile() -> None:
    found = drawn(node(held(range(8), job(7))))

    assert [(tile.width, tile.text, tile.name) for tile in found] == [(8, "7", "train")]


def test_an_idle_node_is_one_free_tile() -> None:
    assert [(tile.width, tile.text) for tile in drawn(node({}))] == [(8, "8 free")]


def test_two_free_devices_of_different_cells_stay_two_tiles() -> None:
    found = drawn(node(held([0, 3, 4, 5, 6, 7], job(7))))

    assert [(tile.width, tile.kind) for tile in found] == [
        (1, "used"),
        (1, "free"),
        (1, "free"),
        (1, "used"),
        (4, "used"),
    ]


def test_six_devices_of_one_job_are_a_socket_and_a_switch() -> None:
    found = drawn(node(held(range(6), job(7))))

    assert [(tile.width, tile.kind) for tile in found] == [(4, "used"), (2, "used"), (2, "free")]


def test_two_jobs_in_one_cell_are_two_tiles_even_of_one_person() -> None:
    found = drawn(node({**held([0], job(7)), **held([1], job(8))}))

    assert [tile.text for tile in found][:2] == ["7", "8"]


def test_a_name_is_shown_from_four_devices_on() -> None:
    found = drawn(node({**held([0, 1], job(7)), **held(range(4, 8), job(8))}))

    assert {tile.text: tile.name for tile in found} == {"7": "", "2 free": "", "8": "train"}


def test_a_strangers_tile_shows_the_tenant_and_nothing_else() -> None:
    stranger = MapOccupant(allocation="x", tenant="language")
    shown = device_map([node(held(range(8), stranger))], tenants=TENANTS)
    (tile,) = tiles(shown.racks[0].rows[0].cells)

    assert (tile.kind, tile.text, tile.name, tile.url, tile.job) == (
        "other",
        "language",
        "",
        "",
        None,
    )
    assert tile.title == "a100-01, 8 devices: a job of language"
    assert (shown.table[0].job, shown.table[0].tenant) == ("", "language")


def test_without_a_known_tenant_it_says_another_tenant() -> None:
    shown = device_map(
        [node(held(range(8), MapOccupant(allocation="x", tenant="")))], tenants=TENANTS
    )
    (tile,) = tiles(shown.racks[0].rows[0].cells)

    assert (tile.text, tile.tenant) == ("another tenant", None)
    assert shown.tenants == ()
    assert "other" in shown.kinds


def test_unhealthy_and_cordoned_are_kinds_of_their_own() -> None:
    broken = {6: DeviceNow(condition="unhealthy"), 7: DeviceNow(condition="unhealthy")}

    assert [tile.kind for tile in drawn(node(broken))] == ["free", "free", "unhealthy"]
    assert [tile.kind for tile in drawn(node({}, state="draining"))] == ["cordoned"]


def test_the_table_has_a_row_for_each_tile() -> None:
    shown = device_map([node({**held([0, 1], job(7)), **held([6], job(8))})], tenants=TENANTS)

    rows = [(row.devices, row.level, row.state) for row in shown.table]
    assert rows == [
        ("0 – 1", "pcie", "Running"),
        ("2 – 3", "pcie", "Free"),
        ("4 – 5", "pcie", "Free"),
        ("6", "device", "Running"),
        ("7", "device", "Free"),
    ]


@given(st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_tiles_cover_every_device_once_and_only_whole_cells_merge(use: list[int]) -> None:
    devices = {n: DeviceNow(occupant=job(who)) for n, who in enumerate(use) if who}

    found = drawn(node(devices))

    assert sum(tile.width for tile in found) == 8
    at = 0
    for tile in found:
        assert at % tile.width == 0
        assert len({use[n] for n in range(at, at + tile.width)}) == 1
        at += tile.width


def test_the_strip_of_a_row_shows_each_device() -> None:
    strip = node_tiles(node(held(range(8), job(7))), tenants=TENANTS)

    assert [tile.width for tile in tiles(strip)] == [1] * 8


def test_gaps_grow_with_the_cells_that_meet() -> None:
    shown = device_map([node(held([0], job(7)))], tenants=TENANTS).racks[0].rows[0].cells
    socket = shown.parts[0]
    assert isinstance(socket, MapGroup)
    switch = socket.parts[0]
    assert isinstance(switch, MapGroup)

    assert (shown.gap, socket.gap, switch.gap) == (3, 2, 1)


@pytest.mark.parametrize(("nodes", "density"), [(40, ""), (41, "square"), (251, "dot")])
def test_many_nodes_are_drawn_small(nodes: int, density: str) -> None:
    many = [node({}) for _ in range(nodes)]

    assert device_map(many, tenants=()).density == density


def test_from_the_ninth_tenant_on_the_category_is_slate() -> None:
    names = [f"tenant-{n}" for n in range(1, 11)]

    assert list(tenant_categories(names).values()) == [1, 2, 3, 4, 5, 6, 7, 8, 6, 6]


@pytest.mark.parametrize(
    ("share", "step"), [(0, 0), (0.09, 0), (0.1, 1), (0.5, 3), (0.89, 4), (1, 5)]
)
def test_utilisation_has_six_steps(share: float, step: int) -> None:
    assert utilisation_step(share) == step


def test_templates_tell_groups_from_tiles_by_an_attribute() -> None:
    assert MapGroup(width=1, gap=1, parts=()).is_group
    assert not getattr(SimpleNamespace(), "is_group", False)
    assert not hasattr(Tile(width=1, kind="free", title=""), "is_group")


def test_the_map_alone_does_not_spell_out_its_table() -> None:
    node = MapNode(name="node-1", tree=eight(), devices={}, url="/nodes/1/")

    shown = device_map([node], tenants=TENANTS, in_words=False)

    assert shown.table == ()
    assert shown.racks == device_map([node], tenants=TENANTS).racks


def test_a_row_that_changed_is_drawn_anew_and_one_that_did_not_is_drawn_alike() -> None:
    def row(occupant: MapOccupant | None) -> str:
        devices = {index: DeviceNow(occupant=occupant) for index in range(8)}
        node = MapNode(name="node-1", tree=eight(), devices=devices, url="/nodes/1/")
        return map_row(device_map([node], tenants=TENANTS).racks[0].rows[0])

    first, other, again = row(job(7)), row(job(8, name="<b>")), row(job(7))

    assert first == again != other
    assert "7" in first
    assert "&lt;b&gt;" in other
    assert "<b>" not in other
