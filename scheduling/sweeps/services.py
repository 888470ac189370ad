"""Sweeps: submitted together, released up to ``max_parallel`` at a time, stopped together."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from scheduling.common.on_commit import request_round_on_commit
from scheduling.core.lifecycle import HOLDING, JobEventKind, JobState
from scheduling.core.messages import sentence
from scheduling.core.sweeps import (
    LABEL,
    Grid,
    GridError,
    SweepOptions,
    check_options,
    documents,
    label_of,
    options_to_json,
)
from scheduling.estimates.services.submit_plans import JobPlan, plan_job
from scheduling.jobs.models import Job, JobSecret, Sweep
from scheduling.jobs.queries.submit_context import SubmitContext
from scheduling.jobs.services.idempotency import (
    Key,
    jobs_of_key,
    read_key,
    refuse_used_key,
    used_key,
)
from scheduling.jobs.services.lifecycle import Note, try_job_events
from scheduling.jobs.services.submission import Submission, submit_jobs
from scheduling.jobs.validation import ValidatedJob, check_draft
from scheduling.rounds.snapshot import RoundConfig
from scheduling.runs.services.stopping import stop_job
from scheduling.sweeps.queries import jobs_of
from tenants.audit import AuditChange, record, record_many
from tenants.errors import ForbiddenError, InvalidError
from tenants.roles import Permission
from tenants.viewers import Viewer

MOST_PASSES: Final = 4
USUAL: Final = SweepOptions()
_MAY_BE_ASKED: Final = sorted(state.value for state in HOLDING - {JobState.STOPPING})


def submit_sweep(
    *,
    viewer: Viewer,
    document: Mapping[str, Any],
    grid: Grid,
    max_parallel: int | None,
    submit_context: SubmitContext,
    now: datetime,
    options: SweepOptions = USUAL,
    idempotency_key: str = "",
) -> tuple[Sweep, bool]:
    """Submit a job for each point of a grid or of a random search, all or none.

    A key that was used before returns the sweep of that submit, and nothing is submitted.

    Returns:
        The sweep, and whether it is new.

    Raises:
        InvalidError: the grid or an option is not valid.
        InvalidJobError: the jobs cannot be accepted; nothing has been stored.
        IdempotencyConflictError: the key was used for another request.
    """
    stored = options_to_json(options)
    sent = {"job": document, "parameters": _points(grid), "max_parallel": max_parallel, **stored}
    key = read_key(idempotency_key, sent)
    name = str(document.get("name", ""))[:63]
    wanted = (name, _points(grid), max_parallel, stored)
    if (earlier := _of_key(viewer, key, wanted)) is not None:
        return earlier, False
    label = label_of(name, secrets.token_hex(3))
    wanted_jobs = _documents(
        document, grid, label=label, max_parallel=max_parallel, options=options
    )
    submissions = [Submission(document=each) for each in wanted_jobs]
    try:
        with transaction.atomic():
            jobs = submit_jobs(
                submissions=submissions,
                viewer=viewer,
                submit_context=submit_context,
                now=now,
                key=key,
            )
            keep = partial(keep_sweep, viewer=viewer, jobs=jobs, name=name, label=label)
            sweep = keep(grid=grid, max_parallel=max_parallel, now=now, options=options)
    except IntegrityError:
        if (earlier := _of_key(viewer, key, wanted)) is None:
            refuse_used_key(viewer, key)
            raise
        return earlier, False
    return sweep, True


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """The plan of a sweep.

    Attributes:
        draft: the validated job of the first point; other jobs differ only in their environment.
        jobs: number of points.
        plan: joint plan of the jobs that may run concurrently.
    """

    draft: ValidatedJob
    jobs: int
    plan: JobPlan


def plan_sweep(
    *,
    viewer: Viewer,
    document: Mapping[str, Any],
    grid: Grid,
    max_parallel: int | None,
    submit_context: SubmitContext,
    config: RoundConfig,
    now: datetime,
    options: SweepOptions = USUAL,
) -> SweepPlan:
    """Plan all jobs of a sweep that can start now; nothing is stored.

    Raises:
        InvalidError: the grid is not valid.
        InvalidJobError: the jobs cannot be accepted.
        ForbiddenError: the viewer may not submit them.
    """
    wanted = _documents(document, grid, label=LABEL, max_parallel=max_parallel, options=options)
    draft = check_draft(document=wanted[0], viewer=viewer, submit_context=submit_context)
    plan = plan_job(
        document=wanted[0],
        viewer=viewer,
        submit_context=submit_context,
        config=config,
        now=now,
        tasks=len(wanted) if max_parallel is None else min(max_parallel, len(wanted)),
    )
    return SweepPlan(draft=draft, jobs=len(wanted), plan=plan)


def _documents(
    document: Mapping[str, Any],
    grid: Grid,
    *,
    label: str,
    max_parallel: int | None,
    options: SweepOptions,
) -> list[dict[str, Any]]:
    """Build a job document for each point; those after the first ``max_parallel`` are held."""
    if max_parallel is not None and max_parallel < 1:
        raise InvalidError(
            sentence("not-job-count"),
            field="max_parallel",
            value=max_parallel,
            remedy=sentence("give-sweep-limit"),
        )
    # A sweep releases the holds of its jobs in turn and cannot distinguish the two kinds.
    if max_parallel is not None and document.get("held"):
        raise InvalidError(
            sentence("limit-releases-held"),
            field="max_parallel",
            value=max_parallel,
            remedy=sentence("remove-limit-or-held"),
        )
    try:
        check_options(options)
        return documents(document, grid, label=label, max_parallel=max_parallel, options=options)
    except GridError as error:
        raise InvalidError(
            str(error), field="parameters", value=dict(grid), remedy=error.remedy
        ) from None


def _points(grid: Grid) -> dict[str, list[str]]:
    return {key: list(values) for key, values in grid.items()}


def _of_key(
    viewer: Viewer,
    key: Key,
    wanted: tuple[str, dict[str, list[str]], int | None, dict[str, Any]],
) -> Sweep | None:
    """Return the viewer's sweep whose first job has this idempotency key, or None."""
    for first in jobs_of_key(viewer, key):
        sweeps: QuerySet[Sweep] = Sweep.objects.visible_to(viewer)
        found = sweeps.filter(owner_id=viewer.user_id, first_job=first.pk).first()
        if found is None:
            continue
        told = (found.name, found.parameters, found.max_parallel, found.options)
        if not key.is_for(first, otherwise=told == wanted):
            raise used_key(
                key,
                sentence("key-used-for-sweep", sweep=str(found.pk)),
                sentence("use-new-key-for-sweep"),
            )
        return found
    return None


@transaction.atomic
def keep_sweep(
    *,
    viewer: Viewer,
    jobs: Sequence[Job],
    name: str,
    label: str,
    grid: Grid,
    max_parallel: int | None,
    now: datetime,
    options: SweepOptions = USUAL,
) -> Sweep:
    """Store submitted jobs, one for each point, as a sweep.

    Args:
        viewer: the submitter.
        jobs: jobs in the order of the points; all have ``label``, and the excess jobs are held.
        name: name of the sweep.
        label: label value that the jobs of the sweep share.
        grid: parameters and their values.
        max_parallel: maximum number of jobs that run at a time; None means no limit.
        now: time of the submit.
        options: choice of the points, objective and early stops.
    """
    sweep = Sweep.objects.create(
        tenant_id=jobs[0].tenant_id,
        virtual_cluster_id=jobs[0].virtual_cluster_id,
        owner_id=jobs[0].owner_id,
        name=name,
        label=label,
        parameters=_points(grid),
        max_parallel=max_parallel,
        jobs=len(jobs),
        first_job=jobs[0].pk,
        last_job=jobs[-1].pk,
        is_open=max_parallel is not None and len(jobs) > max_parallel,
        options=options_to_json(options),
        is_watched=options.early_stop is not None,
        created_at=now,
    )
    record(
        actor=viewer,
        action="sweep.submit",
        obj=sweep,
        after={"jobs": len(jobs), "parameters": sweep.parameters},
        tenant=sweep.tenant_id,
    )
    return sweep


def feed_sweeps() -> int:
    """Release held jobs of sweeps below their limit; called before each round; return their
    number.

    Jobs held by a user remain on hold and do not count towards the limit.
    """
    released = 0
    for sweep in Sweep.objects.unscoped().filter(is_open=True):
        rows = jobs_of(sweep).live().values_list("id", "held", "held_by").order_by("id")
        waiting = [pk for pk, held, by in rows if held and by is None]
        room = (sweep.max_parallel or sweep.jobs) - sum(not held for _, held, _ in rows)
        turn = waiting[: max(room, 0)]
        if turn:
            released += (
                Job.objects.unscoped()
                .filter(pk__in=turn, held=True, held_by=None, state=JobState.QUEUED)
                .update(held=False)
            )
        if len(turn) == len(waiting):
            Sweep.objects.unscoped().filter(pk=sweep.pk).update(is_open=False)
    return released


def stop_sweep(*, sweep: Sweep, viewer: Viewer, now: datetime) -> int:
    """Stop all jobs of a sweep: waiting ones at once, running ones after their grace period.

    Returns:
        The number of stopped jobs.

    Raises:
        ForbiddenError: the viewer may see the jobs but not stop them.
    """
    if not viewer.can_stop(sweep.tenant_id, sweep.owner_id):
        raise ForbiddenError(
            sentence("sweep-of-other", pk=sweep.pk),
            field="permission",
            value=str(Permission.STOP_ANY_JOB),
            remedy=sentence("ask-owner-lead-tenant"),
        )
    count = 0
    for _ in range(MOST_PASSES):
        # Jobs started or requeued meanwhile are handled in the next pass.
        stopped = _stop_waiting(sweep, viewer, now)
        running = list(jobs_of(sweep).filter(state__in=_MAY_BE_ASKED))
        for job in running:
            stop_job(job=job, viewer=viewer, now=now)
        count += stopped + len(running)
        if not stopped and not running:
            break
    return count


def _stop_waiting(sweep: Sweep, viewer: Viewer, now: datetime) -> int:
    """End queued jobs that are still queued at the write."""
    with transaction.atomic():
        Sweep.objects.unscoped().filter(pk=sweep.pk).update(is_open=False)
        waiting = list(jobs_of(sweep).queued())
        note = Note(
            text=sentence("requested-by", username=viewer.username), detail={"by": viewer.username}
        )
        stopped = try_job_events(
            jobs={job.pk: note for job in waiting},
            event=JobEventKind.STOP,
            now=now,
            only_in=JobState.QUEUED,
        )
        JobSecret.objects.filter(job_id__in=list(stopped)).delete()
        record_many(
            actor=viewer,
            changes=[
                AuditChange(
                    action="job.stop",
                    obj=job,
                    before={"state": JobState.QUEUED},
                    after={"state": stopped[job.pk]},
                    tenant=job.tenant_id,
                )
                for job in waiting
                if job.pk in stopped
            ],
        )
        if stopped:
            request_round_on_commit("stop")
    return len(stopped)
