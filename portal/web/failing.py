"""The banner for admins while a part of the control plane does not work."""

from collections.abc import Sequence
from typing import Final

from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _

from portal.health import HealthPart, failing_parts
from tenants.viewers import Viewer

MOST_NAMES: Final = 5

_SENTENCES: Final = {
    ("database", "other-version"): _(
        "The database belongs to another version of Tessera. Stop this version, and install the"
        " one that migrated the database."
    ),
    ("broker", "unreachable"): _(
        "Redis does not answer. Jobs start up to 15 s later, and open pages do not update."
        " Check the Redis server and TESSERA_REDIS_URL."
    ),
    ("rounds", "none-yet"): _(
        "No scheduling round has run yet. No job starts. Check the processes of the queue rounds."
    ),
    ("rounds", "late"): _(
        "Scheduling rounds are late. No new job starts. Check the processes of the queue rounds,"
        " and beat."
    ),
    ("nodes", "not-carried"): _(
        "No node service carries %(names)s. Jobs there continue, but none starts."
        " Check the processes of the queue nodes."
    ),
    ("nodes", "no-node-service"): _(
        "No node service runs. No job starts. Check the processes of the queue nodes."
    ),
    ("beat", "none-yet"): _(
        "No beat process has run yet. Notices, usage and housekeeping wait. Start one."
    ),
    ("beat", "no-beat"): _(
        "No beat process runs. Notices, usage and housekeeping wait. Start one."
    ),
    ("clock", "clock-skew"): _(
        "The clock of %(names)s is more than 2 s off the database's. Such a host carries no nodes."
        " Synchronize its clock by NTP."
    ),
    ("disk", "almost-full"): _(
        "The data directory on %(names)s is almost full. When it is full, logs stay on the nodes"
        " and uploads are refused. Free space there, or run manage.py prune."
    ),
}


def failing_sentences(viewer: Viewer) -> tuple[str, ...]:
    """A sentence for each part that does not work: cause, effect and remedy."""
    if not viewer.is_cluster_admin or viewer.bound_tenant_id is not None:
        return ()
    return tuple(_sentence(part) for part in failing_parts() if _key(part) in _SENTENCES)


def _sentence(part: HealthPart) -> str:
    return gettext(_SENTENCES[_key(part)]) % {"names": _names(part.subjects)}


def _key(part: HealthPart) -> tuple[str, str]:
    return part.name, part.detail


def _names(subjects: Sequence[str]) -> str:
    more = len(subjects) - MOST_NAMES
    return ", ".join(subjects[:MOST_NAMES]) + (f" (+{more})" if more > 0 else "")
