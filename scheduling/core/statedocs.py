"""Words for the job's states, and the page made of them and the transition table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from scheduling.core.lifecycle import HOLDING, TERMINAL, TRANSITIONS, JobEventKind, JobState


@dataclass(frozen=True, slots=True)
class StateWords:
    """What a state means, and what is left of it after a crash of any process."""

    meaning: str
    after_crash: str


WORDS: Final[Mapping[JobState, StateWords]] = {
    JobState.QUEUED: StateWords(
        "The job waits for a round to give it devices. Its reason says why. A job that was "
        "preempted or whose attempt failed in a way that is retried is queued again, with the "
        "number of its attempts kept.",
        "The row. The next round reads it again; nothing else existed.",
    ),
    JobState.ADMITTED: StateWords(
        "A round has committed an attempt: devices are leased, and each member waits on its node."
        " No node has received its directives yet, or none has answered.",
        "Attempt, members (`waiting`), leases. The next service of these nodes derives the "
        "same directives from the members.",
    ),
    JobState.STARTING: StateWords(
        "Nodes prepare the run directories (source, image, secrets, ports); when all are "
        "prepared the whole gang gets its go. An image that is pulled is a detail of this "
        "state.",
        "Members with their step. Prepare is repeated (it is idempotent by run id); go decides "
        "by a file that is created exclusively, so a second go starts nothing.",
    ),
    JobState.RUNNING: StateWords(
        "Every member of the gang really runs; the process of each has been seen.",
        "The processes themselves: runners are detached from everything. The next node service "
        "lists the run directories, adopts what runs and reads what ended meanwhile.",
    ),
    JobState.SUSPECT: StateWords(
        "Contact to a node of the job is lost. Nothing is killed and nothing is given away: the"
        " job is running again when the node answers, and is only started elsewhere when the "
        "fence has passed (last confirmed lease renewal + lease + grace + 60 s) or an admin "
        "declares the node dead.",
        "As running. On the node the runner's own lease deadline goes on counting.",
    ),
    JobState.PREEMPTING: StateWords(
        "Another job has a better right to the devices. This one has its notice; it may save "
        "its work within its grace period, then it leaves and is queued again.",
        "The members' stop request with its time. It is sent again (a stop is idempotent).",
    ),
    JobState.STOPPING: StateWords(
        "Somebody has asked for the end. The processes get TERM, the grace period, then KILL. If "
        "a runner or a node fails meanwhile (class node or platform), the job ends as stopped, "
        "and the event says what failed.",
        "As preempting; the job ends as stopped, or as what it became by itself meanwhile.",
    ),
    JobState.SUCCEEDED: StateWords(
        "The gang's rules say success; by default every member has ended with exit code 0.",
        "Everything; an end is final.",
    ),
    JobState.FAILED: StateWords(
        "The gang's rules say failure and no retry was granted. The failure class says whose "
        "fault it was, and whether trying again makes sense.",
        "Everything; an end is final.",
    ),
    JobState.STOPPED: StateWords(
        "It was ended on request: at once while queued, else when its last process was gone.",
        "Everything; an end is final.",
    ),
}

HEAD: Final = """\
# Job states

Generated from `scheduling/core/lifecycle.py` by `python -m scheduling.core.statedocs`.

States are public (REST, CLI, pages) and never change. One function writes them
(`scheduling.services.lifecycle.apply_job_event`), by compare-and-set.
"""


def page() -> str:
    """The whole of ``docs/job-states.md``."""
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
