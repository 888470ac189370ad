"""The job's state machine, walked as a whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.lifecycle import (
    HOLDING,
    LIVE,
    TERMINAL,
    TRANSITIONS,
    IllegalTransitionError,
    JobEventKind,
    JobState,
    next_state,
)


def reachable(start: JobState) -> set[JobState]:
    seen, frontier = {start}, [start]
    while frontier:
        here = frontier.pop()
        for (state, _), after in TRANSITIONS.items():
            if state is here and after not in seen:
                seen.add(after)
                frontier.append(after)
    return seen


def test_every_state_is_live_or_over_and_never_both():
    assert set(JobState) == LIVE | TERMINAL
    assert not LIVE & TERMINAL
    assert HOLDING < LIVE


@pytest.mark.parametrize("state", sorted(LIVE))
def test_every_live_state_can_come_to_every_end(state):
    assert reachable(state) >= TERMINAL


def test_every_state_can_be_reached_from_the_queue():
    assert reachable(JobState.QUEUED) == set(JobState)


@pytest.mark.parametrize("state", sorted(TERMINAL))
@pytest.mark.parametrize("event", list(JobEventKind))
def test_nothing_leaves_an_end(state, event):
    with pytest.raises(IllegalTransitionError) as caught:
        next_state(state, event)

    assert (caught.value.state, caught.value.event) == (state, event)


def test_a_stopped_job_never_runs_again():
    assert reachable(JobState.STOPPING) == {JobState.STOPPING} | TERMINAL


@pytest.mark.parametrize("state", sorted(HOLDING - {JobState.STOPPING}))
def test_whoever_holds_devices_can_be_stopped(state):
    assert next_state(state, JobEventKind.STOP) is JobState.STOPPING


@given(st.lists(st.sampled_from(list(JobEventKind)), max_size=60))
def test_any_sequence_of_events_keeps_to_the_table(events):
    state = JobState.QUEUED
    for event in events:
        try:
            after = next_state(state, event)
        except IllegalTransitionError:
            continue
        assert (state, event) in TRANSITIONS
        assert state not in TERMINAL
        state = after
