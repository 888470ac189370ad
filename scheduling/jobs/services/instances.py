"""Jobs that are no gang: one draft for each instance, and the jobs that came of them."""

import uuid
from dataclasses import replace

from scheduling.core.jobspec import demand, split
from scheduling.core.messages import sentence
from scheduling.jobs.validation import ValidatedJob


def parts_of_draft(draft: ValidatedJob) -> tuple[ValidatedJob, ...]:
    """The drafts that ``draft`` stands for: itself, unless it is no gang."""
    parts = split(draft.spec, uuid.uuid4().hex)
    if parts == (draft.spec,):
        return (draft,)
    warnings = (*draft.warnings, *_words(len(parts)))
    return tuple(
        replace(draft, spec=part, demand=demand(part), warnings=warnings) for part in parts
    )


def _words(count: int) -> tuple[str, ...]:
    if count == 1:
        return ()
    return (sentence("no-gang", count=count),)
