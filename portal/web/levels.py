"""Names of levels of chains, as the chain's own specification names them."""

from typing import Final

from django.utils.translation import gettext as _

from portal.i18n import word
from portal.web.components import words

PLURALS: Final = {"device": "devices", "socket": "sockets", "node": "nodes", "rack": "racks"}


def level_word(level: str, count: int = 1) -> str:
    """Return the name of a level, or its plural form for ``count`` cells."""
    if count == 1:
        return word(level)
    if level in PLURALS:
        return word(PLURALS[level])
    return _("%(level)s cells") % {"level": word(level)}


def cells_in_words(count: int, device_type: str, level: str) -> str:
    """``4 A100 nodes``."""
    return _("%(count)s %(kind)s %(level)s") % {
        "count": words.count(count),
        "kind": device_type,
        "level": level_word(level, count),
    }
