"""Template tags for cards, tables, notes and breadcrumbs; built into every template."""

from typing import Final

from django import template
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from portal.web.components.icons import icon

register = template.Library()

_ICONS: Final = {"": "info", "ok": "succeeded", "warn": "warning", "bad": "failed"}


@register.simple_block_tag
def card(content: str, title: str, remark: str = "") -> SafeString:
    """Render a card with its title, and a grey remark after it."""
    grey = format_html('<span class="remark">{}</span>', remark) if remark else ""
    return format_html(
        '<section class="card"><header><h2>{}</h2>{}</header>{}</section>', title, grey, content
    )


@register.simple_block_tag
def table(content: str, look: str = "") -> SafeString:
    """Render a table that scrolls sideways in its card; ``look``: its classes."""
    classes = format_html(' class="{}"', look) if look else ""
    return format_html('<div class="tw"><table{}>{}</table></div>', classes, content)


@register.simple_block_tag
def note(content: str, tone: str = "", *, gap: bool = False, role: str = "") -> SafeString:
    """Render a sentence with the icon of its tone.

    Args:
        content: the sentence.
        tone: ``ok``, ``warn``, ``bad``, or empty for information.
        gap: whether space follows, above other elements.
        role: ARIA role, such as ``alert``.
    """
    classes = " ".join(word for word in ("note", tone, "gap" if gap else "") if word)
    return format_html(
        '<div class="{}"{}>{}<span>{}</span></div>',
        classes,
        format_html(' role="{}"', role) if role else "",
        icon(_ICONS[tone]),
        SafeString(content.strip()),
    )


@register.simple_tag
def crumbs(*steps: str) -> SafeString:
    """Render breadcrumbs from pairs of an address (or a name without arguments) and a text."""
    pairs = zip(steps[::2], steps[1::2], strict=True)
    links = ((at if at.startswith("/") else reverse(at), text) for at, text in pairs)
    return format_html(
        '<nav class="crumbs" aria-label="{}">{}</nav>',
        _("Breadcrumb"),
        format_html_join(SafeString("<span>/</span>"), '<a href="{}">{}</a>', links),
    )
