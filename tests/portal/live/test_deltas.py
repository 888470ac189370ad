"""Versions of a board: whoever applies the steps has the state, whatever was missed."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from portal.live.deltas import MOST_BYTES, Ledger, Step, frames

KEYS = st.sampled_from(["a", "b", "c", "node:1"])
STATES = st.lists(st.dictionaries(KEYS, st.integers(0, 2)), min_size=1, max_size=12)


def apply(known, step):
    state = {} if step.base is None else dict(known)
    for key, value in step.changes.items():
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
    return state


@given(states=STATES, looks=st.sets(st.integers(0, 11)), kept=st.integers(1, 4))
@settings(max_examples=60)
def test_a_follower_that_looks_now_and_then_has_the_newest_state_each_time(states, looks, kept):
    ledger = Ledger(kept=kept)
    version, state = None, {}
    for number, parts in enumerate(states):
        ledger.put(parts, version=number + 1)
        if number in looks:
            step = ledger.step_from(version)
            if step is not None:
                version, state = step.version, apply(state, step)

            assert state == parts
            assert version == ledger.version


def test_an_unchanged_board_is_no_new_version():
    ledger = Ledger()
    assert ledger.put({"a": 1}, version=5)

    assert not ledger.put({"a": 1}, version=6)

    assert ledger.version == 5
    assert ledger.step_from(5) is None


def test_versions_rise_even_where_the_clock_goes_back():
    ledger = Ledger()
    ledger.put({"a": 1}, version=5)

    ledger.put({"a": 2}, version=3)

    assert ledger.version == 6


def test_who_names_a_version_of_another_process_gets_the_whole():
    ledger = Ledger()
    ledger.put({"a": 1}, version=5)
    ledger.put({"a": 1, "b": 2}, version=6)

    assert ledger.step_from(5) == Step(version=6, base=5, changes={"b": 2})
    assert ledger.step_from(4) == Step(version=6, base=None, changes={"a": 1, "b": 2})


def test_who_was_away_for_longer_than_versions_are_kept_gets_the_whole():
    ledger = Ledger(kept=2)
    for number in range(1, 6):
        ledger.put({"a": number}, version=number)

    assert ledger.step_from(3).base == 3
    assert ledger.step_from(2).base is None


@given(values=st.dictionaries(st.integers(0, 999).map("node:{}".format), st.text(max_size=30)))
@settings(max_examples=25)
def test_messages_are_small_and_together_say_everything(values):
    step = Step(version=9, base=8, changes=values)

    texts = frames("overview", step, pace=1.0, most=600)

    told = [json.loads(text) for text in texts]
    assert all(len(text.encode()) <= 600 for text in texts)
    assert {key: value for one in told for key, value in one["data"].items()} == values
    assert [one.get("more", False) for one in told] == [True] * (len(told) - 1) + [False]
    assert all((one["version"], one["base"]) == (9, 8) for one in told)


def test_the_whole_of_2000_devices_is_one_message():
    board = {f"node:{number}": "ready uuuuffff" for number in range(1, 251)}

    (text,) = frames("overview", Step(version=1, base=None, changes=board), pace=1.0)

    assert len(text) <= MOST_BYTES
