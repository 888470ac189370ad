"""Webhooks: creation with a secret that is shown once, update, test event and deletion."""

import base64
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

from django.db import transaction

from scheduling.common.edits import text_errors
from scheduling.core.messages import sentence
from scheduling.core.notices import (
    BODY_VERSION,
    CHOSEN_EVENTS,
    CLUSTER_EVENTS,
    JOB_EVENTS,
    SECRET_PREFIX,
    NoticeEvent,
    uid_of,
)
from scheduling.notices.models import LONGEST_URL, Delivery, NotificationPreference, Webhook
from scheduling.notices.services.addresses import Network, refusal
from scheduling.secrets import seal
from tenants.audit import record
from tenants.edits import update_row
from tenants.errors import (
    ConflictError,
    FieldError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from tenants.roles import Permission, scopes_allow
from tenants.viewers import Viewer
from tessera.messages import plain

KIND: Final = "webhook"
WORDS: Final = {"url": "address"}
MOST_HOOKS: Final = 20
_KEY_BYTES: Final = 32
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|[0-9a-fA-F:.]{2,45}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSecret:
    """A webhook with its signing secret; show the secret only once."""

    hook: Webhook
    secret: str = field(repr=False)


def create_hook(
    *,
    viewer: Viewer,
    name: str,
    url: str,
    events: Sequence[str],
    tenant_id: int | None,
    now: datetime,
    networks: Sequence[Network] = (),
) -> NewSecret:
    """Create a webhook.

    Args:
        viewer: a lead of the tenant, or a cluster admin.
        name: display name of the webhook.
        url: ``https://`` (or ``http://`` to networks that the installation allows).
        events: events to send.
        tenant_id: the tenant whose events are sent; None for events of the whole cluster.
        now: the current time.
        networks: private networks that the installation allows.

    Raises:
        ForbiddenError, NotFoundError: the viewer may not create the webhook.
        InvalidError: values are not valid; the error lists all faults.
        ConflictError: the maximum number of webhooks exists.
    """
    _require(viewer, tenant_id)
    _require_job_events(viewer, events)
    values = {"name": name, "url": url, "events": events}
    InvalidError.raise_if(_faults(values, tenant_id, networks))
    secret = _new_secret()
    with transaction.atomic():
        if Webhook.objects.unscoped().filter(tenant=tenant_id).count() >= MOST_HOOKS:
            raise ConflictError(
                sentence("too-many-hooks", most=MOST_HOOKS), remedy=sentence("delete-unneeded")
            )
        hook = Webhook.objects.create(
            name=name.strip(),
            tenant_id=tenant_id,
            url=url,
            events=sorted(set(events)),
            sealed_secret=seal(secret),
            created_at=now,
            created_by_id=viewer.user_id,
        )
        shown = {"name": hook.name, "url": origin(url), "events": hook.events}
        record(actor=viewer, action="webhook.create", obj=hook, after=shown, tenant=tenant_id)
    return NewSecret(hook=hook, secret=secret)


def _require_job_events(viewer: Viewer, events: Iterable[str]) -> None:
    """Raise an error if a token subscribes to job events that it may not see."""
    if scopes_allow(viewer.scopes, Permission.VIEW_JOBS):
        return
    of_jobs = sorted({event for event in events if event in set(JOB_EVENTS)})
    if of_jobs:
        raise ForbiddenError(
            sentence("token-lacks-jobs-read"),
            field="events",
            value=of_jobs,
            remedy=sentence("use-token-with-jobs-read"),
        )


def update_hook(
    *,
    viewer: Viewer,
    hook_id: int,
    expected_version: int | None = None,
    networks: Sequence[Network] = (),
    **values: Any,
) -> Webhook:
    """Update name, URL, events or the enabled state of a webhook.

    Args:
        viewer: a lead of its tenant, or a cluster admin.
        hook_id: ID of the webhook.
        expected_version: the version that the viewer has seen.
        networks: private networks that the installation allows.
        **values: new values by column.

    Raises:
        NotFoundError: the viewer has no webhook with this ID.
        InvalidError: values are not valid; the error lists all faults.
        StaleEditError: the webhook was edited since ``expected_version``.
    """
    with transaction.atomic():
        hook = own_hook(viewer, hook_id)
        # A new URL also gets job events, so the token needs the right to see them.
        _require_job_events(viewer, values.get("events", hook.events if "url" in values else ()))
        if values.get("url") == hook.url:
            values.pop("url")  # each delivery checks the URL again
        InvalidError.raise_if(_faults(values, hook.tenant_id, networks))
        if "events" in values:
            values["events"] = sorted(set(values["events"]))
        update_row(
            Webhook.objects.unscoped(),
            hook,
            kind=KIND,
            expected_version=expected_version,
            read_version=hook.version,
            values=values,
            viewer=viewer,
            action="webhook.update",
            tenant=hook.tenant_id,
            shown=_shown,
        )
    return hook


def rotate_secret(*, viewer: Viewer, hook_id: int) -> NewSecret:
    """Replace the secret of a webhook; the old secret is invalid at once.

    Raises:
        NotFoundError: the viewer has no webhook with this ID.
    """
    secret = _new_secret()
    with transaction.atomic():
        hook = own_hook(viewer, hook_id)
        Webhook.objects.unscoped().filter(pk=hook.pk).update(sealed_secret=seal(secret))
        record(actor=viewer, action="webhook.rotate", obj=hook, tenant=hook.tenant_id)
    return NewSecret(hook=hook, secret=secret)


@transaction.atomic
def delete_hook(*, viewer: Viewer, hook_id: int) -> None:
    """Delete a webhook with its deliveries.

    Raises:
        NotFoundError: the viewer has no webhook with this ID.
    """
    hook = own_hook(viewer, hook_id)
    before = {"name": hook.name, "url": origin(hook.url), "events": hook.events}
    record(actor=viewer, action="webhook.delete", obj=hook, before=before, tenant=hook.tenant_id)
    hook.delete()


def ping(*, viewer: Viewer, hook_id: int, now: datetime) -> Delivery:
    """Send a test event to a webhook.

    Raises:
        NotFoundError: the viewer has no webhook with this ID.
        ConflictError: the webhook is disabled.
    """
    hook = own_hook(viewer, hook_id)
    if not hook.enabled:
        raise ConflictError(
            sentence("hook-disabled"), field="enabled", remedy=sentence("enable-it")
        )
    made = Delivery(hook=hook, event=NoticeEvent.PING, created_at=now, next_at=now, body={})
    uid = uid_of("ping", made.uid.int)
    made.event_uid = uid
    made.body = {
        "version": BODY_VERSION,
        "id": str(uid),
        "event": NoticeEvent.PING.value,
        "at": now.isoformat(),
    }
    made.save(force_insert=True)
    return made


def own_hook(viewer: Viewer, hook_id: int) -> Webhook:
    """Return a webhook that the viewer may manage.

    Raises:
        NotFoundError: the viewer may manage no webhook with this ID.
    """
    hook = Webhook.objects.unscoped().filter(pk=hook_id).first()
    if hook is None or not viewer.can(Permission.MANAGE_HOOKS, hook.tenant_id):
        raise NotFoundError(sentence("no-such-hook"), field="id", value=hook_id)
    return hook


def origin(url: str) -> str:
    """Return scheme and host of a URL; its path may contain a key of the receiver."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _require(viewer: Viewer, tenant_id: int | None) -> None:
    what = "the webhooks of the cluster" if tenant_id is None else "the webhooks of the tenant"
    viewer.require(Permission.MANAGE_HOOKS, tenant_id, what=what)


def _new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def _shown(values: Mapping[str, object]) -> dict[str, object]:
    return {key: origin(str(v)) if key == "url" else v for key, v in values.items()}


def _faults(
    values: dict[str, Any], tenant_id: int | None, networks: Sequence[Network]
) -> list[FieldError]:
    faults: list[FieldError] = []
    if "name" in values:
        faults += text_errors(values["name"], field="name", longest=80, empty=False)
    if "url" in values and not _is_address(values["url"]):
        url_rule = sentence("give-https-url", most=LONGEST_URL)
        faults.append(_fault("url", str(values["url"])[:100], url_rule))
    elif "url" in values and (remedy := refusal(values["url"], networks)):
        faults.append(
            FieldError(
                field="url",
                value=origin(values["url"])[:100],
                message=sentence("address-not-allowed"),
                remedy=remedy,
            )
        )
    if "enabled" in values and not isinstance(values["enabled"], bool):
        faults.append(_fault("enabled", values["enabled"], sentence("use-boolean")))
    if "events" in values:
        offered = offered_events(tenant_id)
        events = values["events"]
        known = isinstance(events, list | tuple) and all(event in offered for event in events)
        if not (known and events):
            remedy = sentence("give-some-of", names=", ".join(offered))
            faults.append(_fault("events", events, remedy))
    return faults


def offered_events(tenant_id: int | None) -> tuple[NoticeEvent, ...]:
    """Return the events that a webhook may subscribe to; node events only for the cluster."""
    if tenant_id is None:
        return CHOSEN_EVENTS
    return tuple(event for event in CHOSEN_EVENTS if event not in CLUSTER_EVENTS)


def _is_address(url: object) -> bool:
    if not isinstance(url, str) or len(url) > LONGEST_URL or not url.isprintable():
        return False
    if not url.isascii() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    host = parts.hostname or ""
    return (
        parts.scheme in ("https", "http")
        and _HOST.fullmatch(host) is not None
        and "@" not in parts.netloc
        and port != 0
    )


def _fault(name: str, value: object, remedy: str) -> FieldError:
    return FieldError(
        field=name,
        value=value,
        message=sentence("not-field-of-hook", name=plain(WORDS.get(name, name))),
        remedy=remedy,
    )


@transaction.atomic
def set_mail_events(*, viewer: Viewer, events: Sequence[str]) -> tuple[str, ...]:
    """Set the events that the viewer gets by mail; an empty set is valid.

    Raises:
        ForbiddenError: the viewer is not a person.
        InvalidError: an event is unknown.
    """
    if viewer.user_id is None:
        raise ForbiddenError(sentence("only-users-get-mail"), remedy=sentence("sign-in-as-user"))
    InvalidError.raise_if(
        FieldError(
            field="mail",
            value=event,
            message=sentence("no-such-event"),
            remedy=sentence("give-some-of", names=", ".join(CHOSEN_EVENTS)),
        )
        for event in events
        if event not in CHOSEN_EVENTS
    )
    chosen = tuple(sorted(set(events)))
    row = NotificationPreference.objects.filter(user=viewer.user_id).first()
    before = {} if row is None else {"mail": row.mail}
    row, _ = NotificationPreference.objects.update_or_create(
        user_id=viewer.user_id, defaults={"mail": list(chosen)}
    )
    if before != {"mail": list(chosen)}:
        record(
            actor=viewer,
            action="notifications.update",
            obj=row,
            object_name=viewer.username,
            before=before,
            after={"mail": list(chosen)},
        )
    return chosen
