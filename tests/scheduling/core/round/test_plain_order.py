"""What rounds take short cuts for: the plain queue, and jobs that ask alike."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.jobspec import Demand
from scheduling.core.policies import make_policy
from scheduling.core.round.engine_setup import engine_for
from scheduling.core.round.placement import question_of
from scheduling.core.round.policy_answers import ask, orders_of, plain_order
from scheduling.core.round.vc_views import VirtualClusterViews
from tests.factories.rounds import VISION, cluster_snapshot, queued_job

JOBS = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 8]), st.sampled_from([0, 10]), st.integers(0, 2), st.booleans()
    ),
    max_size=8,
)


@given(shapes=JOBS, backfill=st.booleans())
def test_the_plain_queue_is_what_its_policy_would_say(shapes, backfill):
    queued = tuple(
        replace(
            queued_job(number, devices=devices, priority=priority, borrow=borrow),
            submitted=float(submitted),
        )
        for number, (devices, priority, submitted, borrow) in enumerate(shapes, 1)
    )
    vc = replace(VISION, policy_args={"backfill": backfill}, policy_state={"kept": 1})
    now = cluster_snapshot(*queued, vcs=(vc,))

    known = plain_order(vc, queued, make_policy)

    waiting = {queued_job.id: queued_job for queued_job in queued}
    view = VirtualClusterViews(now, engine_for(now)).plain(vc, queued)
    answer = ask(vc, view)
    orders = orders_of(view, answer.plan, waiting)
    assert known == (list(orders.tried), answer.plan.strict)
    assert (orders.leaving, orders.reasons, orders.rejected) == ({}, {}, {})
    assert (answer.state, answer.fault, answer.plan.wake) == (vc.policy_state, "", None)


def test_any_other_policy_is_asked_and_a_wrong_parameter_is_told():
    assert plain_order(replace(VISION, policy="srtf"), [], make_policy) is None
    assert plain_order(replace(VISION, policy_args={"nonsense": 1}), [], make_policy) is None


def test_jobs_ask_the_same_if_all_that_a_refusal_depends_on_is_equal():
    first = queued_job(1, devices=2)
    alike = replace(queued_job(2), demand=Demand(members=(replace(first.demand.members[0]),)))
    others = [
        queued_job(3, devices=4),
        queued_job(4, devices=2, priority=11),
        replace(queued_job(5, devices=2), excluded_nodes=("node-1",)),
        replace(queued_job(6, devices=2), vc=2),
    ]

    asked = question_of(first)

    assert alike.demand is not first.demand
    assert question_of(alike) == asked
    assert all(question_of(other) != asked for other in others)
