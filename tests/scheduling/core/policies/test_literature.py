"""What must hold of the policies of the literature on any view."""

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.jobspec import JobClass
from scheduling.core.policies import POLICIES, make_policy
from scheduling.core.policies.plans import check_plan, settle
from scheduling.core.policy_interface import JobPhase
from tests.strategies.policy_views import applied, views

VARIANTS = [
    ("antman", {}),
    ("antman", {"strict": True}),
    ("backfill", {}),
    ("backfill", {"reservations": "all"}),
    ("capacity", {}),
    ("capacity", {"preempt": True, "most_preempted": 1.0}),
    ("capacity", {"strict": True}),
    ("drf", {}),
    ("drf", {"preempt": True}),
    ("fair", {}),
    ("fair", {"preempt": True}),
    ("philly", {}),
    ("srtf", {}),
    ("srsf", {"strict": True}),
    ("singularity", {}),
    ("gandiva", {}),
    ("gandiva", {"packing": True, "grow_after": 0.0}),
    ("easyscale", {}),
    ("easyscale", {"mix": False}),
    ("elasticflow", {}),
    ("elasticflow", {"reject": False, "slack": 1.1}),
    ("gavel", {}),
    ("gavel", {"objective": "fifo", "sharing": True}),
    ("gavel", {"objective": "makespan", "aware": False}),
    ("gavel", {"objective": "finish-time"}),
    ("gavel", {"objective": "throughput", "relative": False}),
    ("gavel", {"objective": "slo"}),
    ("gavel", {"objective": "cost", "sharing": True}),
    ("gavel", {"objective": "hierarchical"}),
    ("gavel", {"objective": "hierarchical", "within": "fifo", "sharing": True}),
]
LABELS = [f"{name} {args}" for name, args in VARIANTS]


@pytest.mark.parametrize(("name", "args"), VARIANTS, ids=LABELS)
@settings(max_examples=12, deadline=None)
@given(view=views(), seed=st.integers(0, 5))
def test_a_plan_is_legal_and_depends_on_nothing_but_the_view(name, args, view, seed):
    policy = make_policy(name, args)

    plan, state = policy.plan(view, {})

    check_plan(view, plan)
    shuffled = random.Random(seed).sample(view.jobs, len(view.jobs))
    assert policy.plan(replace(view, jobs=tuple(shuffled)), {}) == (plan, state)
    assert json.loads(json.dumps(state)) == state
    for job in view.jobs:
        if job.phase is JobPhase.QUEUED and job.id not in plan.order:
            assert plan.why.get(job.id) or job.id in plan.reject
    if not plan.offer:
        used = Counter(
            part.type
            for job in view.jobs
            if job.id in plan.allocs and job.job_class is JobClass.GUARANTEED
            for part in plan.allocs[job.id].parts
            for _ in range(part.n)
            if plan.allocs[job.id].share is None
        )
        assert all(n <= view.capacity[kind] for kind, n in used.items())


@pytest.mark.parametrize(("name", "args"), VARIANTS, ids=LABELS)
@settings(max_examples=12, deadline=None)
@given(view=views())
def test_a_plan_that_has_come_true_is_planned_again(name, args, view):
    policy = make_policy(name, args)
    plan, state = policy.plan(view, {})
    after = applied(view, plan)

    again, _ = policy.plan(after, state)

    # To take from some for others is a step at a time, and pins move who may be taken from.
    if policy.stateless and not args.get("preempt"):
        assert settle(after, again) == settle(view, plan)


@pytest.mark.parametrize(("name", "args"), VARIANTS, ids=LABELS)
@settings(max_examples=5, deadline=None)
@given(view=views())
def test_its_own_state_can_be_kept_and_read_back(name, args, view):
    policy = make_policy(name, args)
    _, state = policy.plan(view, {})
    later = replace(view, now=view.now + 60.0)

    assert policy.plan(later, state) == policy.plan(later, json.loads(json.dumps(state)))


@pytest.mark.parametrize("name", sorted({name for name, _ in VARIANTS}))
def test_every_parameter_has_words_and_a_default_that_it_allows(name):
    from scheduling.core.policies import parameters_of

    for item in parameters_of(POLICIES[name]):
        assert item.text
        assert item.check(item.default) == item.default
