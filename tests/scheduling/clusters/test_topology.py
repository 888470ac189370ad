"""Versions of the topology: one after the other, whoever else writes."""

import pytest
from django.db import transaction

from scheduling.clusters.models import Topology
from scheduling.clusters.services.topology import (
    TRIES,
    TopologyMovedError,
    append_version,
    in_turn,
    require_fit,
    require_version,
)
from scheduling.topology.current import current_topology
from tenants.errors import StaleEditError
from tests.factories.cluster import make_cluster
from tests.factories.scheduling import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _cluster():
    make_cluster(1)


def append(before):
    return append_version(
        before=before, spec=current_topology().spec, reason="test", user_id=None, now=NOW
    )


def test_a_version_comes_after_the_one_that_was_read():
    assert append(1).version == 2
    assert list(Topology.objects.order_by("version").values_list("version", "reason")) == [
        (1, ""),
        (2, "test"),
    ]


def test_a_version_that_exists_is_not_written_again_and_the_transaction_goes_on():
    append(1)

    with transaction.atomic():
        with pytest.raises(TopologyMovedError):
            append(1)
        assert Topology.objects.count() == 2


def test_whoever_was_slower_reads_again():
    seen = []

    def act():
        version = current_topology().version
        seen.append(version)
        if len(seen) == 1:
            append(1)
            raise TopologyMovedError
        return append(version).version

    # The first try is rolled back with what it wrote.
    assert in_turn(act) == 2
    assert seen == [1, 1]


def test_nobody_tries_for_ever():
    tries = []

    def act():
        tries.append(1)
        raise TopologyMovedError

    with pytest.raises(StaleEditError):
        in_turn(act)
    assert len(tries) == TRIES


def test_an_editor_with_a_version_in_mind_is_told_at_once():
    tries = []

    def act():
        tries.append(1)
        raise TopologyMovedError

    with pytest.raises(StaleEditError):
        in_turn(act, expected_version=1)
    with pytest.raises(StaleEditError):
        require_version(current_topology(), 7)
    assert len(tries) == 1


def test_before_the_first_version_there_is_nothing_and_everything_empty_fits():
    Topology.objects.all().delete()

    topology = current_topology()

    assert (topology.version, dict(topology.chains), topology.cell_at("x")) == (0, {}, None)
    assert topology.tree_of("node-1").address == "node-1"
    assert require_fit(topology.spec, before=topology.spec).ok
