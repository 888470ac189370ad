"""Webhooks, their deliveries, and mail preferences."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, ClassVar, Final, TypedDict

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.bodies import Body, From, read_body, read_changes
from portal.api.schema import IDEMPOTENCY_KEY, IF_MATCH, PAGE, Op
from portal.api.views import (
    ApiViewSet,
    Nothing,
    ToldOnceError,
    expected_version,
    make_with_key,
    require_scope,
    versioned,
)
from scheduling.common.paging import cut, read_cursor
from scheduling.core.notices import CHOSEN_EVENTS
from scheduling.notices.models import DeliveryState
from scheduling.notices.queries import (
    DeliveryRow,
    HookRow,
    deliveries_for,
    delivery_row,
    hook_for,
    hooks_for,
    mail_events_of,
)
from scheduling.notices.services import deliveries, webhooks
from scheduling.notices.services.addresses import Network, read_networks
from scheduling.notices.services.webhooks import NewSecret, set_mail_events
from tenants.clock import database_now
from tenants.errors import ForbiddenError, InvalidError, NotFoundError
from tenants.models import User
from tenants.roles import Permission
from tenants.selectors import tenant_for
from tenants.services import FormSentError, set_email

_STATES: Final = tuple(DeliveryState.values)
_FILTERS: Final = (
    OpenApiParameter("webhook", int, description="Id of a webhook."),
    OpenApiParameter("state", str, description=f"One of {', '.join(_STATES)}."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookIn:
    """A new webhook; without ``tenant`` (a name) it gets events of the whole cluster."""

    name: str
    url: str
    events: tuple[str, ...]
    tenant: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookPatch:
    """Changes to a webhook."""

    name: str = ""
    url: str = ""
    events: tuple[str, ...] = ()
    enabled: bool = True


class WebhookOut(TypedDict):
    """A webhook; ``tenant`` is null for a webhook of the whole cluster."""

    id: int
    name: str
    tenant: str | None
    url: str
    events: list[str]
    enabled: bool
    waiting: int
    dead: int
    created_at: datetime
    version: int


class NewWebhookOut(WebhookOut):
    """A webhook with its signing secret, which is shown only once."""

    secret: str


class TryOut(TypedDict):
    """A try of a delivery."""

    at: Annotated[str, From("at", str)]
    status: int | None
    error: Annotated[str, From("error", str)]
    seconds: Annotated[float, From("seconds", float)]


class DeliveryOut(TypedDict):
    """A delivery of an event to a webhook, or to you by mail (``webhook`` is null)."""

    id: int
    uid: str
    event: str
    event_id: Annotated[str, From("event_uid")]
    webhook: Annotated[int | None, From("hook_id")]
    state: str
    body: Any
    tries: Annotated[int, From("count")]
    log: Annotated[list[TryOut], From("tries")]
    created_at: datetime
    next_at: datetime
    done_at: datetime | None
    replay_of: str | None


class NotificationsOut(TypedDict):
    """Your mail address and the events that send you a mail."""

    email: str
    mail: list[str]
    events: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationsPatch:
    """Changes to your mail address and to the events that send you a mail."""

    email: str = ""
    mail: tuple[str, ...] = ()


class WebhookViewSet(ApiViewSet):
    """Webhooks: URLs that get events as signed requests."""

    collection = "webhooks"
    needs = Permission.MANAGE_HOOKS
    operations: ClassVar = {
        "list": Op(takes=PAGE, answer=WebhookOut, pages=True),
        "create": Op(takes=(IDEMPOTENCY_KEY,), body=WebhookIn, answer=NewWebhookOut, status=201),
        "retrieve": Op(answer=WebhookOut),
        "partial_update": Op(takes=(IF_MATCH,), body=WebhookPatch, answer=WebhookOut),
        "destroy": Op(status=204),
        "ping": Op(body=Nothing, answer=DeliveryOut, status=202),
        "rotate": Op(body=Nothing, answer=NewWebhookOut),
    }

    def list(self, request: Request) -> Response:
        """List webhooks of the tenants that you lead, or all for cluster admins."""
        return self.page(self.cut(hooks_for(self.viewer), lambda row: row.id), webhook_out)

    def create(self, request: Request) -> Response:
        """Create a webhook; the response shows its secret once.

        A repeated `Idempotency-Key` creates no second webhook: 409 (`told-once`) names the first
        one.
        """
        wanted = read_body(WebhookIn, request.data)
        tenant = wanted.tenant
        create = partial(
            webhooks.create_hook,
            viewer=self.viewer,
            name=wanted.name,
            url=wanted.url,
            events=wanted.events,
            tenant_id=None if tenant is None else tenant_for(self.viewer, tenant).pk,
            now=database_now(),
            networks=hook_networks(),
        )
        try:
            made = make_with_key(
                request, create, viewer=self.viewer, made_key=lambda new: new.hook.pk
            )
        except FormSentError as earlier:
            remedy = "If you lost it, `rotate` creates a new one for the webhook."
            raise ToldOnceError.of("webhook", earlier.made, remedy) from None
        return self._new(made, status=201)

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a webhook."""
        row = hook_for(self.viewer, pk)
        return versioned(webhook_out(row), row.version)

    def partial_update(self, request: Request, pk: int) -> Response:
        """Update, disable or enable a webhook."""
        webhooks.update_hook(
            viewer=self.viewer,
            hook_id=pk,
            expected_version=expected_version(request),
            networks=hook_networks(),
            **read_changes(WebhookPatch, request.data),
        )
        return self.retrieve(request, pk)

    def destroy(self, request: Request, pk: int) -> Response:
        """Delete a webhook with its deliveries."""
        webhooks.delete_hook(viewer=self.viewer, hook_id=pk)
        return Response(status=204)

    @action(detail=True, methods=["post"])
    def ping(self, request: Request, pk: int) -> Response:
        """Send a test event to a webhook."""
        read_body(Nothing, request.data)
        made = webhooks.ping(viewer=self.viewer, hook_id=pk, now=database_now())
        return Response(delivery_out(delivery_row(made)), status=202)

    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, pk: int) -> Response:
        """Replace the signing secret of a webhook."""
        read_body(Nothing, request.data)
        return self._new(webhooks.rotate_secret(viewer=self.viewer, hook_id=pk))

    def _new(self, made: NewSecret, *, status: int = 200) -> Response:
        body = {**webhook_out(hook_for(self.viewer, made.hook.pk)), "secret": made.secret}
        return Response(body, status=status, headers={"Cache-Control": "no-store"})


class DeliveryViewSet(ApiViewSet):
    """Deliveries: delivered, pending and given up."""

    collection = "deliveries"
    operations: ClassVar = {
        "list": Op(takes=(*_FILTERS, *PAGE), answer=DeliveryOut, pages=True),
        "retrieve": Op(answer=DeliveryOut),
        "replay": Op(body=Nothing, answer=DeliveryOut, status=202),
    }

    def list(self, request: Request) -> Response:
        """List deliveries to your webhooks and to you, newest first."""
        state = self.query.text("state")
        if state and state not in _STATES:
            remedy = f"Use one of {', '.join(_STATES)}."
            raise InvalidError(
                "This is not a valid state.", field="state", value=state, remedy=remedy
            )
        limit, last = self.query.limit(), read_cursor(self.query.cursor())
        hook = self.query.number("webhook", default=0)
        found = deliveries_for(
            self.viewer, hook_id=hook or None, state=state, before=last[0] if last else None
        )
        rows = cut(list(found[: limit + 1]), limit, lambda row: int(row.pk))
        return self.page(rows, lambda row: delivery_out(delivery_row(row)))

    def retrieve(self, request: Request, pk: int) -> Response:
        """Get a delivery."""
        row = deliveries_for(self.viewer).filter(pk=pk).first()
        if row is None:
            raise NotFoundError("Delivery not found.", field="id", value=pk)
        return Response(delivery_out(delivery_row(row)))

    @action(detail=True, methods=["post"])
    def replay(self, request: Request, pk: int) -> Response:
        """Repeat a delivery: a new delivery id for the same event id."""
        read_body(Nothing, request.data)
        made = deliveries.replay(viewer=self.viewer, delivery_id=pk, now=database_now())
        return Response(delivery_out(delivery_row(made)), status=202)


class NotificationViewSet(ApiViewSet):
    collection = "notifications"
    operations: ClassVar = {
        "retrieve": Op(answer=NotificationsOut),
        "partial_update": Op(body=NotificationsPatch, answer=NotificationsOut),
    }

    def retrieve(self, request: Request) -> Response:
        """Get your mail address and the events that send you a mail."""
        return Response(self._now(request))

    def partial_update(self, request: Request) -> Response:
        """Set your mail address and the events that send you a mail."""
        require_scope(self.viewer, Permission.SUBMIT_JOBS)
        if self.viewer.bound_tenant_id is not None:
            raise ForbiddenError(
                "The token is limited to one tenant, but mail settings apply to all your tenants.",
                field="permission",
                remedy="Use a token without a tenant limit, or sign in.",
            )
        given = read_changes(NotificationsPatch, request.data)
        if "email" in given:
            set_email(viewer=self.viewer, email=given["email"])
        if "mail" in given:
            set_mail_events(viewer=self.viewer, events=given["mail"])
        _person(request).refresh_from_db()
        return Response(self._now(request))

    def _now(self, request: Request) -> NotificationsOut:
        return {
            "email": _person(request).email,
            "mail": list(mail_events_of(self.viewer)),
            "events": [event.value for event in CHOSEN_EVENTS],
        }


def hook_networks() -> tuple[Network, ...]:
    """Return the private networks that ``TESSERA_HOOK_NETWORKS`` allows for webhooks."""
    return read_networks(settings.TESSERA.hook_networks)


def _person(request: Request) -> User:
    if not isinstance(request.user, User):
        raise ForbiddenError("Only users get mail.", remedy="Sign in as a user.")
    return request.user


webhook_out = Body(WebhookOut, HookRow)
delivery_out = Body(DeliveryOut, DeliveryRow)
