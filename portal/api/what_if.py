"""What-if: past days under another policy, computed in a separate process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, ClassVar, TypedDict

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.instants import instant_from
from portal.api.request_models import read_body
from portal.api.response_models import Body, From
from portal.api.schema import PAGE, Op
from portal.api.views import ApiViewSet
from scheduling.what_if.models import WhatIf
from scheduling.what_if.services.what_if import ask_what_if, what_if_for, what_ifs_of
from tenants.clock import database_now


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfIn:
    """A new what-if; ``until`` defaults to now. ``size_aware``: policies know remaining work.

    ``guarantee``: devices by type, where they are to be others than at that time.
    """

    virtual_cluster: str
    policy: str
    policy_args: Mapping[str, Any] = field(default_factory=dict)
    since: str
    until: str | None = None
    size_aware: bool = False
    guarantee: Mapping[str, int] = field(default_factory=dict)


def what_if_state(row: WhatIf) -> str:
    """``queued``, ``running``, ``done`` or ``failed``."""
    if row.finished_at is not None:
        return "failed" if row.fault else "done"
    return "queued" if row.begun_at is None else "running"


class WhatIfOut(TypedDict):
    """A what-if; ``state`` is queued, running, done or failed."""

    id: Annotated[int, From("pk")]
    state: Annotated[str, From(by=what_if_state)]
    virtual_cluster: Annotated[str, From("virtual_cluster.name")]
    policy: str
    policy_args: dict[str, Any]
    since: datetime
    until: datetime
    size_aware: bool
    guarantee: dict[str, int]
    step: int
    asked_by: Annotated[str, From(by=lambda row: row.asked_by.username if row.asked_by else "")]
    asked_at: datetime
    finished_at: datetime | None
    fault: str


class WhatIfDetailOut(WhatIfOut):
    """A what-if with its result; null until it is done."""

    result: Annotated[dict[str, Any] | None, From(by=lambda row: row.result or None)]


class WhatIfViewSet(ApiViewSet):
    """Past days of a virtual cluster under another policy."""

    collection = "what-if"
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=WhatIfOut, pages=True),
        "create": Op(body=WhatIfIn, answer=WhatIfDetailOut, status=202),
        "retrieve": Op(answer=WhatIfDetailOut),
    }

    def list(self, request: Request) -> Response:
        """List what-ifs of the last 24 h about virtual clusters whose jobs you may see."""
        return self.page(self.rows(what_ifs_of(self.viewer, now=database_now())), what_if_out)

    def create(self, request: Request) -> Response:
        """Create a what-if; its result is available at its address for 24 h."""
        wanted = read_body(WhatIfIn, request.data)
        now = database_now()
        asked = ask_what_if(
            viewer=self.viewer,
            virtual_cluster=wanted.virtual_cluster,
            policy=wanted.policy,
            policy_args=wanted.policy_args,
            since=instant_from("since", wanted.since),
            until=now if wanted.until is None else instant_from("until", wanted.until),
            size_aware=wanted.size_aware,
            guarantee=wanted.guarantee,
            now=now,
        )
        return Response(_detail_out(what_if_for(self.viewer, asked.pk, now=now)), status=202)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a what-if, with its result when it is done."""
        return Response(_detail_out(what_if_for(self.viewer, pk, now=database_now())))


what_if_out = Body(WhatIfOut, WhatIf)
_detail_out = Body(WhatIfDetailOut, WhatIf)
