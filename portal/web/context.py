"""Context of the page frame: navigation, theme, round ticker. It runs no queries."""

from dataclasses import dataclass
from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.translation import get_language, gettext

from portal.i18n import gettext_lazy
from portal.i18n.scripts import script_words
from portal.web.components.bars import TickerBar, ticker_bars
from portal.web.frame import Frame, get_frame
from portal.web.preferences import abbreviation, chosen_language, chosen_zone, in_words
from tenants.clock import estimated_now
from tenants.models import Language

THEMES: Final = ("light", "dark")
LANGUAGE_WORDS: Final = {str(Language.BROWSER): gettext_lazy("Automatic")}


@dataclass(frozen=True, slots=True, kw_only=True)
class NavItem:
    """One item of the navigation.

    Attributes:
        name: the label.
        url: address of the page.
        icon: id in ``img/icons.svg``.
        key: second key after ``g``, or empty.
        count: grey number, if any.
        flag: red number where action is needed, if any.
        active: the page is below this item.
        starts_group: a hairline is above it.
    """

    name: str
    url: str
    icon: str
    key: str = ""
    count: int | None = None
    flag: int | None = None
    active: bool = False
    starts_group: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTicker:
    """The round ticker as first rendered; the page's script updates it."""

    number: int | None
    seconds: float | None
    policy: str
    age_seconds: float | None
    late: str
    bars: tuple[TickerBar, ...]
    trouble: str


# url name, label, icon, key after g, first of a group
ITEMS: Final = (
    ("home", gettext_lazy("Home"), "overview", "h", False),
    ("submit", gettext_lazy("Submit"), "plus", "s", False),
    ("jobs", gettext_lazy("Jobs"), "list", "j", False),
    ("timeline", gettext_lazy("Timeline"), "timeline", "t", False),
    ("nodes", gettext_lazy("Nodes"), "nodes", "n", True),
    ("virtual-clusters", gettext_lazy("Virtual clusters"), "clusters", "v", False),
    ("tenants", gettext_lazy("Tenants"), "people", "", False),
    ("usage", gettext_lazy("Usage"), "clock", "u", False),
    ("policies", gettext_lazy("Policies"), "policies", "p", True),
    ("audit", gettext_lazy("Audit"), "audit", "a", False),
)
ALIASES: Final = {
    "mine": "home",
    "inbox": "home",
    "overview": "home",
    "job-limits": "tenants",
    "job": "jobs",
    "job-templates": "submit",
    "fleet": "nodes",
    "node": "nodes",
    "virtual-cluster": "virtual-clusters",
    "tenant": "tenants",
    "sweep": "jobs",
    "sweeps": "jobs",
}


def frame(request: HttpRequest) -> dict[str, Any]:
    """Return the context of ``base.html`` besides the page's own."""
    facts = get_frame(request)
    return {
        "nav": navigation(request, facts),
        "frame": facts,
        "ticker": ticker(facts),
        "theme": _theme(request),
        "search_url": _url("jobs"),
        "palette": palette(request, facts),
        "theme_url": _url("theme"),
        "LANGUAGE_CODE": get_language() or "en",
        "language_url": _url("language"),
        "languages": _languages(request),
        "zone": abbreviation(estimated_now()),
        "zone_in_words": in_words(estimated_now()),
        "zone_name": timezone.get_current_timezone_name(),
        "zone_choice": chosen_zone(request),
        "zone_url": _url("time-zone"),
        "script_words": script_words(),
        "password_url": _url("password"),
        "notifications_url": _url("notifications"),
        "announcements_url": _url("announcements") if facts.may_announce else "",
        "tokens_url": _url("tokens"),
        "logout_url": _url("logout"),
        "rounds_twin": _url("api-rounds") or "/api/v1/rounds/",
        "server_time": estimated_now(),
        "round_seconds": facts.round_seconds,
        "debug": settings.DEBUG,
    }


def navigation(request: HttpRequest, facts: Frame) -> tuple[NavItem, ...]:
    """Return the items that the reader may open; those without a page are omitted."""
    here = _section(request)
    items: list[NavItem] = []
    pending_line = False
    for name, words, icon, key, first in ITEMS:
        pending_line = pending_line or first
        url = _url(name)
        if not url or name in facts.hidden:
            continue
        items.append(
            NavItem(
                name=words,
                url=url,
                icon=icon,
                key=key,
                count=facts.counts.get(name),
                flag=facts.flags.get(name) or None,
                active=name == here,
                starts_group=pending_line and bool(items),
            )
        )
        pending_line = False
    return tuple(items)


COMMANDS: Final = (
    ("overview", gettext_lazy("Cluster")),
    ("inbox", gettext_lazy("Inbox")),
    ("sweeps", gettext_lazy("Sweeps")),
    ("job-templates", gettext_lazy("Job templates")),
    ("estimates", gettext_lazy("Accuracy of estimates")),
    ("shares", gettext_lazy("Explain share")),
    ("fleet", gettext_lazy("Fleet history")),
    ("fragmentation", gettext_lazy("Fragmentation")),
    ("policies-what-if", gettext_lazy("What-if")),
    ("policies-advisor", gettext_lazy("Policy advisor")),
    ("notifications", gettext_lazy("Notifications")),
    ("hooks", gettext_lazy("Webhooks")),
    ("tokens", gettext_lazy("Tokens")),
    ("time-zone", gettext_lazy("Time zone")),
    ("password", gettext_lazy("Change password")),
    ("documentation", gettext_lazy("Documentation")),
    ("glossary", gettext_lazy("Glossary")),
    ("api-docs", gettext_lazy("API and CLI")),
)
"""Pages of the palette besides the items of the navigation: url name and text."""


def palette(request: HttpRequest, facts: Frame) -> dict[str, Any] | None:
    """Return the data of the command palette; None if no user is signed in."""
    user = getattr(request, "user", None)
    if not getattr(user, "is_authenticated", False):
        return None
    pages = [(item.name, item.url) for item in navigation(request, facts)]
    pages += [(str(text), _url(name)) for name, text in COMMANDS]
    return {
        "url": _url("api-search-list"),
        "submit": _url("submit"),
        "commands": [
            *({"name": str(name), "url": url} for name, url in pages if url),
            {"name": gettext("Light or dark"), "act": "theme"},
            {"name": gettext("Keyboard"), "act": "keys"},
        ],
    }


def ticker(facts: Frame) -> FrameTicker:
    """Return the ticker's numbers: amber after two intervals without a round, red after three."""
    last = facts.rounds[-1] if facts.rounds else None
    age = facts.round_age_seconds
    intervals = 0.0 if age is None else age / max(facts.round_seconds, 0.1)
    return FrameTicker(
        number=last.number if last else None,
        seconds=last.seconds if last else None,
        policy=last.policy if last else "",
        age_seconds=None if age is None else int(age),
        late="bad" if intervals > 3 else ("warn" if intervals > 2 else ""),
        bars=ticker_bars(facts.rounds),
        trouble=facts.round_trouble,
    )


def _section(request: HttpRequest) -> str:
    match = getattr(request, "resolver_match", None)
    name = (match.url_name or "") if match else ""
    if name in ALIASES:
        return ALIASES[name]
    known = {item[0] for item in ITEMS}
    if name in known:
        return name
    stem = name.split("-")[0]
    return ALIASES.get(stem, stem)


def _languages(request: HttpRequest) -> tuple[tuple[str, str, bool], ...]:
    """Return value, label and choice of each language; labels are in their own language."""
    chosen = chosen_language(request)
    words = ((value, LANGUAGE_WORDS.get(value, label)) for value, label in Language.choices)
    return tuple((value, str(word), value == chosen) for value, word in words)


def _theme(request: HttpRequest) -> str:
    user = getattr(request, "user", None)
    chosen = getattr(user, "theme", "") or request.COOKIES.get("theme", "")
    return chosen if chosen in THEMES else ""


def _url(name: str) -> str:
    try:
        return reverse(name)
    except NoReverseMatch:
        return ""
