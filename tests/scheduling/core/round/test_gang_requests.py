"""Engine requests of jobs, and the nodes that suffice for them."""

from dataclasses import replace

import pytest

from scheduling.core.jobspec import Demand, MemberDemand, Within
from scheduling.core.policy_interface import Alloc, Part
from scheduling.core.round.gang_requests import requests_of
from scheduling.core.round.gang_sizes import sized
from scheduling.core.round.node_restrictions import restriction_of
from scheduling.core.round.placement import Restrictions
from scheduling.core.storages import StorageFacts
from tessera.reasons import ReasonCode
from tests.factories.rounds import LANGUAGE, VISION, cluster_snapshot, queued_job


@pytest.mark.parametrize(
    ("within", "level"),
    [
        (Within.NODE, None),
        (Within.RACK, None),
        (Within.PCIE, "within:pcie"),
        (Within.SOCKET, "within:socket"),
    ],
)
def test_levels_below_the_node_are_part_of_the_member(within: Within, level: str | None) -> None:
    (request,) = requests_of(queued_job(1, devices=2, within=within), "vision-a")

    assert [member.within_level for member in request.members] == [level]


@pytest.mark.parametrize(("more", "suffices"), [(0, True), (1, False)])
def test_a_request_of_exactly_the_share_of_its_devices_fits(more: int, suffices: bool) -> None:
    snapshot = cluster_snapshot()
    node = replace(snapshot.nodes[0], cpus_per_device=4.0, memory_per_device=1_000)
    job = queued_job(1, devices=2)
    member = replace(job.demand.members[0], cpus=8.0, memory=2_000 + more)
    job = replace(job, demand=Demand(members=(member,)))

    found = restriction_of(job, VISION, replace(snapshot, nodes=(node,)))

    assert (found.reason is None) is suffices
    if found.reason is not None:
        assert found.reason.code is ReasonCode.CPU_OR_MEMORY


def test_a_gang_of_several_roles_moves_to_one_type_but_keeps_its_size() -> None:
    roles = Demand(
        members=(
            MemberDemand(role="chief", count=1, devices=1),
            MemberDemand(role="worker", count=3, devices=2),
        )
    )

    moved = sized(roles, Alloc(parts=(Part(n=7, type="a"),)))

    assert moved is not None
    assert [(m.count, m.devices, m.device_types) for m in moved.members] == [
        (1, 1, ("a",)),
        (3, 2, ("a",)),
    ]
    assert sized(roles, Alloc(parts=(Part(n=6, type="a"),))) is None
    assert sized(roles, Alloc(parts=(Part(n=3, type="a"), Part(n=4, type="b")))) is None


@pytest.mark.parametrize("first", [0, 1])
def test_equal_jobs_of_two_virtual_clusters_have_their_own_rights_to_a_storage(first: int) -> None:
    jobs = []
    for vc in (VISION, LANGUAGE):
        job = queued_job(vc.id, vc=vc)
        member = replace(job.demand.members[0], storages=("sets",))
        jobs.append(replace(job, demand=Demand(members=(member,))))
    snapshot = cluster_snapshot(*jobs)
    nodes = frozenset(node.name for node in snapshot.nodes)
    snapshot = replace(
        snapshot, storages={"sets": StorageFacts(vcs=frozenset({VISION.id}), nodes=nodes)}
    )
    restrictions = Restrictions(snapshot)

    found = {job.vc: restrictions.of(job).reason for job in (jobs[first], jobs[1 - first])}

    assert found[VISION.id] is None
    refused = found[LANGUAGE.id]
    assert refused is not None
    assert refused.code is ReasonCode.NO_STORAGE
