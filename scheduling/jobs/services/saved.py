"""Saved views of the list of jobs, and job templates."""

import hashlib
from datetime import datetime
from typing import Final

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet

from scheduling.core.messages import sentence
from scheduling.jobs.models import JobTemplate, SavedView
from tenants.audit import record
from tenants.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from tenants.models import Tenant
from tenants.roles import Permission
from tenants.viewers import Viewer

MOST_VIEWS: Final = 20
MOST_TEMPLATES: Final = 200
MOST_TEXT: Final = 100_000


def views_of(viewer: Viewer) -> QuerySet[SavedView]:
    """Return the viewer's own saved views, oldest first."""
    return SavedView.objects.filter(owner_id=viewer.user_id)


def save_view(*, viewer: Viewer, name: str, query: str, now: datetime) -> SavedView:
    """Save filters under a name; an existing view with this name is replaced.

    Raises:
        InvalidError: the name is not valid, or the maximum number of views exists.
    """
    name = _name(name, 40)
    if len(query) > 1000 or "\x00" in query:
        raise InvalidError(
            sentence("filters-too-long"),
            field="query",
            value=len(query),
            remedy=sentence("use-fewer"),
        )
    if views_of(viewer).exclude(name=name).count() >= MOST_VIEWS:
        raise InvalidError(
            sentence("too-many-views", most=MOST_VIEWS),
            field="name",
            value=name,
            remedy=sentence("delete-one-first"),
        )
    saved, _ = SavedView.objects.update_or_create(
        owner_id=viewer.user_id, name=name, defaults={"query": query, "created_at": now}
    )
    return saved


def delete_view(*, viewer: Viewer, pk: int) -> None:
    """Delete a saved view of the viewer.

    Raises:
        NotFoundError: the viewer has no view with this ID.
    """
    if not views_of(viewer).filter(pk=pk).delete()[0]:
        raise NotFoundError(sentence("no-such-view"), field="id", value=pk)


def templates_of(viewer: Viewer) -> QuerySet[JobTemplate]:
    """Return the viewer's templates, and templates of tenants whose jobs the viewer may see."""
    rows = JobTemplate.objects.unscoped().select_related("owner", "tenant")
    tenants = viewer.tenant_ids(Permission.VIEW_JOBS)
    if tenants is None:
        return rows.filter(Q(owner_id=viewer.user_id) | Q(tenant__isnull=False))
    return rows.filter(Q(owner_id=viewer.user_id, tenant=None) | Q(tenant_id__in=tenants))


def template_for(viewer: Viewer, pk: int) -> JobTemplate:
    """Return one template.

    Raises:
        NotFoundError: the template is unknown, or the viewer may not see it.
    """
    found = templates_of(viewer).filter(pk=pk).first()
    if found is None:
        raise NotFoundError(sentence("no-such-template"), field="id", value=pk)
    return found


def save_template(
    *, viewer: Viewer, name: str, text: str, tenant: str, note: str = "", now: datetime
) -> JobTemplate:
    """Save a job's text as a template, for the viewer or for all members of a tenant.

    Args:
        viewer: the creator.
        name: name, unique among the viewer's own templates or in the tenant.
        text: the document, without secrets, since others may read it.
        tenant: name of the tenant; empty for a private template.
        note: free text.
        now: the current time.

    Raises:
        InvalidError: the name or the text is not valid.
        NotFoundError: the tenant is unknown.
        ForbiddenError: the viewer may not submit jobs to the tenant.
        ConflictError: another template has the name.
    """
    if viewer.user_id is None:
        raise NotFoundError(sentence("template-needs-owner"))
    template = JobTemplate(
        owner_id=viewer.user_id,
        tenant=_home(viewer, tenant),
        name=_name(name, 63),
        note=note.strip()[:200],
        text=_text(text),
        created_at=now,
    )
    _check_count(viewer, template.name)
    try:
        with transaction.atomic():
            template.save(force_insert=True)
            if template.tenant is not None:
                _record_template(viewer, "job_template.create", template)
    except IntegrityError:
        # A repeated form creates one template, and both responses report success.
        kept = JobTemplate.objects.unscoped().filter(
            owner_id=viewer.user_id,
            tenant=template.tenant,
            name=template.name,
            note=template.note,
            text=template.text,
        )
        if (same := kept.first()) is not None:
            return same
        raise ConflictError(
            sentence("template-exists"),
            field="name",
            value=template.name,
            remedy=sentence("rename-or-delete"),
        ) from None
    return template


def delete_template(*, viewer: Viewer, pk: int) -> None:
    """Delete an own template, or as a lead a template of the tenant.

    Raises:
        NotFoundError: the viewer may see no template with this ID.
        ForbiddenError: the template belongs to another user.
    """
    found = template_for(viewer, pk)
    leads = found.tenant_id is not None and viewer.can(Permission.STOP_ANY_JOB, found.tenant_id)
    if found.owner_id != viewer.user_id and not leads:
        raise ForbiddenError(
            sentence("template-of-other"),
            field="id",
            value=pk,
            remedy=sentence("ask-owner-lead-tenant"),
        )
    with transaction.atomic():
        if found.tenant_id is not None:
            _record_template(viewer, "job_template.delete", found)
        found.delete()


def _record_template(viewer: Viewer, action: str, template: JobTemplate) -> None:
    """Record each change of a tenant's template in the audit, since its members submit it."""
    digest = hashlib.sha256(template.text.encode("utf-8", "surrogatepass")).hexdigest()
    facts = {"name": template.name, "note": template.note, "sha256": digest}
    is_new = action.endswith("create")
    record(
        actor=viewer,
        action=action,
        obj=template,
        object_name=template.name,
        before={} if is_new else facts,
        after=facts if is_new else {},
        tenant=template.tenant_id,
    )


def _name(name: str, most: int) -> str:
    name = " ".join(name.split())
    if not 0 < len(name) <= most or not name.isprintable():
        raise InvalidError(
            sentence("not-name"),
            field="name",
            value=name[:80],
            remedy=sentence("use-characters", most=most),
        )
    return name


def _text(text: str) -> str:
    if not text.strip() or len(text) > MOST_TEXT or "\x00" in text:
        raise InvalidError(
            sentence("not-template"),
            field="text",
            value=len(text),
            remedy=sentence("write-shorter-job", most=format(MOST_TEXT, ",")),
        )
    return text


def _home(viewer: Viewer, tenant: str) -> Tenant | None:
    """Return the tenant of a new template; None for a private template."""
    if not tenant:
        return None
    ids = [pk for pk, known in viewer.tenant_names.items() if known == tenant]
    home: Tenant | None = Tenant.objects.unscoped().filter(pk__in=ids).first()
    if home is None:
        raise NotFoundError(sentence("no-such-tenant"), field="tenant", value=tenant)
    viewer.require(Permission.SUBMIT_JOBS, home.pk, what="templates of the tenant")
    return home


def _check_count(viewer: Viewer, name: str) -> None:
    if JobTemplate.objects.unscoped().filter(owner_id=viewer.user_id).count() >= MOST_TEMPLATES:
        raise InvalidError(
            sentence("too-many-templates", most=MOST_TEMPLATES),
            field="name",
            value=name,
            remedy=sentence("delete-one-first"),
        )
