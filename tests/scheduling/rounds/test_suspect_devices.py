"""Suspect devices in rounds: read into the snapshot, avoided between equal choices, stored."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.clusters.models import Device
from scheduling.core.round.decide import decide
from scheduling.core.round.stored import read_stored
from scheduling.core.round_result import RoundResult
from scheduling.core.values import ClusterSnapshot
from scheduling.rounds.services.evidence import spelled_round
from scheduling.rounds.snapshot import RoundConfig, take_snapshot
from tests.factories.cluster import NOW
from tests.factories.rounds import NODES, cluster_snapshot, queued_job
from tests.factories.scheduling import make_two_tenants

CONFIG = RoundConfig(round_seconds=10.0, images_required=False, using="default")
sizes = st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.booleans()), max_size=5)


def snapshot_with(
    jobs: list[tuple[int, bool]], *suspect: tuple[str, int]
) -> tuple[ClusterSnapshot, RoundResult]:
    queued = (queued_job(n, size, borrow=borrow) for n, (size, borrow) in enumerate(jobs, 1))
    snapshot = cluster_snapshot(*queued, suspect_devices=frozenset(suspect))
    return snapshot, decide(snapshot)


@given(jobs=sizes, suspect=st.sets(st.tuples(st.sampled_from(NODES), st.integers(0, 7))))
def test_a_stored_round_with_suspect_devices_is_decided_again_as_before(
    jobs: list[tuple[int, bool]], suspect: set[tuple[str, int]]
) -> None:
    snapshot, result = snapshot_with(jobs, *suspect)

    document = orjson.loads(spelled_round(snapshot, result))

    assert ("suspect_devices" in document["snapshot"]) == bool(suspect)
    again, _ = read_stored(document)
    assert again == snapshot
    assert decide(again) == result


@given(jobs=sizes)
def test_the_same_jobs_start_if_all_devices_or_unknown_ones_are_suspect(
    jobs: list[tuple[int, bool]],
) -> None:
    _, plain = snapshot_with(jobs)
    every = [(node, index) for node in NODES for index in range(8)]

    for suspect in (every, [("elsewhere", 0)]):
        _, other = snapshot_with(jobs, *suspect)
        assert (other.starts, other.reasons) == (plain.starts, plain.reasons)


def test_a_job_starts_beside_a_suspect_device_and_on_it_if_nothing_else_is_free() -> None:
    _, plain = snapshot_with([(1, False)])
    (member,) = plain.starts[0].members
    place = (member.node, member.device_indices[0])

    _, avoiding = snapshot_with([(1, False)], place)
    _, full = snapshot_with([(8, False)], *((node, 0) for node in NODES))

    (other,) = avoiding.starts[0].members
    assert (other.node, other.device_indices[0]) != place
    assert len(full.starts) == 1


@pytest.mark.django_db
def test_the_snapshot_has_the_marked_devices() -> None:
    make_two_tenants()
    assert take_snapshot(number=1, now=NOW, config=CONFIG).snapshot.suspect_devices == frozenset()
    device = Device.objects.select_related("node").order_by("pk")[1]
    Device.objects.filter(pk=device.pk).update(suspect_since=NOW)

    found = take_snapshot(number=1, now=NOW, config=CONFIG).snapshot.suspect_devices

    assert found == {(device.node.name, device.index)}
