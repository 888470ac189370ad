"""Markup of the tiles of device maps.

A page draws thousands of them, which take most of a second in templates; the rest of a map is in
its templates.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

from django.utils.html import escape
from django.utils.safestring import SafeString
from django.utils.translation import get_language, gettext

from portal.web.components.icons import icon
from portal.web.components.mapvalues import MapGroup, Tile

_PILLS = {"unhealthy": "close", "cordoned": "paused"}


def tiles(group: MapGroup) -> SafeString:
    """Render the tiles of a group, and the groups inside it."""
    return SafeString("".join(_parts(group, _tile)))


@lru_cache(maxsize=1024)
def numbers(group: MapGroup) -> SafeString:
    """Render the numbers above the tiles of a rack whose nodes have one shape."""
    return SafeString("".join(_parts(group, _number)))


def strip(group: MapGroup, name: str) -> SafeString:
    """Render the small strip of one node for a table row; cached while unchanged."""
    return _strip(group, name, get_language() or "")


@lru_cache(maxsize=4096)
def _strip(group: MapGroup, name: str, _language: str) -> SafeString:
    label = escape(gettext("Devices of %(node_name)s") % {"node_name": name})
    return SafeString(
        f'<div class="cells mini n{group.width} gap-{group.gap}" role="group"'
        f' aria-label="{label}">{tiles(group)}</div>'
    )


def _parts(group: MapGroup, draw: Callable[[Tile], str]) -> Iterator[str]:
    for part in group.parts:
        if isinstance(part, Tile):
            yield draw(part)
        else:
            yield f'<div class="w{part.width} gap-{part.gap}">'
            yield from _parts(part, draw)
            yield "</div>"


def _number(tile: Tile) -> str:
    return f'<i class="w1">{escape(tile.text)}</i>'


def _tile(tile: Tile) -> str:
    tag, opened = ("a", f'a href="{escape(tile.url)}"') if tile.url else ("span", "span")
    borrowed = (" borrowed" if tile.borrowed else "") + (" shared" if tile.notches else "")
    title = escape(tile.title)
    return (
        f'<{opened} class="tile w{tile.width} {tile.kind}{borrowed}" title="{title}"'
        f"{_marks(tile, title)}>{_inside(tile)}{_notches(tile)}</{tag}>"
    )


def _notches(tile: Tile) -> str:
    """Return the strips of guests; the words are in the title and in the table."""
    if not tile.notches:
        return ""
    strips = "".join(
        f'<rect class="guest {escape(notch.state or "unknown")}" data-tenant="{notch.tenant or 0}"'
        f' x="{notch.x}%" y="{round(100 - notch.height, 1)}%"'
        f' width="{notch.width}%" height="{notch.height}%"/>'
        for notch in tile.notches
    )
    return f'<svg class="guests" aria-hidden="true">{strips}</svg>'


def _marks(tile: Tile, title: str) -> str:
    is_drawn = tile.kind in _PILLS  # an icon replaces its text
    marks = "" if tile.text and not is_drawn else f' aria-label="{title}"'
    # An element without a role may not have a name.
    if is_drawn and not tile.url:
        marks += ' role="img"'
    if tile.tenant:
        marks += f' data-tenant="{tile.tenant}"'
    if tile.job:
        marks += f' data-job="{tile.job}"'
    if tile.tone:
        marks += f' data-tone="{escape(tile.tone)}"'
    if tile.utilisation is not None:
        marks += f' data-u="{tile.utilisation}"'
    return marks


def _inside(tile: Tile) -> str:
    if tile.kind in _PILLS:
        return f'<span class="pill">{icon(_PILLS[tile.kind])}</span>'
    if not tile.text:
        return ""
    name = f'<span class="nm">{escape(tile.name)}</span>' if tile.name else ""
    return f'<span class="text">{escape(tile.text)}{name}</span>'
