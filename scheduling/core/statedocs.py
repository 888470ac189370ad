"""Descriptions of job states, and the page generated from them and the transition table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from scheduling.core.lifecycle import HOLDING, TERMINAL, TRANSITIONS, JobEventKind, JobState


@dataclass(frozen=True, slots=True)
class StateWords:
    """The meaning of a state, and the data that survives a crash of any process."""

    meaning: str
    after_crash: str


WORDS: Final[Mapping[JobState, StateWords]] = {
    JobState.QUEUED: StateWords(
        "The job waits for a round to allocate devices; its reason names the cause. A job is "
        "queued again after a preemption, and after a failed attempt that is retried; the count "
        "of its attempts continues.",
        "The row. The next round reads it again; the state has no other data.",
    ),
    JobState.ADMITTED: StateWords(
        "A round has committed an attempt: devices are leased, and each member waits for its "
        "node. No node has received its directives yet, or none has responded.",
        "Attempt, members (`waiting`), leases. The next node service derives the same "
        "directives from the members.",
    ),
    JobState.STARTING: StateWords(
        "Nodes prepare the run directories (source, image, secrets, ports). When all are "
        "prepared, each member of the gang gets the directive go. Pulling an image is part of "
        "this state.",
        "Members with their step. Prepare is repeated (it is idempotent by run id). Go creates "
        "a file exclusively, so a second go has no effect.",
    ),
    JobState.RUNNING: StateWords(
        "Every member of the gang runs: its node has reported the process.",
        "The processes themselves: runners are detached. The next node service lists the run "
        "directories, adopts the runs and records those that have ended meanwhile.",
    ),
    JobState.SUSPECT: StateWords(
        "A node of the job is unreachable. The scheduler kills no process and releases no "
        "device. When the node responds, the job is running again. The scheduler starts the job "
        "elsewhere only when the fence has passed (last confirmed lease renewal + lease + grace "
        "+ 60 s) or an admin declares the node dead. A job that has not begun on the node is "
        "released as soon as the node is `down`.",
        "As running. On the node the runner's own lease deadline continues.",
    ),
    JobState.PREEMPTING: StateWords(
        "The scheduler takes the devices for another job, or for another size or place of this "
        "one. The job has a notice and saves its work within its grace period; then it is "
        "queued again.",
        "The members' stop request with its time. It is sent again (a stop is idempotent).",
    ),
    JobState.STOPPING: StateWords(
        "A person or a rule has requested the end. The processes get TERM, the grace period, "
        "then KILL. If a runner or a node fails meanwhile (class node or platform), the job "
        "ends as stopped, and the event names the failure.",
        "As preempting. The job ends as stopped, or with the result that it reached meanwhile.",
    ),
    JobState.SUCCEEDED: StateWords(
        "The completion rules of the gang report success; by default every member has ended "
        "with exit code 0.",
        "All rows remain; the state is final.",
    ),
    JobState.FAILED: StateWords(
        "The completion rules of the gang report failure, and no retry is left. The failure "
        "class names the cause (the command, a node, an image, ...) and decides on retries.",
        "All rows remain; the state is final.",
    ),
    JobState.STOPPED: StateWords(
        "The job was stopped on request: at once if it was queued, else after the end of its "
        "last process.",
        "All rows remain; the state is final.",
    ),
}

HEAD: Final = """\
# Job states

Generated from `scheduling/core/lifecycle.py` by `python -m scheduling.core.statedocs`.

The names of states are public (REST, CLI, pages) and never change. Only the module
`scheduling.jobs.services.lifecycle` changes states, by compare-and-set: `apply_job_event` for one
job, `try_job_events` for many by the same event, `admit_jobs` for the commit of a round. The
function `next_state` refuses transitions that are not in the table. Of two processes that change
one job at the same time, the second one gets `StaleJobError` and changes nothing.
"""


def page() -> str:
    """Render ``docs/job-states.md``."""
    return "\n".join([HEAD, _diagram(), _table(), *(_section(state) for state in JobState)])


def _diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> queued: submit"]
    lines += [
        f"    {before} --> {after}: {event}"
        for (before, event), after in sorted(TRANSITIONS.items())
    ]
    lines += [f"    {state} --> [*]" for state in sorted(TERMINAL)]
    return "\n".join([*lines, "```", ""])


def _table() -> str:
    states = [state for state in JobState if state not in TERMINAL]
    rows = [
        "| event | " + " | ".join(states) + " |",
        "|---" * (len(states) + 1) + "|",
    ]
    for event in JobEventKind:
        cells = [TRANSITIONS.get((state, event), "") or "·" for state in states]
        rows.append(f"| {event} | " + " | ".join(cells) + " |")
    return "\n".join([*rows, ""])


def _section(state: JobState) -> str:
    words = WORDS[state]
    holds = "holds devices" if state in HOLDING else "holds no devices"
    end = ", final" if state in TERMINAL else ""
    return (
        f"## {state}\n\n{words.meaning}\n\n*{holds.capitalize()}{end}. "
        f"After a crash:* {words.after_crash}\n"
    )


if __name__ == "__main__":
    print(page(), end="")
