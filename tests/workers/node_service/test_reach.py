"""Services that cannot reach some nodes leave them to others."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from scheduling.clusters.models import Node
from scheduling.core.lifecycle import JobState
from scheduling.enums import NodeState
from tests.workers.node_service.conftest import World, wait_for
from workers.models import NodeBackoff, NodeLease
from workers.transports.base import Grew


@pytest.fixture
def cut_world(world: World, request: pytest.FixtureRequest) -> World:
    """Two services that give nodes up within a second."""
    world.settings = replace(
        world.settings,
        contact_every=0.05,
        unreached_after=0.5,
        first_contact=1.0,
        first_return=getattr(request, "param", 0.5),
    )
    for name in ("service-1", "service-2"):
        world.start(name)
    wait_for(lambda: set(nodes_by_owner()) == {"service-1", "service-2"})
    wait_for(lambda: all(len(node.sessions) == 1 for node in world.nodes.values()))
    return world


def nodes_by_owner() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for owner, name in NodeLease.objects.values_list("owner", "node__name"):
        found.setdefault(owner, set()).add(name)
    return found


def epochs() -> dict[str, int]:
    return dict(NodeLease.objects.values_list("node__name", "epoch"))


def test_nodes_of_a_service_that_cannot_reach_them_move_to_another(
    cut_world: World,
) -> None:
    jobs = [cut_world.submit("sleep 60", worker={"devices": 8}) for _ in range(3)]
    for job in jobs:
        cut_world.wait_for_state(job, JobState.RUNNING)
    before, lost = epochs(), nodes_by_owner()["service-1"]

    cut_world.cuts = {("service-1", name) for name in cut_world.nodes}
    wait_for(lambda: nodes_by_owner() == {"service-2": set(cut_world.nodes)})
    for job in jobs:
        (member,) = cut_world.members(job)
        cut_world.node_of(member).finish(cut_world.run_id(member), 0)
    for job in jobs:
        cut_world.wait_for_state(job, JobState.SUCCEEDED)

    moved = {name for name, epoch in epochs().items() if epoch != before[name]}
    assert moved == lost
    assert len(cut_world.asked("go")) == 3
    assert set(NodeBackoff.objects.values_list("process", flat=True)) == {"service-1"}

    cut_world.cuts = set()
    wait_for(lambda: set(nodes_by_owner()) == {"service-1", "service-2"})
    assert not NodeBackoff.objects.exists()


def test_a_node_that_no_service_reaches_stays_with_one_and_is_down(
    cut_world: World,
) -> None:
    lost = next(iter(nodes_by_owner()["service-1"]))
    before = epochs()

    cut_world.cuts = {(name, lost) for name in ("service-1", "service-2")}
    cut_world.nodes[lost].reachable = False
    wait_for(lambda: NodeBackoff.objects.filter(process="service-1").exists())
    wait_for(lambda: lost in nodes_by_owner().get("service-2", ()))
    cut_world.cuts = set()  # refused from here on
    wait_for(lambda: Node.objects.get(name=lost).contact == NodeState.DOWN)
    (row,) = NodeBackoff.objects.all()
    wait_for(lambda: not NodeBackoff.objects.filter(until=row.until).exists())

    assert epochs()[lost] == before[lost] + 1
    assert nodes_by_owner()["service-2"] >= {lost}

    cut_world.nodes[lost].reachable = True
    wait_for(lambda: Node.objects.get(name=lost).contact == NodeState.READY)
    wait_for(lambda: not NodeBackoff.objects.exists())


def test_a_node_that_only_sends_events_is_not_left_to_another_service(cut_world: World) -> None:
    owners = nodes_by_owner()
    (busy, lost, *_) = max(owners.values(), key=len)
    (owner,) = (name for name, nodes in owners.items() if busy in nodes)
    run_id = "0123456789abcdef.worker.0"

    cut_world.busy[busy] = Grew(run_id=run_id, log_end=1, reports_end=0)
    cut_world.cuts = {(owner, lost)}
    wait_for(lambda: lost not in nodes_by_owner()[owner])
    # One look later, since the busy node may have answered a little later than the other.
    (row,) = NodeBackoff.objects.all()
    wait_for(lambda: not NodeBackoff.objects.filter(until=row.until).exists())

    assert set(NodeBackoff.objects.values_list("node__name", flat=True)) == {lost}
    assert busy in nodes_by_owner()[owner]


@pytest.mark.parametrize("cut_world", [300.0], indirect=True)
def test_a_node_with_a_corrected_address_is_not_left_to_others_any_more(cut_world: World) -> None:
    lost = next(iter(nodes_by_owner()["service-1"]))
    cut_world.cuts = {("service-1", lost)}
    wait_for(lambda: NodeBackoff.objects.filter(process="service-1").exists())

    cut_world.cuts = set()
    Node.objects.filter(name=lost).update(host="10.9.9.9")
    wait_for(lambda: not NodeBackoff.objects.exists(), seconds=20)


def test_a_single_service_retains_a_node_that_it_cannot_reach(world: World) -> None:
    world.settings = replace(
        world.settings, contact_every=0.05, unreached_after=0.3, first_contact=0.3
    )
    world.start()
    wait_for(lambda: all(node.sessions for node in world.nodes.values()))
    before = epochs()

    world.nodes["node-1"].reachable = False
    world.nodes["node-1"].drop_connections()
    wait_for(lambda: Node.objects.get(name="node-1").contact == NodeState.DOWN)

    assert epochs() == before
    assert not NodeBackoff.objects.exists()


def test_the_next_service_continues_to_count_the_silence_of_a_node(world: World) -> None:
    world.settings = replace(world.settings, down_after=60.0)
    world.nodes["node-1"].reachable = False
    now = timezone.now()
    NodeBackoff.objects.create(
        node=Node.objects.get(name="node-1"),
        process="service-0",
        until=now + timedelta(seconds=60),
        silent_since=now - timedelta(seconds=100),
    )

    world.start()

    wait_for(lambda: Node.objects.get(name="node-1").contact == NodeState.DOWN, seconds=20)
