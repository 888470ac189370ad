"""Tiles as markup: what is hostile stays text, groups nest, a mark says something."""

from portal.web.components import tile_markup
from portal.web.components.mapvalues import MapGroup, Tile

HOSTILE = "a\"b'<i>&"
SAFE = "a&quot;b&#x27;&lt;i&gt;&amp;"


def test_what_comes_from_people_stays_text() -> None:
    tile = Tile(
        width=4, kind="used", title=HOSTILE, text=HOSTILE, name=HOSTILE, url=HOSTILE, tone=HOSTILE
    )

    html = tile_markup.strip(MapGroup(width=4, gap=1, parts=(tile,)), HOSTILE)

    assert HOSTILE not in html
    assert "<i>" not in html
    assert html.count(SAFE) == 6


def test_a_tile_reports_what_it_shows_and_no_more() -> None:
    plain = Tile(width=1, kind="free", title="node-1: 1 device idle", text="1")
    full = Tile(
        width=8,
        kind="used",
        title="t",
        url="/jobs/3/",
        borrowed=True,
        tenant=2,
        job=5,
        tone="busy",
        utilisation=0,
    )

    html = tile_markup.tiles(MapGroup(width=9, gap=1, parts=(plain, full)))

    assert html == (
        '<span class="tile w1 free" title="node-1: 1 device idle">'
        '<span class="text">1</span></span>'
        '<a href="/jobs/3/" class="tile w8 used borrowed" title="t" aria-label="t"'
        ' data-tenant="2" data-job="5" data-tone="busy" data-u="0"></a>'
    )


def test_groups_nest_and_broken_devices_have_an_icon() -> None:
    inner = MapGroup(width=1, gap=1, parts=(Tile(width=1, kind="unhealthy", title="t", text="3"),))

    html = tile_markup.tiles(MapGroup(width=1, gap=2, parts=(inner,)))

    assert html.startswith('<div class="w1 gap-1"><span class="tile w1 unhealthy"')
    assert 'title="t" aria-label="t" role="img"' in html
    assert '#close"' in html
    assert ">3<" not in html
    assert html.endswith("</span></div>")


def test_the_numbers_of_a_rack_stand_as_its_tiles_do() -> None:
    first, second = (Tile(width=1, kind="free", title="t", text=text) for text in ("0", HOSTILE))
    inner = MapGroup(width=1, gap=1, parts=(second,))

    html = tile_markup.numbers(MapGroup(width=2, gap=2, parts=(first, inner)))

    assert html == f'<i class="w1">0</i><div class="w1 gap-1"><i class="w1">{SAFE}</i></div>'
