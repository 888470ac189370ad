"""Somebody else's job format, translated; and submitted, unless it is a dry run."""

from typing import Any, ClassVar, Final, TypedDict

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.cluster import UnsupportedOut
from portal.api.importers.openpai import translate_openpai
from portal.api.job_bodies import OPENPAI, ground_for, imported_submission
from portal.api.job_shapes import AcceptedJobOut, accepted_job_out
from portal.api.schema import DRY_RUN, Op
from portal.api.views import ApiViewSet
from scheduling.selectors.jobs import rows_of_jobs
from scheduling.selectors.parts import parts_of_job
from scheduling.services.submission import submit_job
from tenants.errors import InvalidError

FORMATS: Final = (OPENPAI,)


class UnsupportedFormatError(InvalidError):
    """There is no importer for this format."""

    code = "unsupported-format"
    title = "This format cannot be imported"


class ImportOut(TypedDict):
    """A translation; ``job`` is what was submitted, null for a dry run."""

    spec: Any
    warnings: list[str]
    unsupported: list[UnsupportedOut]
    job: AcceptedJobOut | None


class ImportViewSet(ApiViewSet):
    """Jobs in other formats."""

    collection = "import"
    lookup_value_converter = "slug"
    operations: ClassVar = {
        "translate": Op(
            takes=(DRY_RUN,),
            body={"type": "object", "description": "A document in the format."},
            answer=ImportOut,
            status=201,
            also={200: ImportOut},
        )
    }

    def translate(self, request: Request, pk: str) -> Response:
        """Translate a job and submit it; with `dry_run=1` only translate it.

        `unsupported` lists what has no counterpart here, and whether the job would do the same
        without it (`needed`); a submitted job keeps the list among its warnings.
        """
        if pk not in FORMATS:
            raise UnsupportedFormatError(
                f"There is no importer for {pk}.",
                field="format",
                value=pk,
                remedy=f"These work: {', '.join(FORMATS)}.",
            )
        imported = translate_openpai(request.data)
        body = imported.job_to_json()
        if self.query.flag("dry_run"):
            return Response({**body, "job": None})
        text = getattr(request, "_tessera_text", "")
        job, _ = submit_job(
            submission=imported_submission(imported, request.data, text),
            viewer=self.viewer,
            ground=ground_for(self.viewer),
            now=timezone.now(),
        )
        row = rows_of_jobs(self.viewer, [job.pk])[job.pk]
        accepted = accepted_job_out(row, job.warnings, parts_of_job(self.viewer, job))
        return Response({**body, "job": accepted}, status=201)
