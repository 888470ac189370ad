"""Policy advice: past days of a virtual cluster replayed under every policy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, ClassVar, TypedDict

from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, From, read_body
from portal.api.queries import instant_from
from portal.api.rounds import what_if_state
from portal.api.schema import PAGE, Op
from portal.api.views import ApiViewSet, Nothing
from scheduling.what_if.models import WhatIf, WhatIfKind
from scheduling.what_if.queries import visible_advice
from scheduling.what_if.services.what_if import (
    ask_advice,
    cancel_what_if,
    what_if_for,
    what_ifs_of,
)
from tenants.clock import database_now
from tenants.viewers import Viewer

_ADVICE = WhatIfKind.ADVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceIn:
    """A new advice; ``until`` defaults to now.

    ``nodes``: by device type, the number of nodes more, or fewer if negative.
    """

    virtual_cluster: str
    since: str
    until: str | None = None
    nodes: Mapping[str, int] = field(default_factory=dict)


class AdviceOut(TypedDict):
    """Advice; ``state`` is queued, running, done or failed, and ``step`` is of ``steps``."""

    id: Annotated[int, From("pk")]
    state: Annotated[str, From(by=what_if_state)]
    virtual_cluster: Annotated[str, From("virtual_cluster.name")]
    policy: str
    policy_args: dict[str, Any]
    since: datetime
    until: datetime
    nodes: dict[str, int]
    step: int
    steps: int
    asked_by: Annotated[str, From(by=lambda row: row.asked_by.username if row.asked_by else "")]
    asked_at: datetime
    finished_at: datetime | None
    fault: str


class AdviceDetailOut(AdviceOut):
    """Advice with its result; null until it is done."""

    result: Annotated[dict[str, Any] | None, From(by=lambda row: row.result or None)]


class AdviceViewSet(ApiViewSet):
    """Advice on the policy of a virtual cluster, from replays of past days."""

    collection = "policy-advice"
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=AdviceOut, pages=True),
        "create": Op(body=AdviceIn, answer=AdviceDetailOut, status=202),
        "retrieve": Op(answer=AdviceDetailOut),
        "cancel": Op(answer=AdviceDetailOut),
    }

    def list(self, request: Request) -> Response:
        """List the advice of the last 24 h about virtual clusters whose jobs you may see."""
        found = what_ifs_of(self.viewer, now=database_now(), kind=_ADVICE)
        return self.page(self.rows(found), advice_out)

    def create(self, request: Request) -> Response:
        """Request an advice; its result is available at its address for 24 h."""
        wanted = read_body(AdviceIn, request.data)
        now = database_now()
        asked = ask_advice(
            viewer=self.viewer,
            virtual_cluster=wanted.virtual_cluster,
            since=instant_from("since", wanted.since),
            until=now if wanted.until is None else instant_from("until", wanted.until),
            nodes=wanted.nodes,
            now=now,
        )
        return Response(self._detail(asked.pk, now), status=202)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get an advice, with its result when it is done."""
        return Response(self._detail(pk, database_now()))

    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: int) -> Response:
        """Cancel an advice; a finished one does not change."""
        read_body(Nothing, request.data)
        now = database_now()
        cancel_what_if(self.viewer, pk, now=now, kind=_ADVICE)
        return Response(self._detail(pk, now))

    def _detail(self, pk: int, now: datetime) -> Mapping[str, Any]:
        return advice_detail(self.viewer, what_if_for(self.viewer, pk, now=now, kind=_ADVICE))


def advice_detail(viewer: Viewer, row: WhatIf) -> Mapping[str, Any]:
    """Return an advice with the part of its result that the viewer may see."""
    row.result = visible_advice(viewer, row.result)
    return _detail_out(row)


advice_out = Body(AdviceOut, WhatIf)
_detail_out = Body(AdviceDetailOut, WhatIf)
