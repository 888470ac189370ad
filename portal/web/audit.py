"""Page of the audit: changes with actor, before and after."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.addresses import address
from portal.api.history import csv_file, plain_text
from portal.i18n import translated, word
from portal.web.components import words
from portal.web.components.states import NODE_STATES
from portal.web.viewing import PageRequest, page
from scheduling.core.lifecycle import JobState
from tenants.audit import record_once
from tenants.errors import InvalidError
from tenants.models import AuditEntry
from tenants.roles import Permission, Role
from tenants.selectors import MOST_ROWS, AuditPage, audit_page, tenants_for, users_for

MOST_TEXT: Final = 400
QUOTA: Final = {"chain", "level", "count"}
POLICY: Final = {"policy", "policy_args"}
FILTERS: Final = ("actor", "action", "object_type", "object_id", "tenant", "since", "until")
MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
WORDS: Final = frozenset((*Role, *JobState, *NODE_STATES))
"""Values that are terms of Tessera, not names."""
OBJECTS: Final = {
    "node": "node",
    "virtualcluster": "virtual-cluster",
    "job": "job",
    "tenant": "tenant",
}


MOST_OFFERED: Final = 500
MOST_EXPORTED: Final = 10_000
EXPORTED: Final = (
    "at", "actor", "token", "action", "object_type", "object_id", "object_name", "tenant",
    "before", "after", "message", "request_id",
)  # fmt: skip
"""Columns of the CSV file."""
ACTIONS: Final = (
    "announcement.", "archive.", "audit.", "cluster.", "delivery.", "device.", "history.",
    "device_alias.", "import_rule.", "job.", "job_limit.", "log_rule.", "member.", "node.",
    "notifications.",
    "policy.", "priority_class.", "promises.", "storage.", "sweep.", "tenant.", "token.",
    "usage.", "user.", "virtual_cluster.", "webhook.", "what-if.", "policy-advice.",
)  # fmt: skip
"""Offered kinds of actions; the field takes any action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """Old and new value of one field; None if it is missing."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEntry:
    """A row of the audit with its differences as text."""

    entry: AuditEntry
    url: str
    verb: str
    changes: tuple[FieldChange, ...]

    @property
    def is_new(self) -> bool:
        """Return whether the change created the object, so that it has no previous value."""
        return not self.entry.before


@page
def audit(asked: PageRequest) -> HttpResponseBase:
    if not asked.viewer.can_somewhere(Permission.READ_AUDIT):
        asked.viewer.require(Permission.READ_AUDIT, what="the audit")
    filters = _filters(asked)
    found = _entries(asked, filters, cursor=asked.http.GET.get("cursor") or None)
    return asked.render(
        "audit/audit.html",
        {
            "rows": shown_entries(found.rows),
            "next_cursor": found.next_cursor,
            "filters": filters,
            "is_filtered": any(filters.values()),
            "tenants": tuple(tenants_for(asked.viewer)),
            "csv": f"{reverse('audit-csv')}?{urlencode({k: v for k, v in filters.items() if v})}",
            "people": users_for(asked.viewer).values_list("username", flat=True)[:MOST_OFFERED],
            "actions": ACTIONS,
        },
    )


@require_safe
@page
def audit_csv(asked: PageRequest) -> HttpResponse:
    """Return the entries of the filters as a CSV file and record the export in the audit."""
    if not asked.viewer.can_somewhere(Permission.READ_AUDIT):
        asked.viewer.require(Permission.READ_AUDIT, what="the audit")
    filters = _filters(asked)
    cursor: str | None = None
    rows: list[tuple[str, ...]] = []
    while len(rows) < MOST_EXPORTED:
        found = _entries(asked, filters, cursor=cursor, limit=MOST_ROWS)
        rows += [_cells(entry) for entry in found.rows]
        cursor = found.next_cursor
        if cursor is None:
            break
    record_once(
        actor=asked.viewer,
        action="audit.export",
        object_type="audit",
        object_id=filters["tenant"],
        object_name=filters["tenant"] or "audit",
        after={name: value for name, value in filters.items() if value},
    )
    return csv_file(EXPORTED, rows[:MOST_EXPORTED], "audit.csv")


def _cells(entry: AuditEntry) -> tuple[str, ...]:
    texts = (
        entry.at.astimezone(UTC).isoformat(timespec="milliseconds"),
        entry.actor_name,
        entry.token_prefix,
        entry.action,
        entry.object_type,
        entry.object_id,
        entry.object_name,
        entry.tenant.name if entry.tenant else "",
        orjson.dumps(entry.before).decode(),
        orjson.dumps(entry.after).decode(),
        entry.message,
        entry.request_id,
    )
    return tuple(map(plain_text, texts))


def _filters(asked: PageRequest) -> dict[str, str]:
    return {name: asked.http.GET.get(name, "").strip()[:150] for name in FILTERS}


def _entries(
    asked: PageRequest, filters: Mapping[str, str], *, cursor: str | None, limit: int = 50
) -> AuditPage:
    tenant_id = None
    if filters["tenant"]:
        by_name = {tenant.name: tenant.pk for tenant in tenants_for(asked.viewer)}
        tenant_id = by_name.get(filters["tenant"], -1)
    return audit_page(
        asked.viewer,
        cursor=cursor,
        limit=limit,
        tenant_id=tenant_id,
        actor=filters["actor"],
        action=filters["action"],
        object_type=filters["object_type"],
        object_id=filters["object_id"],
        since=_midnight(filters["since"]),
        until=_midnight(filters["until"], after=True),
    )


def _midnight(day: str, *, after: bool = False) -> datetime | None:
    """Return the start of a day in the reader's zone, or of the day after it.

    Raises:
        InvalidError: it is not a date.
    """
    if not day:
        return None
    try:
        start = datetime.combine(date.fromisoformat(day), time(), get_current_timezone())
        return start + timedelta(days=1) if after else start
    except (ValueError, OverflowError):
        raise InvalidError(
            _("This is not a valid date."),
            field="until" if after else "since",
            value=day[:40],
            remedy=_("Use the format 2026-03-31."),
        ) from None


def shown_entries(entries: Iterable[AuditEntry]) -> tuple[ShownEntry, ...]:
    """Return entries with their changes, field by field."""
    return tuple(
        ShownEntry(
            entry=entry,
            url=_url(entry),
            verb=" · ".join(word(part.replace("_", " ")) for part in entry.action.split(".")),
            changes=changes_between(entry.before, entry.after),
        )
        for entry in entries
    )


def changes_between(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[FieldChange, ...]:
    """Return the fields of both sides in order, each with old and new value."""
    return tuple(
        FieldChange(
            name=_column_words(name),
            before=value_words(before[name]) if name in before else None,
            after=value_words(after[name]) if name in after else None,
        )
        for name in dict.fromkeys([*before, *after])
    )


def _column_words(column: str) -> str:
    """Return a column in words, translated as its name or as the label of its form field."""
    name = column.replace("_", " ")
    for spelled in (name, name.capitalize()):
        if spelled and (found := _(spelled)) != spelled:
            return found
    return name


def value_words(value: object) -> str:
    """Format a stored value for display; long texts are truncated."""
    if value is None or value in ("", [], {}):
        return _("none")
    if isinstance(value, bool):
        return str(translated(_("yes") if value else _("no")))
    if isinstance(value, Mapping) and set(value) == QUOTA:
        text = f"{value['count']} × {_cell_words(str(value['chain']), str(value['level']))}"
    elif isinstance(value, Mapping):
        # Other keys may be names given by people.
        named = word if set(value) == POLICY else str
        text = _(", ").join(
            f"{named(key.replace('_', ' '))} {value_words(item)}" for key, item in value.items()
        )
    elif isinstance(value, list):
        text = _("; ").join(value_words(item) for item in value)
    else:
        text = word(str(value)) if value in WORDS else _moment_words(str(value))
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"


def _cell_words(chain: str, level: str) -> str:
    """Format a level apart from its device type: ``cpu-a socket``, in the chain ``cpu-a-node``."""
    kind, dash, name = level.rpartition("-")
    return f"{kind} {word(name)}" if dash and chain.startswith(f"{kind}-") else word(level)


def _moment_words(text: str) -> str:
    """Format a stored time to the second; any other text is unchanged."""
    if not MOMENT.fullmatch(text):
        return text
    try:
        return words.utc(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return text


def _url(entry: AuditEntry) -> str:
    name = OBJECTS.get(entry.object_type, "")
    is_number = entry.object_id.isdecimal() and len(entry.object_id) < 19
    return address(name, int(entry.object_id)) if name and is_number else ""
