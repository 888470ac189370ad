"""Bars of the timeline as markup: there are up to two thousand, too many for templates."""

from django.utils.html import escape
from django.utils.safestring import SafeString

from portal.web.components.gantt import TEXT_HEIGHT, TEXT_PERCENT, Bar, GanttRow, tone_of


def bars(row: GanttRow) -> SafeString:
    """All bars of a row, in the order of the row."""
    return SafeString("".join(map(_bar, row.bars)))


def _bar(bar: Bar) -> str:
    box = _box(bar)
    title = escape(bar.title)
    run = bar.run
    if run is None:
        return f'<rect class="many" {box}><title>{title}</title></rect>'
    marks = f' data-tone="{escape(tone_of(run.state))}"'
    if run.tenant is not None:
        marks += f' data-tenant="{run.tenant}"'
    if run.vc is not None:
        marks += f' data-vc="{run.vc}"'
    stripes = f'<rect class="stripes" {box}/>' if run.borrowed and bar.kind == "run" else ""
    inside = f'<rect {box} rx="1.5"><title>{title}</title></rect>{stripes}{_text(bar, box)}'
    if not run.url or bar.kind == "ahead":
        return f'<g class="{bar.kind}"{marks}>{inside}</g>'
    url = escape(run.url)
    return f'<a class="{bar.kind}" href="{url}" aria-label="{title}"{marks}>{inside}</a>'


def _box(bar: Bar) -> str:
    height = max(bar.height, 1)
    return f'x="{bar.x:.2f}%" width="{bar.width:.2f}%" y="{bar.y:.1f}" height="{height:.1f}"'


def _text(bar: Bar, box: str) -> str:
    if bar.kind != "run" or bar.height < TEXT_HEIGHT or bar.width < TEXT_PERCENT or not bar.run:
        return ""
    # The inner drawing cuts off what is longer than the bar.
    words = escape(bar.run.text or bar.run.whose)
    return f'<svg {box}><text x="6" y="{bar.height / 2 + 4:.1f}">{words}</text></svg>'
