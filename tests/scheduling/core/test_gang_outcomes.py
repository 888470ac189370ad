"""When a gang has succeeded or failed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.gang_outcomes import MemberEnd, MemberFate, judge
from scheduling.core.jobspec import Completion
from scheduling.core.lifecycle import FailureClass

OPEN, OK, BAD, STOPPED = MemberEnd.OPEN, MemberEnd.SUCCEEDED, MemberEnd.FAILED, MemberEnd.STOPPED


def gang(*ends: MemberEnd, role: str = "worker") -> list[MemberFate]:
    return [
        MemberFate(
            role=role,
            order=order,
            end=end,
            ended=float(10 - order),
            exit_code=0 if end is OK else 7 + order if end is BAD else None,
            failure=FailureClass.USER if end is BAD else None,
        )
        for order, end in enumerate(ends)
    ]


def rules(min_failed: int = 1, min_succeeded: int = -1) -> dict[str, Completion]:
    return {"worker": Completion(min_failed=min_failed, min_succeeded=min_succeeded)}


@pytest.mark.parametrize(
    ("ends", "rule", "expected"),
    [
        ((OK, OPEN), rules(), None),
        ((OK, OK), rules(), True),
        ((OPEN, BAD), rules(), False),
        ((OK, BAD), rules(), False),
        ((BAD, OPEN), rules(min_failed=2), None),
        ((BAD, BAD, OPEN), rules(min_failed=2), False),
        ((BAD, OK), rules(min_failed=2), True),
        ((BAD, BAD), rules(min_failed=-1), True),
        ((OK, OPEN), rules(min_succeeded=1), True),
        ((BAD, OK, OPEN), rules(min_failed=2, min_succeeded=1), True),
        ((STOPPED, OK), rules(), None),
        ((STOPPED, STOPPED), rules(), None),
    ],
)
def test_the_rules_of_a_role_decide(ends, rule, expected):
    verdict = judge(gang(*ends), rule)

    assert (verdict.succeeded if verdict else None) is expected


def test_the_failure_that_came_first_gives_the_exit_code():
    # The member of the highest order ended first.
    verdict = judge(gang(BAD, BAD, BAD), rules())

    assert verdict is not None
    assert verdict.exit_code == 9
    assert verdict.failure is FailureClass.USER


def test_a_role_that_completes_ends_the_gang_while_another_still_runs():
    members = gang(OK, role="master") + gang(OPEN, OPEN)
    completion = {"master": Completion(min_succeeded=1), **rules()}

    verdict = judge(members, completion)

    assert verdict is not None
    assert verdict.succeeded


@given(
    ends=st.lists(st.sampled_from([OPEN, OK, BAD, STOPPED]), min_size=1, max_size=6),
    min_failed=st.integers(-1, 3).filter(bool),
    min_succeeded=st.integers(-1, 3).filter(bool),
)
def test_a_verdict_once_given_is_not_taken_back_by_later_ends(ends, min_failed, min_succeeded):
    rule = rules(min_failed, min_succeeded)
    verdict = judge(gang(*ends), rule)
    if verdict is None or verdict.succeeded:
        return

    later = [
        MemberFate(
            role=f.role,
            order=f.order,
            end=OK if f.end is OPEN else f.end,
            ended=f.ended if f.end is not OPEN else 99.0,
            exit_code=f.exit_code,
            failure=f.failure,
        )
        for f in gang(*ends)
    ]

    assert judge(later, rule) == verdict


def test_a_gang_that_succeeds_has_exit_code_zero() -> None:
    outcome = judge(gang(OK, OK), rules())

    assert outcome is not None
    assert (outcome.succeeded, outcome.exit_code, outcome.failure) == (True, 0, None)
