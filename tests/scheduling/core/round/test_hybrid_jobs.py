"""Hybrid jobs in a round: placement on types with a grid, views for policies, and storage."""

from dataclasses import replace

import orjson
import pytest

from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell, Quota, VcSpec
from scheduling.core.policy_interface import BestGrid, Scale, Step, Terms
from scheduling.core.round.decide import decide
from scheduling.core.round.stored import read_stored
from scheduling.core.values import JobFacts
from scheduling.rounds.services.evidence import spelled_round
from tests.factories.rounds import VISION, cluster_snapshot, queued_job

SPEC = ClusterSpec(
    cell_types={
        f"{kind}-node": CellType(child=kind, count=4, node_level=True) for kind in ("a", "b")
    },
    physical=(
        PhysicalCell(type="a-node", address="node-1"),
        PhysicalCell(type="b-node", address="node-2"),
    ),
    virtual_clusters={
        "vision-a": VcSpec(
            quotas=tuple(
                Quota(chain=f"{kind}-node", level=f"{kind}-node", count=1) for kind in "ab"
            )
        )
    },
)
TERMS = Terms(scale=Scale(minimum=1, maximum=4, step=Step.POWER_OF_TWO))
GRIDS = (
    BestGrid(type="a", devices=4, rate=2.0, plan={"version": 1, "id": "1"}),
    BestGrid(type="b", devices=2, rate=1.0, plan={"version": 1, "id": "2"}),
)


def hybrid_snapshot(policy="fifo", **changes):
    job = queued_job(1, 2, vc=VISION)
    return cluster_snapshot(
        job,
        spec=SPEC,
        vcs=(replace(VISION, policy=policy, **changes),),
        known={1: JobFacts(terms=TERMS)},
        grids={1: GRIDS},
    )


@pytest.mark.parametrize("policy", ["fifo", "srtf", "backfill", "drf"])
def test_a_job_of_the_requested_size_starts_on_a_type_with_a_grid(policy):
    (start,) = decide(hybrid_snapshot(policy)).starts

    assert [member.node for member in start.members] == ["node-2"]


@pytest.mark.parametrize("policy", ["sia", "tessera"])
def test_a_policy_that_chooses_sizes_uses_the_grids(policy):
    (start,) = decide(hybrid_snapshot(policy)).starts

    (node,) = {member.node for member in start.members}
    assert sum(len(member.leaves) for member in start.members) == {"node-1": 4, "node-2": 2}[node]


def test_a_job_shrinks_within_a_cap_only_to_a_grid():
    capped = hybrid_snapshot("tessera", max_devices_per_user=3)

    starts = decide(capped).starts

    assert all({m.node for m in start.members} == {"node-2"} for start in starts)
    assert all(len(m.leaves) == 2 for start in starts for m in start.members)


def test_a_stored_round_contains_the_grids_and_replays():
    snapshot = hybrid_snapshot("tessera")
    result = decide(snapshot)

    read, decided = read_stored(orjson.loads(spelled_round(snapshot, result)))

    assert read.grids == {1: GRIDS}
    assert decide(read) == decided


def test_a_round_without_hybrid_jobs_stores_no_grids():
    snapshot = replace(hybrid_snapshot(), grids={})

    document = orjson.loads(spelled_round(snapshot, decide(snapshot)))

    assert "grids" not in document["snapshot"]
