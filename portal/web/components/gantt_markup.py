"""Markup of rows and bars of the timeline: hundreds of each are too slow in templates."""

from functools import lru_cache
from typing import Final

from django.utils.html import escape
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from portal.web.components import icons
from portal.web.components.gantt import TEXT_HEIGHT, TEXT_PERCENT, Bar, Gantt, GanttRow, tone_of

KEPT: Final = 16_384
LETTERS_PER_PERCENT: Final = 1.6
"""Letters that fit into one percent of the drawing, in a window of 1,280 px."""


def rows(drawn: Gantt) -> SafeString:
    """Render all rows of a drawing, one per line."""
    of_node = gettext("Devices of %(node_name)s")
    folds = {is_open: icons.icon("down" if is_open else "right", "small") for is_open in (0, 1)}
    return SafeString("\n".join(_row(row, of_node, folds[bool(row.lanes)]) for row in drawn.rows))


def bars(row: GanttRow) -> str:
    """Render all bars of a row, in the order of the row."""
    return "".join(map(_bar, row.bars))


def _row(row: GanttRow, of_node: str, fold: str) -> str:
    name, toggle, tone = escape(row.node.name), escape(row.node.toggle), escape(row.node.tone)
    to_node = escape(gettext("Show node"))
    state, word = (" open", "true") if row.lanes else ("", "false")
    return (
        f'<div class="gantt-row{state}"><div class="nm {tone}">'
        f'<a class="fold" href="{toggle}" hx-get="{toggle}" hx-target="#timeline" '
        'hx-select="#timeline" hx-swap="outerHTML" hx-push-url="true" '
        f'id="fold-{name}" aria-expanded="{word}" '
        f'aria-label="{escape(of_node % {"node_name": row.node.name})}">{fold}'
        f'<span class="ell" title="{name}: {escape(row.node.summary)}">{name}</span></a>'
        f'{_sign(row)}<a class="to-node" href="{escape(row.node.url)}" title="{to_node}" '
        f'aria-label="{to_node}: {name}">{icons.icon("nodes", "small")}</a>{_lanes(row)}</div>'
        f'<svg class="gantt-bars" height="{row.height}">'
        f'<rect class="idle" width="100%" height="{row.height}"/>{bars(row)}</svg></div>'
    )


def _sign(row: GanttRow) -> str:
    """Return the icon of a node that needs attention."""
    node = row.node
    return icons.icon(node.icon, "small", label=node.summary) if node.icon else ""


def _lanes(row: GanttRow) -> str:
    """Render the indices of the devices of an open node."""
    if not row.lanes:
        return ""
    texts = "".join(
        f'<text x="18" y="{y}" text-anchor="end">{index}</text>' for index, y in row.lanes
    )
    return (
        f'<svg class="lanes-names" width="20" height="{row.height}" aria-hidden="true">'
        f"{texts}</svg>"
    )


def _bar(bar: Bar) -> str:
    box = _box(bar)
    title = _escaped(bar.title)
    run = bar.run
    if run is None:
        return f'<rect class="many" {box}><title>{title}</title></rect>'
    marks = f' data-tone="{_tone(run.state)}"'
    if run.tenant is not None:
        marks += f' data-tenant="{run.tenant}"'
    if run.vc is not None:
        marks += f' data-vc="{run.vc}"'
    stripes = f'<rect class="stripes" {box}/>' if run.borrowed and bar.kind == "run" else ""
    inside = f'<rect {box} rx="1.5"><title>{title}</title></rect>{stripes}{_text(bar, box)}'
    if not run.url or bar.kind == "ahead":
        return f'<g class="{bar.kind}"{marks}>{inside}</g>'
    url = _escaped(run.url)
    return f'<a class="{bar.kind}" href="{url}" aria-label="{title}"{marks}>{inside}</a>'


@lru_cache(maxsize=KEPT)
def _escaped(text: str) -> str:
    # Titles of ended runs, and addresses, are the same in every drawing.
    return escape(text)


@lru_cache(maxsize=64)
def _tone(state: str) -> str:
    return escape(tone_of(state))


def _box(bar: Bar) -> str:
    height = max(bar.height, 1)
    return f'x="{bar.x:.2f}%" width="{bar.width:.2f}%" y="{bar.y:.1f}" height="{height:.1f}"'


def _text(bar: Bar, box: str) -> str:
    if bar.kind != "run" or bar.height < TEXT_HEIGHT or bar.width < TEXT_PERCENT or not bar.run:
        return ""
    # The inner drawing clips text that is longer than the bar, on narrow windows.
    words = escape(_fitting(bar.run.text or bar.run.whose, bar.width))
    return f'<svg {box}><text x="6" y="{bar.height / 2 + 4:.1f}">{words}</text></svg>'


def _fitting(text: str, width: float) -> str:
    """Return the text, shortened to a width in percent."""
    most = int(width * LETTERS_PER_PERCENT) - 1
    return text if len(text) <= most else f"{text[: max(1, most - 1)].rstrip()}…"
