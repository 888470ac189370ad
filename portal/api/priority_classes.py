"""Priority classes: names for priorities."""

from dataclasses import dataclass
from typing import ClassVar, TypedDict

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.request_models import read_body, read_changes
from portal.api.response_models import Body
from portal.api.schema import IF_MATCH, PAGE, Op
from portal.api.views import ApiViewSet, expected_version, versioned
from scheduling.clusters.queries.priority_classes import PriorityClassRow, list_priority_classes
from scheduling.clusters.services import priority_classes
from tenants.errors import NotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClassIn:
    """A new priority class; -1 is opportunistic, 0 to 1000 are guaranteed."""

    name: str
    value: int
    note: str = ""
    is_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClassPatch:
    """Changes to a priority class; submitted jobs are unaffected."""

    name: str = ""
    value: int = 0
    note: str = ""
    is_default: bool = False


class PriorityClassOut(TypedDict):
    """A name for a priority."""

    id: int
    name: str
    value: int
    note: str
    is_default: bool
    version: int


class PriorityClassViewSet(ApiViewSet):
    """Names for priorities."""

    collection = "priority-classes"
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=PriorityClassOut, pages=True),
        "create": Op(body=PriorityClassIn, answer=PriorityClassOut, status=201),
        "retrieve": Op(answer=PriorityClassOut),
        "partial_update": Op(takes=(IF_MATCH,), body=PriorityClassPatch, answer=PriorityClassOut),
        "destroy": Op(takes=(IF_MATCH,), status=204),
    }

    def list(self, request: Request) -> Response:
        """List priority classes."""
        found = self.cut(list_priority_classes(self.viewer), lambda row: row.id)
        return self.page(found, priority_class_out)

    def create(self, request: Request) -> Response:
        """Create a priority class."""
        wanted = read_body(PriorityClassIn, request.data)
        row = priority_classes.create_priority_class(
            viewer=self.viewer,
            name=wanted.name,
            value=wanted.value,
            note=wanted.note,
            is_default=wanted.is_default,
        )
        return self._answer(row.pk, status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a priority class."""
        return self._answer(pk)

    def partial_update(self, request: Request, pk: int) -> Response:
        """Update a priority class."""
        priority_classes.update_priority_class(
            viewer=self.viewer,
            priority_class_id=pk,
            expected_version=expected_version(request),
            **read_changes(PriorityClassPatch, request.data),
        )
        return self._answer(pk)

    def destroy(self, request: Request, pk: int) -> Response:
        """Delete a priority class."""
        priority_classes.delete_priority_class(
            viewer=self.viewer, priority_class_id=pk, expected_version=expected_version(request)
        )
        return Response(status=204)

    def _answer(self, pk: int, *, status: int = 200) -> Response:
        for row in list_priority_classes(self.viewer):
            if row.id == pk:
                return versioned(priority_class_out(row), row.version, status=status)
        raise NotFoundError("Priority class not found.", field="id", value=pk)


priority_class_out = Body(PriorityClassOut, PriorityClassRow)
