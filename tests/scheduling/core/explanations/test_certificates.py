"""Certificates of reasons hold on their snapshot, and on no other."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from scheduling.core.cells import Quota, VcSpec
from scheduling.core.explanations.certificates import Certificate, CertificateError, certify, check
from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.messages import english
from scheduling.core.round.decide import decide
from scheduling.core.values import ClusterSnapshot, NodeFacts, QueuedJob, VcFacts
from tests.strategies.waiting_clusters import SPEC, clusters, settled


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters())
def test_every_reason_of_a_round_has_a_certificate_that_holds(snapshot: ClusterSnapshot) -> None:
    result = decide(snapshot)

    for job_id in result.reasons:
        certificate = certify(job_id, snapshot, result, sha256="0" * 64)
        read = Certificate.from_json(certificate.to_json())
        assert check(read, snapshot)
        assert not check(replace(read, code="held-by-nobody"), snapshot)
        assert not check(replace(read, round_number=2), snapshot)
        if read.kind == "count":
            facts = read.facts
            assert sum(facts["held"].values()) <= facts["in_use"] <= facts["guaranteed"]
            # The sentence and the facts are one count, after the starts of the round.
            assert f"{facts['in_use']} of its {facts['guaranteed']} devices are" in read.text
        if read.kind == "cap":
            forged = {**read.facts, "wants": read.facts["wants"] - 1}
            assert not check(replace(read, facts=forged), snapshot)


def two_types() -> ClusterSnapshot:
    """A guarantee of a node of each of two types; jobs want 4 of b, 3 of a, and then 4 of a."""
    quotas = tuple(
        Quota(chain=chain, level=level, count=1)
        for chain, level in (("a-rack", "a-node"), ("b-node", "b-node"))
    )
    vc = VcFacts(id=1, name="v1", tenant=1, policy="fifo", policy_args={})
    queued = tuple(
        QueuedJob(
            id=number,
            vc=1,
            tenant=1,
            owner=1,
            owner_name="alice",
            priority=10,
            job_class=JobClass.GUARANTEED,
            demand=Demand(
                members=(
                    MemberDemand(role="worker", count=1, devices=devices, device_types=(kind,)),
                )
            ),
            submitted=float(number),
        )
        for number, (devices, kind) in enumerate(((4, "b"), (3, "a"), (4, "a")), start=1)
    )
    node: dict[str, Any] = {"placeable": True, "healthy": True, "has_docker": True}
    return ClusterSnapshot(
        now=1000.0,
        round_number=1,
        round_seconds=10.0,
        seed=1,
        topology_version=1,
        spec=replace(SPEC, virtual_clusters={"v1": VcSpec(quotas=quotas)}),
        vcs=(vc,),
        nodes=tuple(
            NodeFacts(name=name, cpus_per_device=4.0, memory_per_device=8, **node)
            for name in ("a0", "a1", "b0")
        ),
        queued=queued,
        holding=(),
        known={},
    )


@pytest.mark.parametrize("is_settled", [False, True])
def test_devices_of_other_types_are_not_counted(is_settled: bool) -> None:
    snapshot = settled(two_types())[0] if is_settled else two_types()

    certificate = certify(3, snapshot, decide(snapshot), sha256="0" * 64)

    assert certificate.kind == "count"
    assert certificate.facts == {"wants": 4, "guaranteed": 4, "held": {"2": 3}, "in_use": 3}
    assert check(certificate, snapshot)


def test_a_document_that_is_no_certificate_is_refused() -> None:
    with pytest.raises(CertificateError, match="version 2"):
        Certificate.from_json({"version": 2})
    with pytest.raises(CertificateError, match="not a certificate"):
        Certificate.from_json({"version": 1, "job": "x"})


def asking(number: int, devices: int, **columns: Any) -> QueuedJob:
    """A job of v1 for devices of type a."""
    member = MemberDemand(role="worker", count=1, devices=devices, device_types=("a",))
    first = two_types().queued[0]
    return replace(
        first, id=number, demand=Demand(members=(member,)), submitted=float(number), **columns
    )


def test_a_sentence_counts_the_starts_of_its_round_and_drops_what_they_outdated() -> None:
    # The first takes 3 of 4; the second wants 4 and is tried before the third takes the last one.
    snapshot = replace(
        two_types(), queued=(asking(1, 3), asking(2, 4), asking(3, 1)), round_number=272
    )

    result = decide(snapshot)
    reason = result.reasons[2]
    certificate = certify(2, snapshot, result, sha256="0" * 64)

    assert {start.job_id for start in result.starts} == {1, 3}
    assert "4 of its 4 devices are in use" in reason.text
    assert certificate.facts["in_use"] == sum(certificate.facts["held"].values()) == 4
    assert reason.free == 0
    assert not [step for step in reason.unblock if "fits now" in english(step)]
    assert check(certificate, snapshot)
