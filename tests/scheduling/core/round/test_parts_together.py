"""Jobs of several parts that fit one by one and never together are told so; others never are."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.cells import Bind, GangRequest, RequestError, VcSpec
from scheduling.core.jobspec import Demand, MemberDemand, Within
from scheduling.core.messages import english
from scheduling.core.policy_interface import Plan
from scheduling.core.reasons import Reason
from scheduling.core.round.decide import decide
from scheduling.core.round.engine_setup import engine_for
from scheduling.core.round.gang_requests import requests_of
from scheduling.core.round.placement import never_together
from scheduling.core.values import ClusterSnapshot, QueuedJob
from tessera.reasons import ReasonCode
from tests.factories.rounds import (
    SPEC,
    VISION,
    cluster_snapshot,
    decide_with_policy,
    jobs_started_by,
    queued_job,
)
from tests.strategies.waiting_clusters import clusters

KEEPS_WAITING = Plan(allocs={}, order=(), why={1: "Not now."})


def of_parts(one: QueuedJob, *members: tuple[int, int, tuple[str, ...], Within]) -> QueuedJob:
    """The job with these roles: instances, devices of each, their types, and how near."""
    return replace(
        one,
        demand=Demand(
            members=tuple(
                MemberDemand(
                    role=f"r{number}",
                    count=count,
                    devices=devices,
                    device_types=types,
                    within=within,
                )
                for number, (count, devices, types, within) in enumerate(members)
            )
        ),
    )


def two_roles(devices: int, *, borrow: bool = False) -> QueuedJob:
    """One role for type ``a`` and one for any: two questions to the engine."""
    parts = [(1, devices, types, Within.NODE) for types in (("a",), ())]
    return of_parts(queued_job(1, borrow=borrow), *parts)


def test_roles_that_fit_alone_and_never_together_are_told_so_under_a_policy():
    result = decide_with_policy(KEEPS_WAITING, two_roles(6))

    assert result.reasons[1].code is ReasonCode.EXCEEDS_VC_MAX
    assert result.reasons[1].text == (
        "Its roles need 12 devices of a together; virtual cluster vision-a has 8."
    )
    assert [english(step) for step in result.reasons[1].unblock] == [
        "Request at most 8 devices of a."
    ]
    assert decide_with_policy(KEEPS_WAITING, two_roles(4)).reasons[1].text == "Not now."


def test_a_borrower_is_judged_by_the_whole_cluster_and_its_ill_nodes():
    def reason(devices: int, ill: int = 0) -> Reason:
        nodes = tuple(
            replace(node, healthy=number >= ill)
            for number, node in enumerate(cluster_snapshot().nodes)
        )
        return decide_with_policy(
            KEEPS_WAITING, two_roles(devices, borrow=True), nodes=nodes
        ).reasons[1]

    assert reason(8).text == "Not now."
    assert reason(8, ill=1).text == "Not now."
    ill = reason(8, ill=2)
    assert ill.code is ReasonCode.CELLS_UNHEALTHY
    assert ill.text == "Its roles need 16 devices of a together; 8 are healthy."


def test_nobody_has_to_leave_for_a_role_whose_job_never_fits_whole():
    weak = cluster_snapshot(queued_job(7, 4, priority=1), queued_job(8, 4, priority=1))
    strong = replace(two_roles(6), priority=100)

    result = decide(cluster_snapshot(strong, holding=jobs_started_by(weak)))

    assert not result.preemptions
    assert result.reasons[1].code is ReasonCode.EXCEEDS_VC_MAX
    fitting = decide(
        cluster_snapshot(replace(two_roles(4), priority=100), holding=jobs_started_by(weak))
    )
    assert fitting.preemptions


def test_nobody_has_to_leave_for_a_role_beside_which_another_one_never_fits():
    weak = cluster_snapshot(queued_job(7, 4, priority=1), queued_job(8, 4, priority=1))
    parts = [(1, 2, ("a",), Within.NODE), (1, 12, (), Within.NODE)]
    strong = of_parts(queued_job(1, priority=100), *parts)

    result = decide(cluster_snapshot(strong, holding=jobs_started_by(weak)))

    assert not result.preemptions
    assert result.reasons[1].text == "One instance needs 12 devices; a node has at most 8."


def test_roles_of_a_virtual_cluster_without_any_guarantee_are_told_so():
    poor = replace(VISION, id=3, name="vision-b")
    spec = replace(SPEC, virtual_clusters={**SPEC.virtual_clusters, poor.name: VcSpec()})
    parts = [(1, 1, (), within) for within in (Within.RACK, Within.NODE)]
    apart = of_parts(queued_job(1, vc=poor), *parts)

    result = decide(cluster_snapshot(apart, vcs=(poor,), spec=spec))

    assert result.reasons[1].code is ReasonCode.UNKNOWN_TYPE
    assert result.reasons[1].text == "Virtual cluster vision-b has no cells."
    assert never_together(engine_for(cluster_snapshot(spec=spec)), requests_of(apart, poor.name))


@st.composite
def demanding(draw: st.DrawFn) -> ClusterSnapshot:
    """Clusters whose jobs have up to three roles, each with types and a nearness of its own."""
    cluster = draw(clusters(policies=(("fifo", {}),)))
    member = st.tuples(
        st.sampled_from([1, 1, 2]),
        st.sampled_from([1, 2, 3, 4]),
        st.sampled_from([(), ("a",), ("b",), ("a", "b")]),
        st.sampled_from([Within.NODE, Within.NODE, Within.RACK]),
    )
    roles = st.lists(member, min_size=2, max_size=3)
    queued = tuple(of_parts(one, *draw(roles)) for one in cluster.queued)
    return replace(cluster, queued=queued)


@settings(max_examples=300, deadline=None)
@given(cluster=demanding())
def test_no_job_that_could_start_is_told_that_it_never_fits(cluster: ClusterSnapshot) -> None:
    names = {vc.id: vc.name for vc in cluster.vcs}
    for one in cluster.queued:
        requests = requests_of(one, names[one.vc])

        if never_together(engine_for(cluster), requests) is not None:
            assert not any(_fit(cluster, order) for order in permutations(requests))


def _fit(cluster: ClusterSnapshot, requests: Sequence[GangRequest]) -> bool:
    """Whether the parts find their places one after another on the cluster, with nobody on it."""
    engine = engine_for(cluster)
    try:
        return all(isinstance(engine.place(request), Bind) for request in requests)
    except RequestError:
        return False
