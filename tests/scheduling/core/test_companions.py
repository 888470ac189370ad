"""Roles without devices: refusals, their part of the share of other roles, and placement."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.jobspec import (
    Demand,
    InvalidJobSpecError,
    MemberDemand,
    demand,
    parse,
    parse_stored,
)
from scheduling.core.round.decide import decide
from scheduling.core.values import QueuedJob
from tessera.reasons import ReasonCode
from tests.factories.rounds import cluster_snapshot, queued_job

WORKER = {"command": "train", "devices": 1}
PS = {"command": "serve", "devices": 0, "cpus": 2, "memory": "4GiB"}


def spec_of(**roles: Any) -> dict[str, Any]:
    return {"name": "a", "virtual_cluster": "vision-a", "roles": roles}


def member(role: str, count: int, devices: int, **more: Any) -> MemberDemand:
    return MemberDemand(role=role, count=count, devices=devices, **more)


def gang(hosts: int, *companions: MemberDemand, **more: Any) -> QueuedJob:
    found = Demand(members=(member("worker", hosts, 4, **more),), companions=companions)
    return replace(queued_job(1), demand=found)


def test_a_role_without_devices_survives_the_stored_forms_and_comes_last() -> None:
    spec = parse(spec_of(ps=PS, worker=WORKER))

    found = demand(spec)

    assert [role.role for role in found.roles] == ["worker", "ps"]
    assert (found.devices, found.instances, found.cpus) == (1, 2, 2.0)
    assert Demand.from_json(found.to_json()) == found
    assert parse_stored(spec.to_json()) == spec
    assert "companions" not in demand(parse(spec_of(worker=WORKER))).to_json()


@pytest.mark.parametrize(
    ("roles", "fields"),
    [
        ({"ps": {**PS, "cpus": None, "memory": None}, "w": WORKER}, ["cpus", "memory"]),
        ({"ps": {**PS, "within": "socket"}, "w": WORKER}, ["within"]),
        ({"ps": {**PS, "processes": "per-device"}, "w": WORKER}, ["processes"]),
        ({"ps": {**PS, "device_types": ["A100"]}, "w": WORKER}, ["device_types"]),
        ({"ps": {**PS, "requires": {"cuda": "12"}}, "w": WORKER}, ["requires"]),
    ],
)
def test_a_role_without_devices_is_refused_where_it_has_no_place(
    roles: dict[str, Any], fields: list[str]
) -> None:
    with pytest.raises(InvalidJobSpecError) as refused:
        parse(spec_of(**roles))

    found = [error.field.removeprefix("roles.ps.") for error in refused.value.errors]
    assert found == [field.removeprefix("roles.ps.") for field in fields]


@pytest.mark.parametrize("gang", [True, False])
def test_a_job_may_have_no_devices_at_all(gang: bool) -> None:
    found = demand(parse({**spec_of(ps=PS), "gang": gang}))

    assert (found.has_devices, found.devices, found.cpus) == (False, 0, 2.0)
    assert Demand.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("name", "value"),
    [("elastic", {"min": 1, "max": 2}), ("sharing", {"guests": "none"})],
)
def test_a_job_without_devices_has_no_fields_about_devices(name: str, value: Any) -> None:
    with pytest.raises(InvalidJobSpecError) as refused:
        parse({**spec_of(ps=PS), name: value})

    assert [error.field for error in refused.value.errors] == [name]


@given(
    hosts=st.integers(1, 5),
    counts=st.lists(st.integers(1, 7), min_size=1, max_size=3),
)
def test_each_companion_is_counted_on_the_instance_that_hosts_it(
    hosts: int, counts: list[int]
) -> None:
    companions = [
        member(f"ps{number}", count, 0, cpus=float(10**number), memory=10**number)
        for number, count in enumerate(counts)
    ]
    job = gang(hosts, *companions)
    expected = [[0.0, 0] for _ in range(hosts)]
    order = [one for one in companions for _ in range(one.count)]
    for number, one in enumerate(order):
        expected[number % hosts][0] += one.cpus or 0
        expected[number % hosts][1] += one.memory or 0

    assert [list(job.demand.companion_load(position)) for position in range(hosts)] == expected


def test_companions_start_on_the_nodes_of_the_others_in_turn() -> None:
    job = gang(2, member("ps", 3, 0, cpus=1.0, memory=1))

    (start,) = decide(cluster_snapshot(job)).starts

    first, second, *rest = start.members
    assert [(one.role, one.rank, one.node_rank) for one in rest] == [
        *(("ps", 0, 2), ("ps", 1, 3), ("ps", 2, 4)),
    ]
    assert [one.node for one in rest] == [first.node, second.node, first.node]
    assert not any(one.leaves or one.device_indices for one in rest)
    assert len(first.leaves) == len(second.leaves) == 4


@pytest.mark.parametrize(
    ("own", "guests", "starts"),
    [(8.0, 8.0, True), (8.0, 8.5, False), (None, 15.0, True), (None, 16.0, False)],
)
def test_companions_use_only_the_share_of_their_gang(
    own: float | None, guests: float, starts: bool
) -> None:
    job = gang(1, member("ps", 1, 0, cpus=guests, memory=1), cpus=own)
    nodes = tuple(
        replace(node, cpus_per_device=4.0, memory_per_device=1_000)
        for node in cluster_snapshot().nodes
    )

    found = decide(cluster_snapshot(job, nodes=nodes))

    assert bool(found.starts) == starts
    if not starts:
        assert found.reasons[1].code is ReasonCode.CPU_OR_MEMORY
