"""Template tags and filters of the portal's components: ``{% load tessera %}``."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from django import template
from django.forms import BoundField
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import slugify
from django.utils.translation import get_language

from portal.i18n import gettext_lazy, translated
from portal.web.components import bars, fields, gantt_markup, icons, tile_markup, words
from portal.web.components.gantt import Gantt
from portal.web.components.mapvalues import MapGroup, NodeTile
from portal.web.components.states import StateLook, job_state, node_state
from portal.web.guides import meaning
from tenants.clock import estimated_now
from tessera.isolation import RUN_WARNINGS

register = template.Library()

NOT_KNOWN = gettext_lazy("no estimate yet")
ROWS_KEPT = 4096
"""Rows of device maps in the cache; a row with eight distinct devices takes 18 KB."""


@register.simple_tag
def icon(name: str, size: str = "", label: str = "") -> SafeString:
    """Render an icon from the sprite; without ``label`` it is decoration."""
    return icons.icon(name, size, label)


@register.simple_tag
def term(key: str, text: str) -> SafeString:
    """Render a term with its meaning as tooltip, and a link to the glossary."""
    return format_html(
        '<a class="term" href="{}#{}" title="{}">{}</a>',
        reverse("glossary"),
        slugify(key),
        meaning(key),
        text,
    )


def _chip(look: StateLook, detail: str) -> SafeString:
    word = f"{translated(look.word)} {detail}" if detail else translated(look.word)
    return format_html(
        '<span class="st {}" title="{}">{}{}</span>',
        look.tone,
        translated(look.summary),
        icon(look.icon),
        word,
    )


@register.simple_tag
def state_chip(state: str, detail: str = "") -> SafeString:
    """Render a job state: icon, word and tone."""
    return _state_chip(str(state), detail, get_language() or "")


@lru_cache(maxsize=256)
def _state_chip(state: str, detail: str, _language: str) -> SafeString:
    # Cached: a list of jobs renders few different ones.
    return _chip(job_state(state), detail)


@register.simple_tag
def node_chip(state: str, detail: str = "") -> SafeString:
    """Render a node state: icon, word and tone."""
    return _chip(node_state(str(state)), detail)


@register.simple_tag
def reason(text: str, code: str) -> SafeString:
    """Render a reason: the sentence, then its code; no line break between number and ``×``."""
    sentence = str(translated(text)).replace(" ×", f"{words.NO_BREAK}×")
    if not code:
        return format_html('<span class="reason">{}</span>', sentence)
    return format_html(
        '<span class="reason">{}<span class="code">{}</span></span>', sentence, code
    )


@register.simple_tag
def ago(moment: datetime | None, nothing: str = words.DASH) -> SafeString | str:
    """Render ``12 s ago``, updated by the page's clock; UTC on hover."""
    if moment is None:
        return str(translated(nothing + ""))  # a literal of a template is not a plain text
    return format_html(
        '<time datetime="{}" title="{}" data-ago>{}</time>',
        moment.isoformat(),
        words.utc(moment),
        words.ago(moment, estimated_now()),
    )


@register.simple_tag
def clock(moment: datetime | None, nothing: str = words.DASH) -> SafeString | str:
    """Render ``14 Nov 09:31``; the full time in UTC on hover."""
    if moment is None:
        return nothing
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        moment.isoformat(),
        words.utc(moment),
        words.clock(moment),
    )


register.simple_tag(words.running_time)


@register.filter
def run_warning(code: str) -> str:
    """Return the sentence of a warning code of a run; an unknown code is returned unchanged."""
    return str(translated(RUN_WARNINGS.get(code, code)))


@register.filter
def count(value: float | None) -> str:
    """Format a count as ``1,180``; None becomes a dash."""
    return words.DASH if value is None else words.count(value)


@register.filter
def amount(value: float | None) -> str:
    """Format a rate as ``1,180`` or ``42.5``; None becomes a dash."""
    return words.DASH if value is None else words.amount(value)


@register.filter
def percent(value: float | None) -> str:
    """Format a share in [0, 1] as ``68 %``."""
    return words.DASH if value is None else words.percent(value)


@register.filter
def duration(value: float | None) -> str:
    """Format seconds in at most two units."""
    return words.DASH if value is None else words.duration(value)


@register.filter
def step_time(value: float | None) -> str:
    """Format the time of a training step: ``713 ms``, ``1.42 s``; None becomes a dash."""
    return words.DASH if value is None else words.step_time(value)


@register.filter
def gpu_hours(value: float | None) -> str:
    """Format device hours in the design's unit."""
    return words.DASH if value is None else words.gpu_hours(value)


@register.filter
def in_textarea(value: object) -> str:
    """Return the content of a ``<textarea>`` with a line break in front, which HTML drops."""
    return f"\n{value}"


@register.filter
def file_size(value: float | None) -> str:
    """Format decimal bytes: ``1.2 GB``."""
    return words.DASH if value is None else words.file_size(value)


@register.filter
def devices(number: int | None, types: Sequence[str] | str = ()) -> str:
    """Format a number of devices as ``8 × A100``; ``types`` is one name or several."""
    if number is None:
        return words.DASH
    return words.devices(number, [types] if isinstance(types, str) and types else list(types))


@register.filter
def plural(number: int, forms: str) -> str:
    """Render ``{{ n|plural:"job,jobs" }}`` as ``1 job`` or ``7 jobs``."""
    one, _, many = forms.partition(",")
    return words.plural(number, one, many or f"{one}s")


@register.simple_tag
def estimate(p10: float | None, p90: float | None) -> str:
    """Render a start or an end (seconds from now) as a range, or as unknown."""
    if p10 is None or p90 is None:
        return str(translated(NOT_KNOWN))
    return words.estimate(p10, p90, estimated_now())


@register.inclusion_tag("components/_estimate.html")
def estimate_bar(p10: float | None, p50: float | None, p90: float | None) -> dict[str, Any]:
    """Render the range as text over its bar on the shared log axis."""
    if p10 is None or p50 is None or p90 is None:
        return {"text": translated(NOT_KNOWN), "bar": None}
    text = words.estimate(p10, p90, estimated_now())
    return {"text": text, "bar": bars.estimate_bar(p10, p50, p90)}


@register.inclusion_tag("components/_sparkline.html")
def sparkline(values: Sequence[float | None], width: int = 64, height: int = 26) -> dict[str, Any]:
    """Draw a trend with gaps; render nothing for fewer than two values."""
    lines = bars.sparkline(values, width=width, height=height)
    return {"lines": lines, "width": width, "height": height}


@register.inclusion_tag("components/_progress.html")
def progress(share: float | None) -> dict[str, Any]:
    """Render percent and a thin bar; unknown is a dash."""
    shown = None if share is None else min(max(share, 0.0), 1.0)
    return {"share": shown, "width": "" if shown is None else f"{100 * shown:.1f}%"}


@register.inclusion_tag("components/_stats.html")
def stat_tiles(tiles: Sequence[Any]) -> dict[str, Any]:
    """Render a strip of three to five ``portal.web.components.stats.Stat`` values."""
    return {"tiles": tiles}


@register.inclusion_tag("components/_vc_bars.html")
def vc_bars(uses: Sequence[bars.VcBarUse]) -> dict[str, Any]:
    """Render the bars of one card, all on one scale."""
    return {"bars": bars.vc_bars(uses)}


@register.inclusion_tag("components/_vc_legend.html")
def vc_legend() -> dict[str, Any]:
    """Render the legend of a bar, for the card's foot."""
    return {}


@register.inclusion_tag("components/_device_map.html", takes_context=True)
def device_map(context: Mapping[str, Any], drawn: Any, view: str = "map") -> dict[str, Any]:
    """Render the map of ``portal.web.devicemap.device_map``, or its table (``view="table"``)."""
    return {"map": drawn, "view": view, "request": context.get("request")}


@register.simple_tag
def map_row(row: NodeTile) -> SafeString:
    """Render a node of the device map; a row is cached while unchanged."""
    return _map_row(row, get_language() or "")


@lru_cache(maxsize=ROWS_KEPT)
def _map_row(row: NodeTile, _language: str) -> SafeString:
    return SafeString(render_to_string("components/_map_row.html", {"row": row}).strip())


@register.simple_tag
def tiles(group: MapGroup) -> SafeString:
    return tile_markup.tiles(group)


@register.simple_tag
def tile_numbers(group: MapGroup) -> SafeString:
    """Render the numbers of the devices of a rack, above its nodes."""
    return tile_markup.numbers(group)


@register.simple_tag
def node_tiles(group: MapGroup, name: str) -> SafeString:
    """Render the strip of one node (``portal.web.devicemap.node_tiles``) for a table row."""
    return tile_markup.strip(group, name)


@register.simple_tag
def gantt_rows(drawn: Gantt) -> SafeString:
    """Render all rows of ``portal.web.components.gantt.gantt``."""
    return gantt_markup.rows(drawn)


@register.inclusion_tag("components/_history.html")
def history(drawn: Any) -> dict[str, Any]:
    """Render the state timeline of ``portal.web.components.history.history``."""
    return {"history": drawn}


@register.inclusion_tag("components/_chart.html")
def chart(
    name: str,
    figure: Mapping[str, Any] | None,
    summary: str,
    *,
    url: str = "",
    topic: str = "",
    every: int = 0,
    tall: bool = False,
    csv: str = "",
    link: str = "",
) -> dict[str, Any]:
    """Render a Plotly chart with its sentence and its table; see ``docs/portal-components.md``.

    Args:
        name: unique on the page.
        figure: ``{"data": [traces], "layout": {}}``; a trace may have ``colour`` (a token's name).
            None fetches it from ``url`` when the chart comes into view.
        summary: a sentence about the chart; a fetched figure may have its own ``summary``.
        url: address of the same JSON, fetched at messages of ``topic``.
        topic: topic of live updates.
        every: seconds after which it is fetched again; 0 for never.
        tall: 320 px instead of 200.
        csv: address of the values as a file. The chart then has zoom, chips for its lines, and
            buttons for reset, file and table.
        link: charts with the same value zoom together.
    """
    return {
        "csv": csv,
        "link": link,
        "name": name,
        "figure": figure,
        "summary": summary,
        "url": url,
        "topic": topic,
        "every": every or "",
        "tall": tall,
        "json_id": f"chart-{name}",
    }


@register.inclusion_tag("components/_placement.html")
def placement(drawings: Sequence[Any]) -> dict[str, Any]:
    """Render the drawings of ``portal.web.components.placement.placement``, one per node."""
    return {"drawings": drawings}


@register.inclusion_tag("components/_field.html")
def field(bound: BoundField, hint: str = "", more: str = "", mono: bool = False) -> dict[str, Any]:
    """Render a form field with label, hint and errors, wired for assistive technology."""
    return {
        "field": bound,
        "widget": fields.widget(bound, mono=mono),
        "hint": hint or bound.help_text,
        "more": more,
        "errors": bound.errors,
        "checkbox": getattr(bound.field.widget, "input_type", "") == "checkbox",
    }


@register.inclusion_tag("components/_empty.html")
def empty_state(
    title: str, summary: str = "", command: str = "", url: str = "", action: str = ""
) -> dict[str, Any]:
    """Render an empty state: title, one sentence, and the next step as a command or a button."""
    return {"title": title, "summary": summary, "command": command, "url": url, "action": action}


@register.inclusion_tag("components/_error.html")
def error_block(
    *,
    title: str,
    summary: str = "",
    code: str = "",
    request_id: str = "",
    url: str = "",
    action: str = "",
) -> dict[str, Any]:
    """Render an error in a part of a page: cause, remedy, code and request id."""
    return {
        "title": title,
        "summary": summary,
        "code": code,
        "request_id": request_id,
        "url": url,
        "action": action,
    }


@register.inclusion_tag("components/_loading.html")
def loading(what: str, rows: int = 3) -> dict[str, Any]:
    """Render ``Loading 10,412 jobs …`` after 300 ms over placeholder rows."""
    return {"what": what, "rows": range(rows)}


@register.inclusion_tag("components/_pager.html", takes_context=True)
def pager(
    context: Mapping[str, Any], summary: str, next_cursor: str = "", previous_cursor: str = ""
) -> dict[str, Any]:
    """Render the foot of a list: its size, and the cursors of the adjacent pages."""
    query = context["request"].GET.copy()
    query.pop("cursor", None)

    def address(cursor: str) -> str:
        return f"?{query.urlencode()}&cursor={cursor}" if query else f"?cursor={cursor}"

    return {
        "summary": summary,
        "next": address(next_cursor) if next_cursor else "",
        "previous": address(previous_cursor) if previous_cursor else "",
        "first": f"?{query.urlencode()}",
        "inside": bool(context["request"].GET.get("cursor")),
    }


@register.simple_tag(takes_context=True)
def with_query(context: Mapping[str, Any], **changes: Any) -> str:
    """Return the page's query with changed values; an empty value drops its key and the cursor."""
    query = context["request"].GET.copy()
    query.pop("cursor", None)
    for key, value in changes.items():
        query.pop(key, None)
        if value not in {"", None}:
            query[key] = str(value)
    return f"?{query.urlencode()}"


@register.inclusion_tag("components/_copy.html")
def copy_button(text: str, label: str = "Copy") -> dict[str, Any]:
    return {"text": text, "label": label}


@register.inclusion_tag("components/_command.html")
def command(text: str) -> dict[str, Any]:
    """Render a command in a box with its copy button."""
    return {"text": text}
