"""Job templates and saved views of the list of jobs."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, TypedDict

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.request_models import read_body
from portal.api.response_models import Body, From
from portal.api.schema import PAGE, Op
from portal.api.views import ApiViewSet
from scheduling.jobs.models import JobTemplate, SavedView
from scheduling.jobs.services.saved import (
    delete_template,
    delete_view,
    save_template,
    save_view,
    template_for,
    templates_of,
    views_of,
)
from tenants.clock import database_now
from tenants.roles import Permission


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateIn:
    """A new job template; without a tenant it is private."""

    name: str
    text: str
    tenant: str = ""
    note: str = ""


class TemplateOut(TypedDict):
    """A job template; ``tenant`` is empty for a private template."""

    id: Annotated[int, From("pk")]
    name: str
    note: str
    tenant: Annotated[str, From(by=lambda row: row.tenant.name if row.tenant else "")]
    user: Annotated[str, From("owner.username")]
    created_at: datetime
    text: str


class TemplateViewSet(ApiViewSet):
    """Templates of jobs."""

    collection = "job-templates"
    needs = Permission.VIEW_JOBS
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=TemplateOut, pages=True),
        "create": Op(body=TemplateIn, answer=TemplateOut, status=201),
        "retrieve": Op(answer=TemplateOut),
        "destroy": Op(status=204),
    }

    def list(self, request: Request) -> Response:
        """List your job templates and those of your tenants."""
        return self.page(self.rows(templates_of(self.viewer)), template_out)

    def create(self, request: Request) -> Response:
        """Create a job template."""
        wanted = read_body(TemplateIn, request.data)
        made = save_template(
            viewer=self.viewer,
            name=wanted.name,
            text=wanted.text,
            tenant=wanted.tenant,
            note=wanted.note,
            now=database_now(),
        )
        return Response(template_out(made), status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a job template."""
        return Response(template_out(template_for(self.viewer, pk)))

    def destroy(self, request: Request, pk: int) -> Response:
        """Delete a job template."""
        delete_template(viewer=self.viewer, pk=pk)
        return Response(status=204)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewIn:
    """A name, and filters of the job list as a query string."""

    name: str
    query: str


class ViewOut(TypedDict):
    """A saved view."""

    id: Annotated[int, From("pk")]
    name: str
    query: str


class SavedViewSet(ApiViewSet):
    """Your views of the list of jobs."""

    collection = "saved-views"
    needs = Permission.VIEW_JOBS
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=ViewOut, pages=True),
        "create": Op(body=ViewIn, answer=ViewOut, status=201),
        "destroy": Op(status=204),
    }

    def list(self, request: Request) -> Response:
        """List your saved views, oldest first."""
        return self.page(self.rows(views_of(self.viewer)), view_out)

    def create(self, request: Request) -> Response:
        """Create a saved view, or replace the view with the same name."""
        wanted = read_body(ViewIn, request.data)
        query = wanted.query.removeprefix("?")
        made = save_view(viewer=self.viewer, name=wanted.name, query=query, now=database_now())
        return Response(view_out(made), status=201)

    def destroy(self, request: Request, pk: int) -> Response:
        """Delete a saved view."""
        delete_view(viewer=self.viewer, pk=pk)
        return Response(status=204)


template_out = Body(TemplateOut, JobTemplate)
view_out = Body(ViewOut, SavedView)
