"""Upload of a source code archive with the form."""

from django.utils.translation import gettext

from portal.web.submit_text import Typed, with_changes
from portal.web.viewing import PageRequest
from scheduling.jobs.queries.submit_context import SubmitContext
from scheduling.jobs.services.archives import store_archive
from tenants.errors import DomainError, FieldError
from workers.conf import ARCHIVES_DIR, worker_settings

PIECE_BYTES = 1 << 20
FIELD = "source.archive"


def with_upload(
    request: PageRequest, typed: Typed, ground: SubmitContext
) -> tuple[Typed, tuple[FieldError, ...]]:
    """Store the archive, if any, and name it in the document.

    It belongs to the tenant of the document's virtual cluster.

    Returns:
        The text, and the faults of the archive.
    """
    upload = request.http.FILES.get("upload")
    if upload is None or typed.document is None:
        return typed, ()
    cluster = ground.clusters.get(str(typed.document.get("virtual_cluster")))
    if cluster is None:
        fault = FieldError(
            field=FIELD,
            value=upload.name,
            message=gettext("The tenant of the archive is not known."),
            remedy=gettext("Select a virtual cluster first, then the file."),
        )
        return typed, (fault,)
    try:
        row, _ = store_archive(
            viewer=request.viewer,
            tenant_id=cluster.tenant_id,
            name=upload.name or "source",
            content=upload.chunks(PIECE_BYTES),
            archives_dir=worker_settings().data_dir / ARCHIVES_DIR,
            now=request.now,
            tenant_bytes=worker_settings().archive_bytes,
        )
    except DomainError as error:
        fault = FieldError(
            field=FIELD, value=upload.name, message=error.message, remedy=error.remedy
        )
        return typed, (fault,)
    return with_changes(typed, [(("source",), {"archive": row.sha256})]), ()
