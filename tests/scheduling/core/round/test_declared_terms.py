"""What the owner has declared, as policies read it."""

import pytest

from scheduling.core.jobspec import Demand, MemberDemand, parse
from scheduling.core.policy_interface import Kind
from scheduling.core.round.declared_terms import read_terms, terms_document

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


@pytest.mark.parametrize(("preempted", "preemptible"), [(0, False), (1, True), (None, True)])
def test_a_job_without_retries_after_a_preemption_is_not_preempted_by_choice(
    preempted: int | None, preemptible: bool
) -> None:
    document = {
        "name": "train",
        "virtual_cluster": "vision-a",
        "roles": {"worker": {"instances": 1, "devices": 4, "command": "python train.py"}},
    }
    if preempted is not None:
        document["retries"] = {"preempted": preempted}

    terms = read_terms(terms_document(parse(document), 4), DEMAND, 1)

    assert terms.preemptible is preemptible
    assert terms.executors == 1
