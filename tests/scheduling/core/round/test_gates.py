"""What keeps a job from being considered at all."""

from dataclasses import replace
from typing import Any

import pytest

from scheduling.core.round.gates import closed_gate, next_opening, seconds_closed
from tessera.reasons import ReasonCode
from tests.factories.rounds import ONE_DEVICE_JOB

NOW = 1_000.0


def test_a_plain_job_is_considered():
    assert closed_gate(ONE_DEVICE_JOB, NOW) is None


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"held": True}, ReasonCode.HELD, "on hold"),
        ({"held": True, "turn_of": 1}, ReasonCode.HELD, "at most 1 job runs"),
        ({"held": True, "turn_of": 4}, ReasonCode.HELD, "at most 4 jobs run"),
        ({"after": (4,)}, ReasonCode.AFTER_JOB, "depends on job 4"),
        ({"after": (4, 5)}, ReasonCode.AFTER_JOB, "jobs 4, 5"),
        ({"after_failed": (4,)}, ReasonCode.AFTER_JOB, "never starts"),
        ({"not_before": NOW + 1}, ReasonCode.NOT_BEFORE, "start: 01 Jan 1970 00:16:41 UTC"),
        ({"backoff_until": NOW + 1}, ReasonCode.BACKOFF_AFTER_FAILURE, "due at 01 Jan 1970"),
    ],
)
def test_each_gate_says_its_code_and_why(change, code, words):
    reason = closed_gate(replace(ONE_DEVICE_JOB, **change), NOW)

    assert reason is not None
    assert reason.code is code
    assert words in reason.text


@pytest.mark.parametrize("gate", ["not_before", "backoff_until"])
def test_a_gate_of_time_is_open_at_its_instant(gate):
    opens: dict[str, Any] = {gate: NOW}
    assert closed_gate(replace(ONE_DEVICE_JOB, **opens), NOW) is None


def test_the_next_opening_is_the_last_gate_of_time():
    job = replace(ONE_DEVICE_JOB, not_before=NOW + 5, backoff_until=NOW + 9)

    assert next_opening(job, NOW) == NOW + 9
    assert next_opening(job, NOW + 9) is None


def test_gates_of_jobs_before_it_count_and_circles_end():
    first = replace(ONE_DEVICE_JOB, id=1, not_before=NOW + 400, after=(3,))
    second = replace(ONE_DEVICE_JOB, id=2, after=(1,))
    third = replace(ONE_DEVICE_JOB, id=3, backoff_until=NOW + 800, after=(2,))
    waiting = {job.id: job for job in (first, second, third)}

    assert seconds_closed(second, NOW, waiting) == 800.0
    assert seconds_closed(first, NOW) == 400.0
    assert seconds_closed(second, NOW) == 0.0
