"""Hybrid jobs in a round: placement on types with a grid, views for policies, and storage."""

from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.cells import CellType, ClusterSpec, PhysicalCell, Quota, VcSpec
from scheduling.core.policy_interface import BestGrid, Kind, Scale, Step, Terms
from scheduling.core.round.decide import decide
from scheduling.core.round.stored import read_stored
from scheduling.core.values import JobFacts
from scheduling.rounds.services.evidence import spelled_round
from tessera.reasons import ReasonCode
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
TERMS = Terms(kind=Kind.ELASTIC, scale=Scale(minimum=1, maximum=4, step=Step.POWER_OF_TWO))
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


NO_SIZES = (BestGrid(type="a", devices=4, rate=2.0, plan={"version": 1, "id": "1"}),)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "sia", "tessera", "crius"])
def test_a_rigid_job_without_a_plan_at_its_size_waits_with_the_possible_sizes(policy):
    snapshot = replace(
        hybrid_snapshot(policy), known={1: JobFacts(terms=Terms())}, grids={1: NO_SIZES}
    )

    result = decide(snapshot)

    assert not result.starts
    assert result.reasons[1].code is ReasonCode.NO_PARALLEL_PLAN
    assert result.reasons[1].text == (
        "It has no parallel plan for 2 devices: by its profile, it can run on 4."
    )


@pytest.mark.parametrize("policy", ["srtf", "drf", "sia", "tessera", "crius"])
def test_an_elastic_job_without_a_plan_at_its_size_takes_a_size_with_one(policy):
    snapshot = replace(hybrid_snapshot(policy), grids={1: NO_SIZES})

    (start,) = decide(snapshot).starts

    assert {member.node for member in start.members} == {"node-1"}
    assert sum(len(member.leaves) for member in start.members) == 4


@pytest.mark.parametrize("policy", ["fifo", "tessera"])
def test_a_job_whose_grids_cannot_run_waits_and_blocks_no_other_job(policy):
    snapshot = replace(hybrid_snapshot(policy), grids={1: ()})
    snapshot = replace(snapshot, queued=(*snapshot.queued, queued_job(2, 2, vc=VISION)))

    result = decide(snapshot)

    assert [start.job_id for start in result.starts] == [2]
    assert result.reasons[1].code is ReasonCode.NO_PARALLEL_PLAN


@pytest.mark.parametrize("policy", ["fifo", "tessera"])
@pytest.mark.parametrize("grids", [(), NO_SIZES])
def test_a_plan_of_the_owner_needs_no_grid(policy, grids):
    snapshot = replace(hybrid_snapshot(policy), grids={1: grids}, given_sizes={1: (2, 4)})

    (start,) = decide(replace(snapshot, known={1: JobFacts(terms=Terms())})).starts

    assert sum(len(member.leaves) for member in start.members) == 2


@given(
    rows=st.frozensets(st.tuples(st.sampled_from("ab"), st.sampled_from([1, 2, 4]))),
    given_sizes=st.frozensets(st.sampled_from([1, 2, 4])),
    gang=st.sampled_from([1, 2, 4]),
    is_elastic=st.booleans(),
)
def test_a_job_starts_only_with_a_plan(rows, given_sizes, gang, is_elastic):
    table = tuple(BestGrid(type=kind, devices=n, rate=1.0) for kind, n in sorted(rows))
    snapshot = replace(
        hybrid_snapshot("srtf"),
        queued=(queued_job(1, gang, vc=VISION),),
        known={1: JobFacts(terms=TERMS if is_elastic else Terms())},
        grids={1: table},
        given_sizes={1: tuple(sorted(given_sizes))},
    )

    result = decide(snapshot)

    for start in result.starts:
        size = sum(len(member.leaves) for member in start.members)
        kind = {"node-1": "a", "node-2": "b"}[start.members[0].node]
        assert size in given_sizes or (kind, size) in rows
    may_start = gang in given_sizes or any(n == gang or is_elastic for _, n in rows)
    assert bool(result.starts) == may_start


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
