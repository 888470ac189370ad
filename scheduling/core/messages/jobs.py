"""What a job does instead of waiting, when it starts, and what may be done about it."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, counted, fixed

JOBS: Final[Mapping[str, Template]] = {
    "seconds": fixed("%(seconds)s s"),
    "minutes-seconds": fixed("%(minutes)s min %(seconds)s s"),
    "hours-minutes": fixed("%(hours)s h %(minutes)s min"),
    # Jobs that do not wait.
    "admitted": fixed("Its cells are bound; its nodes prepare the start."),
    "starting": fixed("It is starting on its nodes."),
    "running": fixed("It is running."),
    "running-resized": counted(
        "It is running on %(n)s device; it requested %(asked)s. %(rule)s",
        "It is running on %(n)s devices; it requested %(asked)s. %(rule)s",
    ),
    "own-size": fixed("Its policy has chosen this size since the start."),
    "suspect": fixed("It may be running; its node has not responded for a while."),
    "preempting": fixed("It is being preempted: it saves its work and releases its devices."),
    "stopping": fixed("It is being stopped on its nodes."),
    "failed": fixed("It failed (class %(failure_class)s)."),
    "failed-because": fixed("It failed (class %(failure_class)s): %(cause)s."),
    "stopped": fixed("It was stopped before it started."),
    "stopped-because": fixed("It was stopped before it started: %(cause)s."),
    "stopped-after": fixed("It was stopped after %(time)s."),
    "stopped-after-because": fixed("It was stopped after %(time)s: %(cause)s."),
    "succeeded": fixed("Succeeded."),
    "succeeded-after": fixed("Succeeded after %(time)s."),
    # What may be done about a job that has failed.
    "clone": fixed("Clone it."),
    "clone-to-retry": fixed("Clone it to try again."),
    "clone-after-user-error": fixed(
        "See the last lines of the job's log, fix the error, and clone the job."
    ),
    "clone-with-memory": fixed("Request more memory or reduce its memory use, and clone the job."),
    "clone-with-time": fixed("Clone it with a longer time limit."),
    "clone-with-image": fixed(
        "Check that its image can be pulled and started, and clone the job."
    ),
    # Rounds and estimates.
    "round-due": fixed("Waiting for the next scheduling round (due within %(seconds)s s)."),
    "round-overdue": fixed("Waiting for the next scheduling round (overdue by %(seconds)s s)."),
    "no-round-ever": fixed("No round has ever run, so no job starts."),
    "no-round-for": fixed("No round for %(time)s. Running jobs continue; no new job starts."),
    "tell-admin-of-scheduler": fixed(
        "Report to a cluster admin that the scheduler is not running."
    ),
    "ask-lead-to-release": fixed("Ask a lead of the tenant to release it."),
    "set-max-duration": fixed("Set max_duration on %(jobs)s to get a start estimate."),
    "estimate-varies": fixed(
        "No reliable estimate: run times in this virtual cluster vary too much."
    ),
    "estimate-unlimited": counted(
        "No reliable estimate: %(n)s running job has no time limit.",
        "No reliable estimate: %(n)s running jobs have no time limit.",
    ),
}
