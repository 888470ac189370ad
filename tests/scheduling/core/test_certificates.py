"""Certificates of reasons hold on their snapshot, and on no other."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from scheduling.core.certificates import Certificate, CertificateError, certify, check
from scheduling.core.rounds import decide
from scheduling.core.values import ClusterSnapshot
from tests.scheduling.core.test_unblocking import clusters


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
        if read.kind == "cap":
            forged = {**read.facts, "wants": read.facts["wants"] - 1}
            assert not check(replace(read, facts=forged), snapshot)


def test_a_document_that_is_no_certificate_is_refused() -> None:
    with pytest.raises(CertificateError, match="version 2"):
        Certificate.from_json({"version": 2})
    with pytest.raises(CertificateError, match="not a certificate"):
        Certificate.from_json({"version": 1, "job": "x"})
