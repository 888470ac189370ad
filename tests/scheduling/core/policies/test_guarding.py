"""A policy that fails, hangs or plans what cannot be costs its own round and nothing else."""

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from scheduling.core.policies.base import guarded_plan
from scheduling.core.policies.plans import (
    AllocationChange,
    IllegalPlanError,
    check_plan,
    keep_running,
    settle,
    steps,
)
from scheduling.core.policy_interface import Alloc, JobPhase, Part, Plan, Share, TypeInfo
from scheduling.core.reasons import Reason
from tessera.messages import plain
from tessera.reasons import ReasonCode
from tests.factories.policies import Described
from tests.strategies.policy_views import make_job, make_view

RUNNING = make_job(1, 2, phase=JobPhase.RUNNING)
WAITING = make_job(2, 2)
VIEW = make_view([RUNNING, WAITING], {"a": 4, "b": 2})


@dataclass(frozen=True, slots=True)
class Returns(Described):
    """A policy that returns what it is told to."""

    name: ClassVar[str] = "returns"
    answer: Plan

    def plan(self, snapshot, state):
        return self.answer, {"seen": True}


def given(job_id, n, kind="a", **more):
    return {job_id: Alloc(parts=(Part(n=n, type=kind),), **more)}


ILLEGAL = {
    "more than there is": given(1, 2) | given(2, 2) | {},
    "half a gang": given(1, 2) | given(2, 1),
    "a stranger": given(1, 2) | given(9, 1),
    "an unknown type": given(1, 2) | given(2, 2, "z"),
    "an empty part": {1: Alloc(parts=())},
    "a share of a job that shares nothing": given(2, 2, share=Share(fraction=0.5)),
}


@pytest.mark.parametrize("allocs", ILLEGAL.values(), ids=ILLEGAL)
def test_an_illegal_plan_is_replaced_and_said_to_be(allocs):
    view = make_view(VIEW.jobs, {"a": 3, "b": 2})

    plan, state, fault = guarded_plan(Returns(Plan(allocs=allocs, order=())), view, {"mine": 1})

    assert plan == keep_running(view)
    assert state == {"mine": 1}
    assert fault is not None
    assert fault.startswith("policy returns returned an illegal plan: ")
    assert settle(view, plan)[1] == RUNNING.alloc


def test_a_legal_plan_passes_with_its_state():
    answer = Plan(allocs=given(1, 2) | given(2, 2), order=(2,))

    assert guarded_plan(Returns(answer), VIEW, {}) == (answer, {"seen": True}, None)


def test_a_policy_that_raises_is_replaced():
    class Raises(Described):
        name = "raises"

        def plan(self, snapshot, state):
            raise ZeroDivisionError("by nothing")

    plan, _state, fault = guarded_plan(Raises(), VIEW, {})

    assert plan == keep_running(VIEW)
    assert fault is not None
    assert "failed with ZeroDivisionError: by nothing; running jobs keep their devices" in fault


def test_a_policy_that_hangs_is_ended_by_the_drivers_limit():
    class Hangs(Described):
        name = "hangs"
        over: float

        def plan(self, snapshot, state):
            end = time.monotonic() + 30.0
            while time.monotonic() < end:
                self.limit()

        def limit(self):
            if time.monotonic() > self.over:
                raise TimeoutError

    policy = Hangs()

    @contextmanager
    def limit():
        policy.over = time.monotonic() + 0.05
        yield

    plan, _state, fault = guarded_plan(policy, VIEW, {}, limit=limit)

    assert plan == keep_running(VIEW)
    assert fault == "policy hangs took too long; running jobs keep their devices"


def test_devices_of_a_job_that_cannot_be_preempted_are_not_taken():
    pinned = replace(RUNNING, terms=replace(RUNNING.terms, preemptible=False))
    view = make_view([pinned, WAITING], {"a": 4})

    with pytest.raises(IllegalPlanError, match="job 1 is running and cannot be preempted"):
        check_plan(view, Plan(allocs=given(2, 2), order=(2,)))


def test_jobs_that_share_a_device_get_no_more_memory_than_it_has():
    jobs = [make_job(job_id, shareable=True) for job_id in (1, 2)]
    view = make_view(jobs, {"a": 1})
    small = TypeInfo(nodes=1, node_devices=1, memory=16)
    view = replace(view, pool=replace(view.pool, types={"a": small}))

    def plan(group, *caps):
        shares = [Share(fraction=0.5, memory_cap=cap, group=group) for cap in caps]
        allocs = given(1, 1, share=shares[0]) | given(2, 1, share=shares[1])
        return Plan(allocs=allocs, order=())

    check_plan(view, plan("pair", 8, 8))
    check_plan(view, plan(None, 16, 16))
    with pytest.raises(
        IllegalPlanError, match=r"a device of a would provide 17 bytes .* it has 16"
    ):
        check_plan(view, plan("pair", 8, 9))
    with pytest.raises(IllegalPlanError, match="would provide 17 bytes"):
        check_plan(view, plan(None, 17, 1))


def test_an_offer_is_tried_in_order_until_a_strict_queue_meets_one_that_does_not_fit():
    jobs = [RUNNING, make_job(2, 4), make_job(3, 1)]
    view = make_view(jobs, {"a": 3})
    allocs = given(1, 2) | given(2, 4) | given(3, 1)

    passing = settle(view, Plan(allocs=allocs, order=(2, 3), offer=True))
    strict = settle(view, Plan(allocs=allocs, order=(2, 3), offer=True, strict=True))

    assert set(passing) == {1, 3}
    assert set(strict) == {1}


def test_a_plan_is_split_into_what_has_to_happen():
    jobs = [
        make_job(1, 2, phase=JobPhase.RUNNING),
        make_job(2, 2, phase=JobPhase.RUNNING),
        make_job(3, 1),
        make_job(4, 1),
        make_job(5, 1, phase=JobPhase.LEAVING),
    ]
    view = make_view(jobs, {"a": 8, "b": 4})
    no = Reason(code=ReasonCode.DEADLINE_INFEASIBLE, message=plain("It cannot be done in time."))
    plan = Plan(allocs=given(1, 2, "b") | given(3, 1), order=(3,), reject={4: no})

    found = {step.job_id: step.change for step in steps(view, plan)}

    assert found == {
        1: AllocationChange.MIGRATE,
        2: AllocationChange.SUSPEND,
        3: AllocationChange.START,
        4: AllocationChange.REJECT,
    }
