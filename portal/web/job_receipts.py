"""Preemption receipts on a job's pages: costs of preemptions, and hashes of checkpoints."""

from dataclasses import dataclass
from datetime import datetime

from django.http import HttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.addresses import job_url
from portal.i18n import word
from portal.web.components import words
from portal.web.job_context import head_context
from portal.web.viewing import PageRequest, page
from scheduling.runs.queries.receipts import (
    CheckpointView,
    Compared,
    ReceiptView,
    checkpoints_of_job,
    compare_jobs,
    receipts_of_job,
)
from tenants.errors import InvalidError, NotFoundError

MOST_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptShown:
    """A preemption as text.

    Attributes:
        for_url: page of the preempting job; empty if not visible.
        lost: lost work as text.
        course: events with times, as pairs of a label and a text.
    """

    receipt: ReceiptView
    for_url: str
    lost: str
    course: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonForm:
    """The requested comparison, as typed."""

    attempt: str
    other: str
    other_attempt: str


def receipts_shown(request: PageRequest, job_id: int) -> tuple[ReceiptShown, ...]:
    """Return the preemptions of a job, the newest first."""
    found = receipts_of_job(request.viewer, job_id)
    return tuple(_shown(receipt) for receipt in reversed(found))


@require_safe
@page
def receipts(request: PageRequest, job_id: int) -> HttpResponse:
    """Show costs of preemptions, the checkpoints with their hashes, and a comparison."""
    context = head_context(request, job_id, "job-receipts")
    saved = checkpoints_of_job(request.viewer, job_id)
    asked = _asked(request)
    context |= {
        "receipts": receipts_shown(request, job_id),
        "checkpoints": tuple(reversed(saved))[:MOST_SHOWN],
        "checkpoint_count": len(saved),
        "settings": _settings(saved),
        "asked": asked,
        "compared": None,
        "fault": "",
    }
    if asked.other or asked.other_attempt:
        try:
            context["compared"] = _sentences(_compare(request, job_id, asked))
        except (InvalidError, NotFoundError) as error:
            context["fault"] = str(error)
    if request.wants_part:
        return request.render("job/_receipts_parts.html", context)
    return request.render("job/receipts.html", context)


def _asked(request: PageRequest) -> ComparisonForm:
    given = request.http.GET
    return ComparisonForm(
        attempt=given.get("attempt", "").strip()[:20],
        other=given.get("with", "").strip()[:20],
        other_attempt=given.get("with_attempt", "").strip()[:20],
    )


def _compare(request: PageRequest, job_id: int, asked: ComparisonForm) -> Compared:
    return compare_jobs(
        request.viewer,
        left=job_id,
        left_attempt=_number(asked.attempt),
        right=_number(asked.other) or job_id,
        right_attempt=_number(asked.other_attempt),
    )


def _number(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise InvalidError(
            _("Enter a job ID or the number of an attempt."), field="with", value=text
        )
    return int(text) or None


def _sentences(compared: Compared) -> tuple[tuple[str, bool], ...]:
    """Describe the comparison; each sentence with whether it is good news."""
    found = compared.comparison
    said: list[tuple[str, bool]] = []
    if not found.common:
        said.append((_("The jobs have no checkpoints at the same step."), True))
    elif found.first_difference is None:
        steps = words.plural(len(found.common), "checkpoint", "checkpoints")
        last = words.count(found.common[-1])
        said.append(
            (
                _("Identical training state: %(steps)s in common up to step %(last)s, all equal.")
                % {"steps": steps, "last": last},
                True,
            )
        )
    else:
        step = words.count(found.first_difference)
        text = _(
            "The checkpoints differ from step %(step)s: %(left)s in this job, %(right)s in "
            "the other. The %(same)s before are equal."
        ) % {
            "step": step,
            "left": found.left[:12],
            "right": found.right[:12],
            "same": words.plural(found.same, "checkpoint", "checkpoints"),
        }
        said.append((text, False))
    for name, (here, there) in found.settings.items():
        text = _("%(name)s: %(here)s in this job, %(there)s in the other.") % {
            "name": word(name.replace("_", " ")),
            "here": here or _("not reported"),
            "there": there or _("not reported"),
        }
        said.append((text.capitalize(), False))
    for whose, steps_changed in (
        (_("This job"), compared.changed_left),
        (_("The other job"), compared.changed_right),
    ):
        if steps_changed:
            at = words.count(steps_changed[0])
            said.append(
                (
                    _("%(whose)s saved step %(at)s several times with different hashes.")
                    % {"whose": whose, "at": at},
                    False,
                )
            )
    return tuple(said)


def _settings(saved: tuple[CheckpointView, ...]) -> tuple[tuple[str, str], ...]:
    newest = saved[-1].receipt.settings if saved else {}
    return tuple((name.replace("_", " "), str(value)) for name, value in newest.items())


def _shown(receipt: ReceiptView) -> ReceiptShown:
    return ReceiptShown(
        receipt=receipt,
        for_url=job_url(receipt.for_job) if receipt.for_job is not None else "",
        lost=_lost(receipt),
        course=tuple(_course(receipt)),
    )


def _lost(receipt: ReceiptView) -> str:
    if receipt.lost_seconds is None:
        return _("devices not released yet")
    if receipt.lost_steps == 0 or receipt.lost_seconds == 0:
        return _("no work lost")
    time = words.duration(receipt.lost_seconds)
    if receipt.lost_steps is None:
        return _("up to %(time)s of work lost") % {"time": time}
    return _("%(time)s of work lost, %(lost_steps)s") % {
        "time": time,
        "lost_steps": words.plural(receipt.lost_steps, "step", "steps"),
    }


def _course(receipt: ReceiptView) -> list[tuple[str, str]]:
    asked = receipt.asked_at

    def after(at: datetime) -> str:
        seconds = max(0.0, (at - asked).total_seconds())
        return _("after %(seconds)s") % {"seconds": words.duration(seconds)}

    course = [
        (
            _("Notice sent"),
            _("by %(by)s, grace period %(grace_seconds)s")
            % {"by": receipt.by, "grace_seconds": words.duration(receipt.grace_seconds)},
        )
    ]
    heard = receipt.acknowledged_at
    course.append((_("Acknowledged"), after(heard) if heard else _("no acknowledgement")))
    if receipt.checkpoint_at is not None:
        step = receipt.checkpoint_step
        at = "" if step is None else f"step {words.count(step)}, "
        course.append(
            (_("Checkpoint saved"), f"{at}{receipt.checkpoint_sha256[:12] or _('no hash')}")
        )
    else:
        course.append((_("Checkpoint saved"), _("no checkpoint in this attempt")))
    if receipt.released_at is not None:
        killed = _(", killed at the end of the grace period") if receipt.forced else ""
        course.append((_("Devices released"), f"{after(receipt.released_at)}{killed}"))
    return course
