"""Notification events, retry delays of deliveries, and signatures."""

import base64
import hashlib
import hmac
import re
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum, unique
from types import MappingProxyType
from typing import Any, Final

from scheduling.core.lifecycle import JobState
from scheduling.core.messages import sentence

BODY_VERSION: Final = 1
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 the prefix of secrets, not one of them


@unique
class NoticeEvent(StrEnum):
    """An event for notifications. These names are public and never change."""

    JOB_RUNNING = "job.running"
    JOB_SUCCEEDED = "job.succeeded"
    JOB_FAILED = "job.failed"
    JOB_STOPPED = "job.stopped"
    JOB_PREEMPTED = "job.preempted"
    JOB_REQUEUED = "job.requeued"
    JOB_SUSPECT = "job.suspect"
    JOB_IDLE = "job.idle"
    JOB_SLOWED = "job.slowed"
    JOB_PROMOTED = "job.promoted"
    QUOTA_GUARANTEE = "quota.guarantee"
    QUOTA_GPU_HOURS = "quota.gpu-hours"
    NODE_READY = "node.ready"
    NODE_SUSPECT = "node.suspect"
    NODE_DOWN = "node.down"
    NODE_CORDONED = "node.cordoned"
    NODE_DRAINING = "node.draining"
    NODE_DISK = "node.disk"
    HOST_DISK = "host.disk"
    PING = "ping"


_E = NoticeEvent

EVENT_WORDS: Final[Mapping[NoticeEvent, str]] = MappingProxyType(
    {
        _E.JOB_RUNNING: sentence("event-running"),
        _E.JOB_SUCCEEDED: sentence("event-succeeded"),
        _E.JOB_FAILED: sentence("event-failed"),
        _E.JOB_STOPPED: sentence("event-stopped"),
        _E.JOB_PREEMPTED: sentence("event-preempting"),
        _E.JOB_REQUEUED: sentence("event-requeued"),
        _E.JOB_SUSPECT: sentence("event-suspect"),
        _E.JOB_IDLE: sentence("event-idle"),
        _E.JOB_SLOWED: sentence("event-slowed"),
        _E.JOB_PROMOTED: sentence("event-promoted"),
        _E.QUOTA_GUARANTEE: sentence("event-guarantee-used"),
        _E.QUOTA_GPU_HOURS: sentence("event-budget-used"),
        _E.NODE_READY: sentence("event-node-ready"),
        _E.NODE_SUSPECT: sentence("event-node-suspect"),
        _E.NODE_DOWN: sentence("event-node-down"),
        _E.NODE_CORDONED: sentence("event-node-cordoned"),
        _E.NODE_DRAINING: sentence("event-node-draining"),
        _E.NODE_DISK: sentence("event-node-disk"),
        _E.HOST_DISK: sentence("event-portal-disk"),
        _E.PING: sentence("event-test"),
    }
)
_WORDS: Final[Mapping[str, str]] = {event.value: text for event, text in EVENT_WORDS.items()}


def event_words(event: str) -> str:
    """Return the words of an event, or the words of its name if only a newer release knows it."""
    return _WORDS.get(event) or re.sub(r"[._-]+", " ", event)


JOB_EVENTS: Final = tuple(event for event in NoticeEvent if event.startswith("job."))
NODE_EVENTS: Final = tuple(event for event in NoticeEvent if event.startswith("node."))
HOST_EVENTS: Final = tuple(event for event in NoticeEvent if event.startswith("host."))
CLUSTER_EVENTS: Final = (*NODE_EVENTS, *HOST_EVENTS)
"""Events for cluster admins only."""
QUOTA_EVENTS: Final = tuple(event for event in NoticeEvent if event.startswith("quota."))
CHOSEN_EVENTS: Final = (*JOB_EVENTS, *QUOTA_EVENTS, *CLUSTER_EVENTS)
"""Selectable events; a ping is sent on request."""

QUIET_EVENTS: Final = (_E.JOB_SUCCEEDED, _E.JOB_STOPPED, _E.JOB_PROMOTED)
"""Events whose message is in the inbox as read: their person expects them."""
INBOX_EVENTS: Final = (
    *QUIET_EVENTS,
    _E.JOB_FAILED,
    _E.JOB_PREEMPTED,
    _E.JOB_SUSPECT,
    _E.JOB_IDLE,
    _E.JOB_SLOWED,
    _E.QUOTA_GUARANTEE,
    _E.QUOTA_GPU_HOURS,
    _E.NODE_DOWN,
    _E.NODE_DISK,
    _E.HOST_DISK,
)
"""Events with a message in the inbox, whatever is mailed."""

DEFAULT_MAIL: Final = (
    _E.JOB_FAILED,
    _E.JOB_IDLE,
    _E.JOB_SLOWED,
    _E.QUOTA_GUARANTEE,
    _E.QUOTA_GPU_HOURS,
    _E.NODE_DOWN,
    _E.NODE_DISK,
    _E.HOST_DISK,
)
"""Default mail events of a person without settings."""

JOB_WORDS: Final = tuple(event.removeprefix("job.") for event in JOB_EVENTS)
"""The words of a job's ``notify.on``."""

IDLE_WARNING: Final = "idle-warning"
SLOWED: Final = "slowed"
PROMOTED: Final = "promoted"
"""Kind of the event of a job that has become the holder of its device."""
_BY_KIND: Final[Mapping[tuple[str, str], NoticeEvent]] = MappingProxyType(
    {
        ("all-running", JobState.RUNNING): _E.JOB_RUNNING,
        ("contact-lost", JobState.SUSPECT): _E.JOB_SUSPECT,
        ("preempt", JobState.PREEMPTING): _E.JOB_PREEMPTED,
        ("retry", JobState.QUEUED): _E.JOB_REQUEUED,
        ("released", JobState.QUEUED): _E.JOB_REQUEUED,
        (IDLE_WARNING, ""): _E.JOB_IDLE,
        (SLOWED, ""): _E.JOB_SLOWED,
        (PROMOTED, ""): _E.JOB_PROMOTED,
    }
)
_BY_STATE: Final[Mapping[str, NoticeEvent]] = MappingProxyType(
    {
        JobState.SUCCEEDED: _E.JOB_SUCCEEDED,
        JobState.FAILED: _E.JOB_FAILED,
        JobState.STOPPED: _E.JOB_STOPPED,
    }
)

PARTS: Final = ("job", "quota", "node", "host")
"""Parts of a body that hold facts."""

WAITS: Final = (
    timedelta(seconds=10),
    timedelta(seconds=30),
    timedelta(minutes=2),
    timedelta(minutes=10),
    timedelta(minutes=30),
    timedelta(hours=1),
    timedelta(hours=3),
    timedelta(hours=6),
)
"""Delays after failed tries in seconds; after the last one, the delivery is given up."""


EVENT_KINDS: Final = frozenset(kind for kind, _ in _BY_KIND)
EVENT_STATES: Final = frozenset(_BY_STATE)
"""Kinds and states of lines for which this release has an event."""


def event_of(kind: str, state: str) -> NoticeEvent | None:
    """Return the notification event for a line of a job's events, or None without one.

    Args:
        kind: kind of the line.
        state: job state after the event; empty if the event did not change it.
    """
    return _BY_STATE.get(state) or _BY_KIND.get((kind, state))


def next_try(tries: int, now: datetime) -> datetime | None:
    """Return the time of the next try after ``tries`` failed ones, or None after the last."""
    return now + WAITS[tries - 1] if tries <= len(WAITS) else None


def uid_of(source: str, key: int) -> uuid.UUID:
    """Derive the deterministic ID of an event.

    Args:
        source: kind of the row that contains the event.
        key: primary key of that row.
    """
    return uuid.uuid5(uuid.NAMESPACE_URL, f"urn:tessera:{source}:{key}")


def sign(secret: str, *, message_id: str, timestamp: int, body: bytes) -> str:
    """Sign one delivery according to Standard Webhooks 1.0.

    Args:
        secret: ``whsec_`` and the key in base64.
        message_id: ID of the delivery, constant over its tries.
        timestamp: time of this try in seconds since the epoch.
        body: the sent bytes.
    """
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def subject_of(body: Mapping[str, Any]) -> str:
    """Build the subject of a mail about an event."""
    event = str(body["event"])
    if event not in _WORDS:
        name = next(
            (str(body[part]["name"]) for part in PARTS if "name" in body.get(part, {})), ""
        )
        return f"{event_words(event)}: {name}" if name else event_words(event)
    if job := body.get("job"):
        verb = event.removeprefix("job.")
        said = {
            "running": "runs",
            "idle": "idles",
            "slowed": "is slowed by guests",
            "promoted": "has its own device",
            "suspect": "is unreachable",
        }.get(verb, {"requeued": "is queued again"}.get(verb, verb))
        return f"Job {job['id']} {job['name']} {said}"
    if event in (_E.NODE_DISK, _E.HOST_DISK):
        what, name = ("node", body["node"]) if "node" in body else ("host", body["host"])
        return f"Disk of {what} {name['name']} is almost full"
    if node := body.get("node"):
        return f"Node {node['name']} is {event.removeprefix('node.')}"
    if quota := body.get("quota"):
        what = "guarantee" if event == _E.QUOTA_GUARANTEE else "GPU-hours of this month"
        whose = quota.get("virtual_cluster") or body.get("tenant")
        return f"{quota['percent']} % of the {what} of {whose}"
    return "A test of notifications"


def mail_text(body: Mapping[str, Any]) -> str:
    """Build the text of a mail about an event: one fact per line, without secrets."""
    lines = [f"{event_words(str(body['event'])).capitalize()}.", ""]
    for part in PARTS:
        for name, value in (body.get(part) or {}).items():
            if value not in (None, "", []):
                lines.append(f"{name.replace('_', ' ')}: {value}")
    if body.get("tenant"):
        lines.append(f"tenant: {body['tenant']}")
    lines += [f"at: {body['at']}", ""]
    if body.get("url"):
        lines += [body["url"], ""]
    lines.append("Change your notifications in the portal under Notifications.")
    return "\n".join(lines)
