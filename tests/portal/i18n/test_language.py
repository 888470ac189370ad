"""English needs no catalog; other languages use theirs."""

import pytest
from django.utils.translation import gettext, ngettext, npgettext, override, pgettext, trans_real

from portal.i18n.language import SourceTranslation


def test_english_messages_are_their_own_translation():
    with override("en"):
        assert isinstance(trans_real.translation("en"), SourceTranslation)
        assert gettext("Command failed") == "Command failed"
        assert pgettext("unit of time", "min") == "min"


@pytest.mark.parametrize(("number", "words"), [(0, "devices"), (1, "device"), (2, "devices")])
def test_english_plurals_need_no_catalog(number, words):
    with override("en"):
        assert ngettext("device", "devices", number) == words
        assert npgettext("count", "device", "devices", number) == words


def test_chinese_messages_come_from_the_catalog():
    with override("zh-hans"):
        assert gettext("Command failed") != "Command failed"


def test_the_english_catalogs_are_empty():
    catalog = vars(trans_real.DjangoTranslation("en"))["_catalog"]

    assert {message for message, _ in catalog.items()} == {""}
