"""The inbox: messages of a person about their jobs, quotas and nodes, with a read state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.addresses import address, job_url, node_url
from portal.web.viewing import PageRequest, page, posts_from
from scheduling.core.notices import NoticeEvent, event_words
from scheduling.enums import FailureClassChoice
from tenants.errors import NotFoundError
from tenants.models import InboxMessage
from tenants.selectors import inbox_for
from tenants.services import mark_messages
from tenants.viewers import Viewer

READ_AT_ONCE: Final = 60
"""Newest read messages that a fold may combine."""
PAGE_ROWS: Final = 50
MOST_UNREAD: Final = 100
_E: Final = NoticeEvent
_TONES: Final[Mapping[str, tuple[str, str]]] = {
    _E.JOB_FAILED: ("failed", "bad"),
    _E.JOB_SUCCEEDED: ("succeeded", "ok"),
    _E.JOB_STOPPED: ("stopped", ""),
    _E.JOB_PREEMPTED: ("preempting", "warn"),
    _E.JOB_SUSPECT: ("suspect", "warn"),
    _E.JOB_IDLE: ("clock", "warn"),
    _E.JOB_SLOWED: ("warning", "warn"),
    _E.JOB_PROMOTED: ("running", "ok"),
    _E.NODE_DOWN: ("failed", "bad"),
    _E.NODE_DISK: ("warning", "warn"),
    _E.HOST_DISK: ("warning", "warn"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """A message, or several of one event of one job.

    Attributes:
        text: what happened, without the name.
        repeats: number of further messages of the same event and job behind it.
        ids: keys of all of them.
    """

    id: int
    name: str
    text: str
    icon: str
    tone: str
    url: str
    at: datetime
    is_read: bool
    repeats: int = 0
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxView:
    """The newest messages and the number of unread ones, up to ``MOST_UNREAD``."""

    rows: tuple[MessageRow, ...]
    unread: int

    @property
    def unread_text(self) -> str:
        return f"{self.unread}+" if self.unread >= MOST_UNREAD else str(self.unread)


def inbox_rows(viewer: Viewer, *, most: int) -> InboxView:
    """Return unread messages, folded, then the newest read ones, in two queries."""
    unread = list(inbox_for(viewer).filter(read_at=None)[:MOST_UNREAD])
    read = inbox_for(viewer).exclude(read_at=None)[:READ_AT_ONCE]
    rows = folded([message_row(row) for row in (*unread, *read)])
    return InboxView(rows=tuple(rows[:most]), unread=len(unread))


def folded(rows: Sequence[MessageRow]) -> list[MessageRow]:
    """Combine messages about the same thing; the newest of them is shown."""
    kept: dict[tuple[str, str, str, bool], MessageRow] = {}
    for row in rows:
        key = (row.url, row.name, row.text, row.is_read)
        first = kept.get(key)
        if first is None:
            kept[key] = replace(row, ids=(row.id,))
        else:
            kept[key] = replace(first, repeats=first.repeats + 1, ids=(*first.ids, row.id))
    return list(kept.values())


def message_row(row: InboxMessage) -> MessageRow:
    icon, tone = _TONES.get(row.event, ("info", ""))
    name, url = _subject(row.body)
    return MessageRow(
        id=row.pk,
        name=name,
        text=_text(row.event, row.body),
        icon=icon,
        tone=tone,
        url=url,
        at=row.at,
        is_read=row.read_at is not None,
    )


def _subject(body: Mapping[str, Any]) -> tuple[str, str]:
    if job := body.get("job"):
        return str(job["name"]), job_url(job["id"])
    if node := body.get("node"):
        return str(node["name"]), node_url(node["id"])
    if quota := body.get("quota"):
        name = quota.get("virtual_cluster") or body.get("tenant") or ""
        return str(name), address("usage")
    return str(body.get("host", {}).get("name", "")), ""


def _text(event: str, body: Mapping[str, Any]) -> str:
    job, quota = body.get("job", {}), body.get("quota", {})
    if event == _E.JOB_FAILED:
        return _failure(job)
    texts: dict[str, str] = {
        _E.JOB_SUCCEEDED: _("succeeded."),
        _E.JOB_STOPPED: _("was stopped."),
        _E.JOB_PREEMPTED: _("was preempted and is queued again."),
        _E.JOB_SUSPECT: _("runs on a node that does not respond."),
        _E.JOB_IDLE: _("leaves its devices idle."),
        _E.JOB_SLOWED: _("is slowed down by guests beyond its limit."),
        _E.JOB_PROMOTED: _("has the device alone because its holder ended."),
        _E.NODE_DOWN: _("is down."),
        _E.NODE_DISK: _("has an almost full disk."),
        _E.HOST_DISK: _("has an almost full data directory."),
        _E.QUOTA_GUARANTEE: _("uses %(percent)s %% of its guarantee."),
        _E.QUOTA_GPU_HOURS: _("used %(percent)s %% of the GPU-hours of this month."),
    }
    # The next release may have written a message of another event, with its English words.
    text = texts.get(event) or f"{body.get('words') or event_words(event)}."
    return text % {"percent": quota.get("percent", "")} if "%(percent)" in text else text


def _failure(job: Mapping[str, Any]) -> str:
    exit_code, cause = job.get("exit_code"), job.get("failure_class")
    if exit_code is not None:
        return _("failed with exit code %(code)s.") % {"code": exit_code}
    if cause in FailureClassChoice.values:
        return _("failed: %(cause)s.") % {"cause": FailureClassChoice(cause).label}
    return _("failed.")


@page
def inbox(asked: PageRequest) -> HttpResponseBase:
    """Show all messages, newest first."""
    before = asked.http.GET.get("before", "")
    rows = inbox_for(asked.viewer)
    if before.isascii() and before.isdecimal() and len(before) < 19:
        rows = rows.filter(pk__lt=int(before))
    found = [message_row(row) for row in rows[: PAGE_ROWS + 1]]
    return asked.render(
        "home/inbox.html",
        {
            "rows": [replace(row, ids=(row.id,)) for row in found[:PAGE_ROWS]],
            "older": found[PAGE_ROWS - 1].id if len(found) > PAGE_ROWS else None,
        },
    )


@page
def open_message(asked: PageRequest, message_id: int) -> HttpResponseBase:
    """Mark a message as read, and go to its subject.

    Raises:
        NotFoundError: the reader has no such message.
    """
    row = inbox_for(asked.viewer).filter(pk=message_id).first()
    if row is None:
        raise NotFoundError(_("This message does not exist."), field="id", value=message_id)
    mark_messages(viewer=asked.viewer, ids=[message_id], read=True, now=asked.now)
    return redirect(message_row(row).url or "inbox")


@posts_from("mine")
@page
def mark(asked: PageRequest) -> HttpResponseBase:
    """Mark messages as read or unread; without IDs all of them."""
    sent = asked.http.POST
    ids = [int(text) for text in sent.get("ids", "").split(",") if _is_key(text)]
    is_all = sent.get("all") == "1"
    if ids or is_all:
        mark_messages(
            viewer=asked.viewer,
            ids=None if is_all else ids,
            read=sent.get("read") != "0",
            now=asked.now,
        )
    return redirect("inbox" if sent.get("from") == "inbox" else "mine")


def _is_key(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19
