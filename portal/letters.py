"""Mails in the language that their reader has chosen, English where the browser chooses."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.utils import translation
from django.utils.translation import gettext as _

from portal.i18n import is_english, said
from scheduling.core.notices import EVENT_WORDS, NoticeEvent, mail_text, subject_of

FACTS = ("job", "quota", "node")


def letter(body: Mapping[str, Any], language: str) -> tuple[str, str]:
    """Subject and text of a mail about an event.

    Args:
        body: what hooks would be told.
        language: of the person, as it is kept.
    """
    known = {code for code, _name in settings.LANGUAGES}
    with translation.override(language if language in known else "en"):
        if is_english():
            return subject_of(body), mail_text(body)
        return _subject(body), _text(body)


def _subject(body: Mapping[str, Any]) -> str:
    facts = {"event": said(EVENT_WORDS[NoticeEvent(body["event"])])}
    if job := body.get("job"):
        return _("Job %(id)s %(name)s: %(event)s") % {
            **facts,
            "id": job["id"],
            "name": job["name"],
        }
    if node := body.get("node"):
        return _("Node %(name)s: %(event)s") % {**facts, "name": node["name"]}
    if quota := body.get("quota"):
        whose = quota.get("virtual_cluster") or body.get("tenant")
        return _("%(whose)s at %(percent)s %%: %(event)s") % {
            **facts,
            "whose": whose,
            "percent": quota["percent"],
        }
    return str(facts["event"])


def _text(body: Mapping[str, Any]) -> str:
    words = said(EVENT_WORDS[NoticeEvent(body["event"])])
    lines = [_("%(sentence)s.") % {"sentence": words}, ""]
    for part in FACTS:
        for name, value in (body.get(part) or {}).items():
            if value not in (None, "", []):
                lines.append(_fact(name, value))
    if body.get("tenant"):
        lines.append(_fact("tenant", body["tenant"]))
    lines += [_fact("at", body["at"]), ""]
    if body.get("url"):
        lines += [body["url"], ""]
    lines.append(_("What you are told of is chosen in the portal under Notifications."))
    return "\n".join(lines)


def _fact(name: str, value: object) -> str:
    """A line; only a state is a word of ours, all others are names and numbers."""
    shown = said(value) if name == "state" else value
    return _("%(name)s: %(state)s") % {"name": said(name.replace("_", " ")), "state": shown}
