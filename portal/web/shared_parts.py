"""Cache of page parts that hundreds of viewers fetch for the same change.

A page sends the version of the message for which it fetches a part (``v``). Requests with the same
version, rights, look and language get the same text, for as long as viewers spread their fetches.
Not for longer: use of devices, waits and names change without a version, and a page opened in a
quiet hour would get old ones.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Final

from django.http import HttpResponse
from django.utils.timezone import get_current_timezone
from django.utils.translation import get_language

from portal.web.viewing import PageRequest
from tenants.viewers import Viewer

KEPT: Final = 64
KEPT_FOR: Final = timedelta(seconds=10)
_VERSION: Final = re.compile(r"[0-9]{10,20}")
_KNOWN: Final[OrderedDict[Hashable, tuple[datetime, HttpResponse]]] = OrderedDict()
_LOCK: Final = Lock()


def once_a_version(
    asked: PageRequest, look: Hashable, make: Callable[[], HttpResponse]
) -> HttpResponse:
    """Return the cached or new result of ``make`` for viewers with the same rights.

    Args:
        asked: the request; without a version it is not cached.
        look: cache key besides the rights, language, zone and version.
        make: renders the part; nothing in it may be about the viewer as a person.
    """
    version = asked.http.GET.get("v", "")
    if not _VERSION.fullmatch(version):
        return make()
    viewer = _rights_of(asked.viewer)
    shown = get_language(), get_current_timezone()
    key = (version, look, shown, viewer, frozenset(viewer.roles.items()))
    known = _kept(key, asked.now)
    if known is None:
        known = make()
        _keep(key, known, asked.now)
    return HttpResponse(known.content, headers=dict(known.headers))


def _kept(key: Hashable, now: datetime) -> HttpResponse | None:
    with _LOCK:
        made_at, known = _KNOWN.get(key, (now, None))
    return None if _is_old(made_at, now) else known


def _keep(key: Hashable, made: HttpResponse, now: datetime) -> None:
    with _LOCK:
        _KNOWN[key] = now, made
        _KNOWN.move_to_end(key)
        while len(_KNOWN) > KEPT or _is_old(next(iter(_KNOWN.values()))[0], now):
            _KNOWN.popitem(last=False)


def _is_old(made_at: datetime, now: datetime) -> bool:
    """Return whether it has expired; one of the future is from before the clock was set back."""
    return abs(now - made_at) >= KEPT_FOR


def _rights_of(viewer: Viewer) -> Viewer:
    """Return the viewer without the person: equal for two with the same rights."""
    return replace(viewer, user_id=None, username="", token_prefix="")
