"""Subjects and texts of mails in the language and time zone of the reader.

The defaults are English and UTC.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

from django.conf import settings
from django.utils import translation
from django.utils.translation import gettext as _

from portal.i18n import is_english, translated
from portal.web.preferences import zone_named
from scheduling.core.notices import PARTS, event_words, mail_text, subject_of


def letter(body: Mapping[str, Any], language: str, time_zone: str) -> tuple[str, str]:
    """Return subject and text of a mail about an event.

    Args:
        body: the payload of a webhook.
        language: the stored language of the reader.
        time_zone: the stored time zone of the reader.
    """
    body = {**body, "at": _at(str(body["at"]), zone_named(time_zone) or UTC)}
    known = {code for code, _name in settings.LANGUAGES}
    with translation.override(language if language in known else "en"):
        if is_english():
            return subject_of(body), mail_text(body)
        return _subject(body), _text(body)


def _at(moment: str, zone: tzinfo) -> str:
    """Format a timestamp as ``2026-11-23 12:01:05 CST``; return other texts unchanged."""
    try:
        at = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return f"{at.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"


def _subject(body: Mapping[str, Any]) -> str:
    facts = {"event": translated(event_words(str(body["event"])))}
    if job := body.get("job"):
        return _("Job %(id)s %(name)s: %(event)s") % {
            **facts,
            "id": job["id"],
            "name": job["name"],
        }
    if node := body.get("node"):
        return _("Node %(name)s: %(event)s") % {**facts, "name": node["name"]}
    if host := body.get("host"):
        return _("Host %(name)s: %(event)s") % {**facts, "name": host["name"]}
    if quota := body.get("quota"):
        whose = quota.get("virtual_cluster") or body.get("tenant")
        return _("%(whose)s at %(percent)s %%: %(event)s") % {
            **facts,
            "whose": whose,
            "percent": quota["percent"],
        }
    return str(facts["event"])


def _text(body: Mapping[str, Any]) -> str:
    words = translated(event_words(str(body["event"])))
    lines = [_("%(sentence)s.") % {"sentence": words}, ""]
    for part in PARTS:
        for name, value in (body.get(part) or {}).items():
            if value not in (None, "", []):
                lines.append(_fact(name, value))
    if body.get("tenant"):
        lines.append(_fact("tenant", body["tenant"]))
    lines += [_fact("at", body["at"]), ""]
    if body.get("url"):
        lines += [body["url"], ""]
    lines.append(_("Change your notifications in the portal under Notifications."))
    return "\n".join(lines)


def _fact(name: str, value: object) -> str:
    """Return a line ``name: value``; only values that are states are translated."""
    shown = translated(value) if name == "state" else value
    return _("%(name)s: %(state)s") % {"name": translated(name.replace("_", " ")), "state": shown}
