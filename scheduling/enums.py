"""Display names of the values that the core and the database share, and the reason codes."""

from enum import StrEnum

from django.db import models

from scheduling.core.lifecycle import FailureClass, JobState, PreemptionRule
from scheduling.core.messages import sentence


class JobStateChoice(models.TextChoices):
    """The core's job states with their display names."""

    QUEUED = JobState.QUEUED.value, "queued"
    ADMITTED = JobState.ADMITTED.value, "admitted"
    STARTING = JobState.STARTING.value, "starting"
    RUNNING = JobState.RUNNING.value, "running"
    SUSPECT = JobState.SUSPECT.value, "suspect"
    PREEMPTING = JobState.PREEMPTING.value, "preempting"
    STOPPING = JobState.STOPPING.value, "stopping"
    SUCCEEDED = JobState.SUCCEEDED.value, "succeeded"
    FAILED = JobState.FAILED.value, "failed"
    STOPPED = JobState.STOPPED.value, "stopped"


class FailureClassChoice(models.TextChoices):
    """The core's failure classes with their display names."""

    USER = FailureClass.USER.value, sentence("failure-user")
    RESOURCE_LIMIT = FailureClass.RESOURCE_LIMIT.value, sentence("failure-resource-limit")
    NODE = FailureClass.NODE.value, sentence("failure-node")
    IMAGE = FailureClass.IMAGE.value, sentence("failure-image")
    PREEMPTED = FailureClass.PREEMPTED.value, "preemption"
    TIMEOUT = FailureClass.TIMEOUT.value, sentence("failure-timeout")
    PLATFORM = FailureClass.PLATFORM.value, sentence("failure-platform")


class JobClass(models.TextChoices):
    """Guaranteed: on the guarantee of its VC; opportunistic: on idle devices of others."""

    GUARANTEED = "guaranteed", "guaranteed"
    OPPORTUNISTIC = "opportunistic", "opportunistic"


class NodeState(models.TextChoices):
    """Availability of a node; an unreachable node may still run its jobs."""

    READY = "ready", "ready"
    SUSPECT = "suspect", "suspect"
    DOWN = "down", "down"
    CORDONED = "cordoned", "cordoned"
    DRAINING = "draining", "draining"


class MemberStep(models.TextChoices):
    """Progress of one rank of an attempt on its node."""

    WAITING = "waiting", "waiting"
    PREPARING = "preparing", "preparing"
    PREPARED = "prepared", "prepared"
    STARTING = "starting", "starting"
    RUNNING = "running", "running"
    EXITED = "exited", "exited"
    RELEASED = "released", "released"


class CanaryState(models.TextChoices):
    """Progress of a device's return from quarantine."""

    DUE = "due", "waits for a canary job"
    FAILED = "failed", "its canary job failed"


class CanaryResult(models.TextChoices):
    """Result of a canary job."""

    PASSED = "passed", "passed"
    FAILED = "failed", "failed"
    UNTESTED = "untested", "could not run"


class StopCause(StrEnum):
    """Cause for stopping the members of an attempt; nodes pass it on to the job."""

    STOP = "stop"
    PREEMPT = "preempt"
    GANG = "gang"


class LeaseKind(models.TextChoices):
    """A device is used, used beside its holder, or promised to a job that waits for victims."""

    USING = "using", "using"
    GUEST = "guest", "guest"
    RESERVED = "reserved", "reserved"


class SuspensionTier(models.TextChoices):
    """How an attempt was suspended: at a gate, frozen, in host memory, or by a checkpoint."""

    GATE = "T0", "gate"
    FROZEN = "T1", "frozen"
    PARKED = "T2", "parked"
    CHECKPOINT = "T5", "checkpoint"


class PreemptionCause(models.TextChoices):
    """The core's rules of preemption with their display names."""

    INTER_VC = PreemptionRule.INTER_VC.value, sentence("cause-guarantee")
    INTRA_VC = PreemptionRule.INTRA_VC.value, sentence("cause-priority")
    OPPORTUNISTIC = PreemptionRule.OPPORTUNISTIC.value, sentence("cause-borrowed")
    POLICY = PreemptionRule.POLICY.value, sentence("cause-policy")
    RESIZE = PreemptionRule.RESIZE.value, sentence("cause-resize")
    MOVE = PreemptionRule.MOVE.value, sentence("cause-move")
    REVERT = PreemptionRule.REVERT.value, sentence("cause-slower")
    DRAIN = PreemptionRule.DRAIN.value, sentence("cause-drain")


def one_of(column: str, choices: type[models.TextChoices]) -> models.Q:
    """Build the constraint that ``column`` has one of ``choices``; Django itself adds none."""
    return models.Q(**{f"{column}__in": choices.values})
