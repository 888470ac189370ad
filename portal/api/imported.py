"""Documents of other systems on their way in: what they may know, and their jobs submitted."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import transaction

from portal.api.importers.context import Context, Rule
from portal.api.importers.result import Imported
from scheduling.models import Job
from scheduling.selectors.import_rules import list_import_rules
from scheduling.services.drafts import Ground
from scheduling.services.submission import Submission, submit_job, submit_jobs
from tenants.roles import Permission
from tenants.viewers import Viewer


def import_context(
    viewer: Viewer, ground: Ground, now: datetime, *, virtual_cluster: str = ""
) -> Context:
    """What importers may know for this viewer.

    Args:
        viewer: who brings the document.
        ground: what drafts are checked against.
        now: what is now.
        virtual_cluster: the one that the viewer chose, if any.
    """
    return Context(
        rules={
            (row.kind, row.name): Rule(
                virtual_cluster=row.virtual_cluster,
                tenant=str(row.tenant_id or ""),
                priority=row.priority,
                opportunistic=row.opportunistic,
            )
            for row in list_import_rules(viewer)
        },
        clusters={
            name: str(cluster.tenant_id)
            for name, cluster in ground.clusters.items()
            if viewer.can(Permission.SUBMIT_JOBS, cluster.tenant_id)
        },
        device_types=tuple(ground.types),
        virtual_cluster=virtual_cluster,
        now=now,
    )


def submission_of_import(imported: Imported, text: str) -> Submission:
    """A translated job; its warnings say what was left out, and its text is kept.

    A text that holds secrets is not.
    """
    lost = [f"{entry.field}: {entry.message}" for entry in imported.unsupported]
    return Submission(
        document=imported.spec,
        source_text="" if imported.holds_secrets else text,
        source_format=imported.format,
        warnings=(*imported.warnings, *lost),
    )


def submit_import(
    imported: Imported,
    submission: Submission,
    *,
    viewer: Viewer,
    ground: Ground,
    now: datetime,
    idempotency_key: str = "",
) -> tuple[list[Job], bool]:
    """Submit all jobs of a document, all or none; the tasks of an array learn its number.

    Returns:
        The jobs, and whether they are new (with a key that was used before, the first of them).
    """
    with transaction.atomic():
        first, is_new = submit_job(
            submission=submission,
            viewer=viewer,
            ground=ground,
            now=now,
            idempotency_key=idempotency_key,
        )
        if not is_new or not imported.more:
            return [first], is_new
        others = submit_jobs(
            submissions=[
                replace(submission, document=_of_array(spec, first.pk)) for spec in imported.more
            ],
            viewer=viewer,
            ground=ground,
            now=now,
        )
    return [first, *others], True


def _of_array(spec: Mapping[str, Any], array_id: int) -> dict[str, Any]:
    roles = {
        name: {**role, "env": {**role.get("env", {}), "SLURM_ARRAY_JOB_ID": str(array_id)}}
        for name, role in spec["roles"].items()
    }
    return {**spec, "roles": roles}
