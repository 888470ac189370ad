"""More and fewer nodes of a type: cells, facts of nodes and guarantees of a planning question."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell, Quota, VcSpec
from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.round.engine_setup import empty_engine, guaranteed_devices
from scheduling.core.simulation.planned_nodes import (
    PlannedNodesError,
    fewer_nodes,
    least_held,
    more_nodes,
    nodes_of_type,
)
from scheduling.core.values import HeldLeaf, HoldingJob, NodeFacts


def spec_of(racks):
    """Two chains of one type: two racks of two nodes each (if asked), and two single nodes."""
    tops = [PhysicalCell(type="a-node", address=f"single-{i}") for i in (1, 2)]
    if racks:
        tops += [
            PhysicalCell(
                type="a-rack",
                address=f"rack-{i}",
                children=tuple(PhysicalCell(address=f"node-{i}-{j}") for j in (1, 2)),
            )
            for i in (1, 2)
        ]
    chain = "a-rack" if racks else "a-node"
    return ClusterSpec(
        cell_types={
            "a-rack": CellType(child="a-node", count=2),
            "a-node": CellType(child="a", count=4, node_level=True),
        },
        physical=tuple(tops),
        virtual_clusters={
            "vision-a": VcSpec(quotas=(Quota(chain=chain, level="a-node", count=1),))
        },
    )


def facts_of(spec):
    return tuple(
        NodeFacts(
            name=name,
            placeable=True,
            healthy=True,
            has_docker=True,
            cpus_per_device=4.0,
            memory_per_device=8 * 10**9,
            owner=7,
        )
        for name in nodes_of_type(spec, "a")
    )


def guarantee(spec):
    return guaranteed_devices(empty_engine(spec), "vision-a").get("a", 0)


@given(st.booleans(), st.integers(1, 5))
def test_added_nodes_are_free_and_guaranteed(racks, count):
    spec = spec_of(racks)

    grown, nodes = more_nodes(spec, facts_of(spec), "vision-a", "a", count)

    assert len(nodes_of_type(grown, "a")) == len(nodes_of_type(spec, "a")) + count == len(nodes)
    assert {node.name for node in nodes} == set(nodes_of_type(grown, "a"))
    assert guarantee(grown) == guarantee(spec) + 4 * count
    added = [node for node in nodes if node.name not in nodes_of_type(spec, "a")]
    assert all(node.placeable and node.healthy and node.owner is None for node in added)


def test_a_node_that_fails_now_is_not_the_model_of_its_copies():
    spec = spec_of(False)
    nodes = tuple(
        NodeFacts(
            name=name,
            placeable=False,
            healthy=False,
            has_docker=True,
            cpus_per_device=4.0,
            memory_per_device=1,
        )
        for name in nodes_of_type(spec, "a")
    )

    _, found = more_nodes(spec, nodes, "vision-a", "a", 1)

    assert (found[-1].placeable, found[-1].healthy) == (True, True)


def test_a_type_without_nodes_cannot_grow():
    with pytest.raises(PlannedNodesError) as error:
        more_nodes(spec_of(False), (), "vision-a", "b", 1)

    assert (error.value.device_type, error.value.possible) == ("b", 0)


def test_drained_nodes_start_nothing_and_leave_the_guarantee():
    spec = spec_of(False)

    shrunk, nodes = fewer_nodes(spec, facts_of(spec), "vision-a", "a", ["single-2"])

    assert [(node.name, node.placeable) for node in nodes] == [
        ("single-1", True),
        ("single-2", False),
    ]
    assert guarantee(shrunk) == 0


def test_the_nodes_with_the_fewest_devices_in_use_drain_first():
    spec = spec_of(False)
    chain = empty_engine(spec).topology.chains["a-node"]
    demand = Demand(members=(MemberDemand(role="worker", count=1, devices=1),))
    job = HoldingJob(
        id=1,
        vc=1,
        tenant=1,
        owner=1,
        priority=1,
        job_class=JobClass.GUARANTEED,
        demand=demand,
        submitted=0.0,
        since=0.0,
        leaving=False,
        members=((HeldLeaf(address=chain.address[0], virtual=""),),),
    )

    assert least_held(spec, "a", 1, [job]) == ("single-2",)
    assert least_held(spec, "a", 2, [job]) == ("single-2", "single-1")
    with pytest.raises(PlannedNodesError) as error:
        least_held(spec, "a", 3, [job])
    assert error.value.possible == 2
