"""Events of a job: who acted on it, how its processes ended, what its training reports."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, fixed

EVENTS: Final[Mapping[str, Template]] = {
    "submitted-by": fixed("%(username)s submitted it"),
    "changed-by": fixed("%(username)s changed it (%(words)s)"),
    "stopped-by": fixed("Stopped by %(username)s"),
    "requested-by": fixed("Requested by %(username)s"),
    "ended-with-code": fixed("%(role)s ended with exit code %(exit_code)s"),
    "ended-by-signal": fixed("%(role)s was ended by signal %(exit_signal)s"),
    "job-of-id": fixed("job %(id)s"),
    # The end of an attempt.
    "ended-unsaved": fixed("%(reason)s, no checkpoint"),
    "ended-saved": fixed("%(reason)s, checkpoint saved"),
    "ended-at-step": fixed("%(reason)s, checkpoint at step %(step)s"),
    # Reports of a training.
    "one-checkpoint": fixed("checkpoint", "report of a training"),
    "checkpoint-of-step": fixed("checkpoint of step %(step)s"),
    "without-hash": fixed("without a hash"),
    "checkpoint-saved": fixed("%(checkpoint)s saved, %(sha256)s."),
    "training-resumed": fixed("Training goes on from the %(checkpoint)s, %(sha256)s."),
    "checkpoint-not-saved": fixed("The %(checkpoint)s could not be saved."),
    "checkpoint-not-saved-because": fixed("The %(checkpoint)s could not be saved: %(reason)s."),
    "checkpoint-damaged": fixed("The checkpoint %(path)s is damaged; the one before it is used."),
    "checkpoint-damaged-because": fixed(
        "The checkpoint %(path)s is damaged: %(reason)s; the one before it is used."
    ),
    "notice-acknowledged": fixed("The job has acknowledged the notice to leave."),
    "notice-acknowledged-because": fixed(
        "The job has acknowledged the notice to leave (%(reason)s)."
    ),
    "trains-with-batch": fixed("It trains with %(batch)s samples a step."),
    "trains-with-batch-from": fixed(
        "It trains with %(batch)s samples a step from step %(step)s on."
    ),
    "another-number": fixed("another number of"),
    "not-told": fixed("not told"),
    "logical-workers": fixed("Logical workers by process: %(counts)s."),
    "checkpoint-moved": fixed(
        "The checkpoint of step %(step)s was brought from %(path)s (%(bytes)s bytes, verified)."
    ),
    "checkpoint-left": fixed(
        "The checkpoint of step %(step)s stays on %(path)s: %(reason)s. Training goes on from "
        "what the new node has, or begins anew."
    ),
    "level-refused": fixed("%(level)s is refused: %(found)s."),
    "level-kept-but": fixed("%(level)s is kept, but %(found)s."),
    "level-kept": fixed("%(level)s can be kept by this model."),
    "model-cannot": fixed("the model cannot keep it"),
}
