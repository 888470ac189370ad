"""Boxes of pages escape their texts, and omit parts that were not given."""

from django.template import Context, Template


def rendered(source: str, **values: object) -> str:
    return Template(source).render(Context(values))


def test_the_title_and_the_remark_of_a_card_are_escaped() -> None:
    found = rendered(
        "{% card title remark %}<p>{{ title }}</p>{% endcard %}", title="<b>", remark="a & b"
    )
    assert found == (
        '<section class="card"><header><h2>&lt;b&gt;</h2><span class="remark">a &amp; b</span>'
        "</header><p>&lt;b&gt;</p></section>"
    )
    assert "remark" not in rendered('{% card "Use" %}{% endcard %}')


def test_a_table_has_the_given_classes_or_none() -> None:
    assert rendered('{% table "lines blocks" %}<tbody></tbody>{% endtable %}') == (
        '<div class="tw"><table class="lines blocks"><tbody></tbody></table></div>'
    )
    assert rendered("{% table %}{% endtable %}") == '<div class="tw"><table></table></div>'


def test_a_note_has_the_icon_of_its_tone() -> None:
    found = rendered('{% note "warn" gap=True role="alert" %} {{ text }} {% endnote %}', text="<")
    assert found.startswith('<div class="note warn gap" role="alert"><svg')
    assert "#warning" in found
    assert found.endswith("<span>&lt;</span></div>")
    assert rendered("{% note %}x{% endnote %}").startswith('<div class="note"><svg')


def test_crumbs_accept_names_and_addresses() -> None:
    found = rendered('{% crumbs "tenants" "Tenants" "/tenants/7/" name %}', name="a & b")
    assert found == (
        '<nav class="crumbs" aria-label="Breadcrumb"><a href="/tenants/">Tenants</a>'
        '<span>/</span><a href="/tenants/7/">a &amp; b</a></nav>'
    )
