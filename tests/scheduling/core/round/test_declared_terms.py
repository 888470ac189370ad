"""What the owner has declared, as policies read it."""

import pytest

from scheduling.core.jobspec import Demand, MemberDemand
from scheduling.core.policy_interface import Kind
from scheduling.core.round.declared_terms import read_terms

DEMAND = Demand(members=(MemberDemand(role="worker", count=1, devices=4),))


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({}, Kind.RIGID),
        ({"deadline": 5.0}, Kind.RIGID),
        ({"elastic": [1, 8]}, Kind.ELASTIC),
        ({"elastic": [1, 8], "batch": [32, 256, 64]}, Kind.ADAPTIVE),
    ],
)
def test_a_job_is_rigid_or_changes_its_size_or_its_batch_too(document, kind):
    assert read_terms(document, DEMAND, 1).kind is kind
