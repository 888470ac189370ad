"""REST and CLI calls that correspond to a job's page."""

import json
import shlex
from dataclasses import dataclass
from typing import Final

from django.utils.translation import gettext as _

from scheduling.jobs.queries.job_detail import JobDetail

TOKEN: Final = "Authorization: Token $TESSERA_TOKEN"  # noqa: S105 the name of a variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One action; ``cli`` or ``rest`` is empty where only the other exists."""

    says: str
    rest: str = ""
    cli: str = ""


def calls_for(detail: JobDetail, base_url: str) -> tuple[Call, ...]:
    """Return the calls that read or change the job.

    Args:
        detail: the job.
        base_url: ``https://host`` of this portal.
    """
    number = detail.row.id
    job = f"{base_url}/api/v1/jobs/{number}/"
    role, rank = first_rank(detail)
    calls = [
        Call(says=_("Waiting reason"), cli=f"tessera why {number}", rest=_get(f"{job}why/")),
        Call(
            says=_("Follow the log"),
            cli=f"tessera logs -f {number}",
            rest=_get(f"{job}logs/?role={role}&rank={rank}&offset=0"),
        ),
        Call(says=_("Job details"), rest=_get(job)),
        Call(says=_("Events"), rest=_get(f"{job}events/")),
        Call(says=_("Attempts"), rest=_get(f"{job}attempts/")),
        Call(says=_("Goodput"), rest=_get(f"{job}goodput/")),
    ]
    if detail.can_submit:
        calls.append(
            Call(
                says=_("Clone the job"), cli=f"tessera clone {number}", rest=_post(f"{job}clone/")
            )
        )
    if detail.can_stop and not detail.row.is_over:
        calls.append(
            Call(says=_("Stop the job"), cli=f"tessera stop {number}", rest=_post(f"{job}stop/"))
        )
    return tuple(calls)


def submit_calls(base_url: str, file: str = "job.yaml") -> Call:
    """Return the shell calls that submit a document."""
    return Call(
        says=_("Submit a job document"),
        cli=f"tessera submit {file}",
        rest=f'curl -H "{TOKEN}" -H "Content-Type: application/yaml" '
        f"--data-binary @{file} {shlex.quote(f'{base_url}/api/v1/jobs/')}",
    )


def first_calls(base_url: str, username: str) -> tuple[Call, ...]:
    """Return the first shell commands for a user of the pages."""
    login = f"tessera --url {shlex.quote(base_url)} login --user {shlex.quote(username)}"
    return (
        Call(says=_("Sign in (once)"), cli=login),
        submit_calls(base_url),
        Call(
            says=_("Running and queued jobs"),
            cli="tessera ps",
            rest=_get(f"{base_url}/api/v1/jobs/"),
        ),
    )


def first_rank(detail: JobDetail) -> tuple[str, int]:
    """Return the rank whose log is shown first."""
    members = detail.attempts[-1].members if detail.attempts else ()
    first = next(iter(members), None)
    return (first.role, first.rank) if first else (next(iter(detail.spec["roles"]), "worker"), 0)


def _get(url: str) -> str:
    return f'curl -H "{TOKEN}" {shlex.quote(url)}'


def _post(url: str, body: object = None) -> str:
    sent = f" -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body or {}))}"
    return f'curl -X POST -H "{TOKEN}"{sent} {shlex.quote(url)}'
