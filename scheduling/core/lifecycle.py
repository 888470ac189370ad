"""The states of a job, its events, and the table of transitions."""

from enum import StrEnum
from types import MappingProxyType
from typing import Final

from scheduling.core.messages import sentence
from tessera.messages import plain


class JobState(StrEnum):
    """State of a job. These names are public (REST, CLI, docs) and never change."""

    QUEUED = "queued"
    ADMITTED = "admitted"
    STARTING = "starting"
    RUNNING = "running"
    SUSPECT = "suspect"
    PREEMPTING = "preempting"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class JobEventKind(StrEnum):
    """Events of a job; exactly one place in the code reports each of them."""

    ADMIT = "admit"
    DISPATCH = "dispatch"
    ALL_RUNNING = "all-running"
    CONTACT_LOST = "contact-lost"
    CONTACT_BACK = "contact-back"
    PREEMPT = "preempt"
    STOP = "stop"
    SUCCEED = "succeed"
    FAIL = "fail"
    RETRY = "retry"
    RELEASED = "released"


TERMINAL: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED})
HOLDING: Final = frozenset(
    {
        JobState.ADMITTED,
        JobState.STARTING,
        JobState.RUNNING,
        JobState.SUSPECT,
        JobState.PREEMPTING,
        JobState.STOPPING,
    }
)
LIVE: Final = HOLDING | {JobState.QUEUED}


class FailureClass(StrEnum):
    """Classes of failures by fault; retries are granted by class."""

    USER = "user"
    RESOURCE_LIMIT = "resource-limit"
    NODE = "node"
    IMAGE = "image"
    PREEMPTED = "preempted"
    TIMEOUT = "timeout"
    PLATFORM = "platform"


class PreemptionRule(StrEnum):
    """Rule by which a job was preempted."""

    INTER_VC = "inter-vc"
    INTRA_VC = "intra-vc"
    OPPORTUNISTIC = "opportunistic"
    POLICY = "policy"
    RESIZE = "resize"
    MOVE = "move"
    REVERT = "revert"
    DRAIN = "drain"


class EndReason(StrEnum):
    """Reason for the end of an attempt: by itself, by a person or rule, or by eviction."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    PREEMPTED = "preempted"
    RESIZED = "resized"
    MOVED = "moved"
    REVERTED = "reverted"
    DRAINED = "drained"


EVICTED: Final = frozenset(
    {
        EndReason.PREEMPTED,
        EndReason.RESIZED,
        EndReason.MOVED,
        EndReason.REVERTED,
        EndReason.DRAINED,
    }
)
_REASON_OF_RULE: Final = MappingProxyType(
    {
        PreemptionRule.RESIZE: EndReason.RESIZED,
        PreemptionRule.MOVE: EndReason.MOVED,
        PreemptionRule.REVERT: EndReason.REVERTED,
        PreemptionRule.DRAIN: EndReason.DRAINED,
    }
)


def end_reason(*, outcome: str, failure_class: str, evicted_by: str | None) -> EndReason:
    """Return the reason for the end of an attempt.

    The preemption receipt decides, not the exit code: a job that saves its work and leaves in time
    exits like a job that a person stopped. Only a job that succeeded before its eviction retains
    its own outcome.

    Args:
        outcome: succeeded, failed or stopped; empty counts as stopped.
        failure_class: failure class of a failed attempt; else empty.
        evicted_by: the ``PreemptionRule`` of its eviction; None if not evicted.
    """
    if outcome == EndReason.SUCCEEDED:
        return EndReason.SUCCEEDED
    if evicted_by:
        return _REASON_OF_RULE.get(PreemptionRule(evicted_by), EndReason.PREEMPTED)
    if failure_class == FailureClass.PREEMPTED:
        return EndReason.PREEMPTED
    return EndReason.FAILED if outcome == EndReason.FAILED else EndReason.STOPPED


def end_sentence(reason: EndReason, *, saved: bool, step: int | None) -> str:
    """Describe the end of an attempt: ``Preempted, checkpoint at step 1,234``.

    Args:
        reason: reason of the end.
        saved: whether an evicted attempt saved a checkpoint.
        step: step of that checkpoint, if the job reports steps.
    """
    word = reason.value.capitalize()
    if reason not in EVICTED:
        return word
    if not saved:
        return sentence("ended-unsaved", reason=plain(word))
    if step is None:
        return sentence("ended-saved", reason=plain(word))
    return sentence("ended-at-step", reason=plain(word), step=f"{step:,}")


_S, _E = JobState, JobEventKind

TRANSITIONS: Final = MappingProxyType(
    {
        (_S.QUEUED, _E.ADMIT): _S.ADMITTED,
        (_S.QUEUED, _E.STOP): _S.STOPPED,
        (_S.QUEUED, _E.FAIL): _S.FAILED,
        (_S.ADMITTED, _E.DISPATCH): _S.STARTING,
        (_S.STARTING, _E.ALL_RUNNING): _S.RUNNING,
        (_S.RUNNING, _E.CONTACT_LOST): _S.SUSPECT,
        (_S.SUSPECT, _E.CONTACT_BACK): _S.RUNNING,
        (_S.STOPPING, _E.RELEASED): _S.STOPPED,
        # Stopping is a decision that was taken before the exit code was known; a job that ended by
        # itself in the meantime retains its own end.
        (_S.STOPPING, _E.SUCCEED): _S.SUCCEEDED,
        (_S.STOPPING, _E.FAIL): _S.FAILED,
        (_S.PREEMPTING, _E.RELEASED): _S.QUEUED,
        (_S.PREEMPTING, _E.SUCCEED): _S.SUCCEEDED,
        (_S.PREEMPTING, _E.FAIL): _S.FAILED,
        (_S.PREEMPTING, _E.STOP): _S.STOPPING,
        **{
            (held, event): after
            for held in (_S.ADMITTED, _S.STARTING, _S.RUNNING, _S.SUSPECT)
            for event, after in (
                (_E.STOP, _S.STOPPING),
                (_E.PREEMPT, _S.PREEMPTING),
                (_E.SUCCEED, _S.SUCCEEDED),
                (_E.FAIL, _S.FAILED),
                (_E.RETRY, _S.QUEUED),
            )
        },
    }
)


class IllegalTransitionError(Exception):
    """The job's state does not allow this event; nothing was written.

    Attributes:
        state: state of the job.
        event: the reported event.
    """

    def __init__(self, state: JobState, event: JobEventKind) -> None:
        super().__init__(f"event {event} is not allowed for a job in state {state}")
        self.state = state
        self.event = event


def next_state(state: JobState, event: JobEventKind) -> JobState:
    """Return the state after ``event`` in ``state``.

    Raises:
        IllegalTransitionError: the table has no such row.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransitionError(state, event) from None
