"""What a waiting job can change so that it starts now."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.core.explanations.trials import Trials
from scheduling.core.explanations.unblocking import Sought, seek
from scheduling.core.explanations.variants import OwnerOptions
from scheduling.core.jobspec import Demand, JobClass, MemberDemand
from scheduling.core.reasons import Reason
from scheduling.core.values import ClusterSnapshot, QueuedJob, VcFacts
from tessera.messages import plain
from tessera.reasons import ReasonCode
from tests.factories.rounds import ONE_DEVICE_JOB
from tests.strategies.waiting_clusters import PolicyOf, clusters, patched, settled, sought, started

QUEUEING: tuple[PolicyOf, ...] = (
    ("backfill", {}),
    ("capacity", {}),
    ("drf", {}),
    ("fair", {}),
    ("tiresias", {}),
    ("tessera", {}),
)
"""Kinds of policies that weigh the waiting jobs against one another."""


HOME = VcFacts(id=1, name="v1", tenant=1, policy="fifo")
REFUSED = Reason(code=ReasonCode.NO_CELL_OF_LEVEL, message=plain("Not together."))


def check_first_steps(snapshot: ClusterSnapshot) -> None:
    snapshot, reasons, moving = settled(snapshot)

    for job, found in sought(snapshot, reasons, moving):
        for step in found.steps[:1]:
            changed = patched(job, step, snapshot)
            assert started(snapshot, changed), (step, reasons[job.id])
        code: ReasonCode | None = reasons[job.id].code
        assert code is not None
        if code.row.is_gate:
            opened = replace(job, held=False, after=(), after_failed=(), not_before=None)
            refusal = Trials(snapshot, moving).refusal(opened)
            code = refusal.code if refusal is not None else None
        if code is None or not code.row.only_time_helps:
            assert found.steps or found.proof, (job, reasons[job.id])


def check_proofs(snapshot: ClusterSnapshot) -> None:
    """Where nothing is found, no job of the owner starts whatever it asks for."""
    snapshot, reasons, moving = settled(snapshot)

    for job, found in sought(snapshot, reasons, moving):
        if not found.proof:
            continue
        least = MemberDemand(role="worker", count=1, devices=1)
        for vc in snapshot.vcs:
            for job_class in JobClass:
                changed = replace(
                    job,
                    held=False,
                    after=(),
                    after_failed=(),
                    not_before=None,
                    vc=vc.id,
                    job_class=job_class,
                    priority=-1 if job_class is JobClass.OPPORTUNISTIC else job.priority,
                    demand=Demand(members=(least,)),
                )
                if vc.tenant != job.tenant or job.job_class is JobClass.OPPORTUNISTIC:
                    continue
                assert not started(snapshot, changed)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters())
def test_a_job_starts_in_the_next_round_after_its_first_step(snapshot: ClusterSnapshot) -> None:
    check_first_steps(snapshot)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters())
def test_where_no_step_is_found_not_even_one_device_starts(snapshot: ClusterSnapshot) -> None:
    check_proofs(snapshot)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters(QUEUEING))
def test_steps_and_proofs_hold_under_policies_that_weigh_jobs(snapshot: ClusterSnapshot) -> None:
    check_first_steps(snapshot)
    check_proofs(snapshot)


@pytest.mark.soak
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(clusters())
def test_steps_and_proofs_hold_on_thousands_of_clusters(snapshot: ClusterSnapshot) -> None:
    check_first_steps(snapshot)
    check_proofs(snapshot)


@pytest.mark.soak
@pytest.mark.parametrize(
    "policy", [*QUEUEING, ("optimus", {}), ("sia", {})], ids=lambda one: one[0]
)
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_steps_and_proofs_hold_under_each_policy(policy: PolicyOf, data: st.DataObject) -> None:
    snapshot = data.draw(clusters([policy, ("fifo", {})]))

    check_first_steps(snapshot)
    check_proofs(snapshot)


@pytest.mark.parametrize(
    ("wanted", "room", "said"), [(8, 7, 7), (6, 4, 4), (8, 4, 4), (32, 30, 30), (2, 1, 1)]
)
@pytest.mark.parametrize("kind", ["devices", "instances"])
def test_no_more_is_given_up_than_has_to_be(kind: str, wanted: int, room: int, said: int) -> None:
    member = MemberDemand(role="worker", count=1, devices=1)
    attribute = {"devices": "devices", "instances": "count"}[kind]
    asked: dict[str, Any] = {attribute: wanted}
    job = replace(ONE_DEVICE_JOB, demand=Demand(members=(replace(member, **asked),)))
    tried = []

    def refusal(changed: QueuedJob) -> Reason | None:
        asked = getattr(changed.demand.members[0], attribute)
        tried.append(asked)
        is_smaller = changed.job_class is job.job_class and asked < wanted
        return None if is_smaller and asked <= room else REFUSED

    found = seek(job, REFUSED, OwnerOptions(home=HOME), refusal)

    assert [step.changes for step in found.steps] == [{f"roles.worker.{kind}": said}]
    assert len(tried) <= 8


def test_a_job_whose_victims_are_leaving_is_told_nothing_else() -> None:
    reason = Reason(
        code=ReasonCode.WAITING_VICTIM_CHECKPOINT, message=plain("It starts when they left.")
    )

    found = seek(ONE_DEVICE_JOB, reason, OwnerOptions(home=HOME), lambda _: None)

    assert found == Sought()


def test_what_was_found_when_time_runs_out_begins_with_the_mildest_too() -> None:
    member = MemberDemand(role="worker", count=1, devices=8)
    job = replace(ONE_DEVICE_JOB, demand=Demand(members=(member,)))
    other = replace(HOME, id=2, name="v2")
    answers = iter((True, True, False))

    found = seek(
        job,
        REFUSED,
        OwnerOptions(home=HOME, clusters=[other]),
        lambda _: None,
        go_on=lambda: next(answers),
    )

    assert [step.kind for step in found.steps] == ["virtual_cluster", "class"]
    assert not found.is_whole
