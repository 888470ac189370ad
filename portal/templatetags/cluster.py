"""Template tags of the pages about the cluster: ``{% load cluster %}``."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from django import template
from django.forms import BoundField, Form
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import get_language

from portal.addresses import address
from portal.i18n import is_english, translated
from portal.identity import Same
from portal.web import cluster_drawing
from portal.web.components.words import tenant
from portal.web.policy_fields import bound_policy_fields
from portal.web.vc_forms import cell_name
from scheduling.clusters.queries.nodes import NodeRow
from scheduling.core import messages
from tessera.messages import Message, message_of

register = template.Library()


@register.simple_tag
def page_url(name: str, *args: object) -> str:
    """Return the address of a named page; empty if it does not exist."""
    return address(name, *args)


@register.filter
def wants(text: str) -> tuple[str, str]:
    """Return the request of a job in two lines: number and shape of its devices."""
    told = message_of(text)
    if told.code != "wanted-within":
        return str(translated(text)), ""
    much, shape = (
        str(translated(messages.sentence(part)))
        for part in (told.params["wanted"], told.params["shape"])
        if isinstance(part, Message)
    )
    return much, shape


@register.filter
def tenant_name(name: str) -> str:
    """Return the name of a tenant; translated for one that the reader may not see."""
    return tenant(name)


@register.filter
def sentence(text: str) -> str:
    """Format a remedy or reason with a capital first letter and without its full stop."""
    stripped = str(translated(text)).strip().rstrip(".。")
    # In other languages, a text that begins in lower case is a name.
    return stripped[:1].upper() + stripped[1:] if is_english() else stripped


@register.filter
def words(text: str) -> list[str]:
    """Split a string into words for a loop."""
    return text.split()


@register.simple_tag
def node_row_head(shown: Any, node_url: str) -> SafeString:
    """Render a row of the list of nodes up to its last contact; cached while unchanged.

    Args:
        shown: a ``portal.web.nodes.ShownNode``.
        node_url: the address of its page.
    """
    row = shown.row
    facts = _RowFacts(
        id=row.id,
        name=row.name,
        state=row.state,
        rack=row.view.rack,
        devices=len(row.view.devices),
        in_use=row.in_use,
        jobs=row.jobs,
        reason=shown.reason,
        use=shown.use,
        truth=shown.truth,
        isolation=row.isolation.level,
        owner=row.isolation.owner,
        dedicated=row.isolation.dedicated_to,
    )
    return _node_row_head(facts, Same(shown.strip), node_url, get_language() or "")


class _RowFacts(NamedTuple):
    """Cache key: the facts of a node in its row."""

    id: int
    name: str
    state: str
    rack: str
    devices: int
    in_use: int
    jobs: int
    reason: str
    use: float | None
    truth: str
    isolation: str
    owner: str
    dedicated: tuple[str, ...]


@lru_cache(maxsize=2048)
def _node_row_head(row: _RowFacts, strip: Same[Any], node_url: str, _language: str) -> SafeString:
    context = {"row": row, "strip": strip.value, "node_url": node_url}
    return SafeString(render_to_string("nodes/_row_head.html", context).strip())


@register.simple_tag
def node_row_acts(row: NodeRow, node_url: str) -> SafeString:
    """Render the menu of a row of the list of nodes; cached while its items are unchanged.

    Args:
        row: the node.
        node_url: the address of its page.
    """
    shown = row.name, row.held, row.can_drain, row.jobs
    return _node_row_acts(*shown, node_url, get_language() or "")


@lru_cache(maxsize=2048)
def _node_row_acts(
    name: str, held: str, can_drain: bool, jobs: int, node_url: str, _language: str
) -> SafeString:
    row = {"name": name, "held": held, "can_drain": can_drain, "jobs": jobs}
    context = {"row": row, "node_url": node_url}
    return SafeString(render_to_string("nodes/_row_acts.html", context).strip())


@register.simple_tag
def hidden_value(form: Form, name: str) -> SafeString:
    """Render a field of a bound form as a hidden input with the posted value."""
    return format_html(
        '<input type="hidden" name="{}" value="{}">', name, form[name].value() or ""
    )


@register.filter
def level_word(level: str) -> str:
    """Return the display name of a level."""
    return cluster_drawing.level_word(level)


@register.filter
def level_words(level: str) -> str:
    """Return the display name of several cells of a level."""
    return cluster_drawing.level_word(level, 2)


@register.simple_tag
def cell_field(chain: str, level: str) -> str:
    """Return the field name of the stepper of one level in a shape form."""
    return cell_name(chain, level)


@register.filter
def policy_parameters(form: Form) -> list[BoundField]:
    return bound_policy_fields(form)


@register.inclusion_tag("components/_choices.html")
def choices(field: BoundField, hint: str = "", coded: bool = False) -> dict[str, Any]:
    """Render a multiple choice as check boxes under one legend; ``coded``: each with its value."""
    return {
        "field": field,
        "options": getattr(field.field, "choices", ()),
        "chosen": [str(value) for value in field.value() or ()],
        "hint": hint,
        "coded": coded,
    }


@register.filter
def at(values: Mapping[Any, Any], key: Any) -> Any:
    """Return the value of a mapping at a key; empty if missing."""
    return values.get(key, "")
