"""The catalogues of other languages: whole, compiled, and of the same facts as the English."""

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from django import forms
from django.template.loader import render_to_string
from django.utils import translation

from portal.i18n import translated
from portal.i18n.phrases import PHRASES
from portal.i18n.scripts import WORDS, script_words
from portal.i18n.vocabulary import VOCABULARY
from scheduling.core.messages import TABLE, message, sentence
from tessera.messages import PLAIN, Listing, Message, Moment, Sentence

ROOT: Final = Path(__file__).resolve().parents[2]
CATALOGUES: Final = sorted((ROOT / "locale").glob("*/LC_MESSAGES/django.po"))
FACT: Final = re.compile(r"%\(\w+\)[\d.]*[sdfg]|\{\w+\}")


def entries(path: Path) -> Iterator[dict[str, str]]:
    """The entries of a catalogue, the header left out."""
    for block in path.read_text(encoding="utf-8").split("\n\n")[1:]:
        entry: dict[str, str] = {"flags": ""}
        field = ""
        for line in block.splitlines():
            if line.startswith("#"):
                entry["flags"] += line
                continue
            name, _, text = (
                line.partition(' "') if not line.startswith('"') else ("", "", line[1:])
            )
            field = name or field
            entry[field] = entry.get(field, "") + ast.literal_eval(f'"{text}')
        yield entry


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.parts[-3])
def test_no_sentence_is_untranslated_or_fuzzy_and_all_name_the_same_facts(path: Path) -> None:
    found = list(entries(path))

    assert len(found) > 1000
    for entry in found:
        told = entry.get("msgstr") or entry.get("msgstr[0]", "")
        assert told, entry["msgid"]
        assert "fuzzy" not in entry["flags"], entry["msgid"]
        facts = FACT.findall(entry.get("msgid_plural", entry["msgid"]))
        assert set(FACT.findall(told)) == set(facts), entry["msgid"]


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.parts[-3])
def test_the_compiled_catalogue_is_that_of_the_source(path: Path) -> None:
    with path.with_suffix(".mo").open("rb") as compiled:
        known = gettext.GNUTranslations(compiled)

    for entry in entries(path):
        context, msgid = entry.get("msgctxt"), entry["msgid"]
        if "msgid_plural" in entry:
            forms = (msgid, entry["msgid_plural"], 2)
            told = known.npgettext(context, *forms) if context else known.ngettext(*forms)
            assert told == entry["msgstr[0]"]
        elif context:
            assert known.pgettext(context, msgid) == entry["msgstr"]
        else:
            assert known.gettext(msgid) == entry["msgstr"]


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.parts[-3])
def test_every_phrase_and_every_word_of_scripts_is_in_the_catalogue(path: Path) -> None:
    known = {entry["msgid"] for entry in entries(path)}

    assert {*PHRASES, *VOCABULARY, *WORDS} <= known


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.parts[-3])
def test_every_template_of_a_message_is_in_the_catalogue(path: Path) -> None:
    known = {
        (entry.get("msgctxt", ""), entry["msgid"], entry.get("msgid_plural", ""))
        for entry in entries(path)
    }

    for code, template in TABLE.items():
        if code != PLAIN:
            assert (template.context, template.one, template.many) in known, code


def test_no_template_reports_what_a_filter_has_marked_safe() -> None:
    # ``translated`` leaves it as it is: it cannot tell markup from a sentence.
    for path in (ROOT / "templates").rglob("*.html"):
        assert not re.search(
            r"\|(join|escape|safe|urlize)\b[^}]*\|translated", path.read_text()
        ), path


def test_the_faults_of_a_form_are_said_one_by_one() -> None:
    class Whole(forms.Form):
        def clean(self) -> None:
            self.add_error(None, sentence("no-such-tenant"))
            self.add_error(None, "The token's scopes do not cover this.")

    with translation.override("zh-hans"):
        told = render_to_string("components/_form_faults.html", {"form": Whole({})})
        wanted = (
            translated(sentence("no-such-tenant")),
            translated("The token's scopes do not cover this."),
        )

    assert " ".join(wanted) in told
    assert "There is" not in told


def test_a_message_is_rendered_in_the_language_of_the_page() -> None:
    quota = Listing((message("cells-of-level", count=2, level="node"),))
    shape = message("instances", n=2, devices=message("devices", n=4))
    waits = sentence(
        message(
            "guarantee-in-use",
            vc="devices",
            quota=quota,
            used=7,
            total=message("devices", n=8),
            request=shape,
        )
    )

    with translation.override("zh-hans"):
        assert translated(waits) == (
            "虚拟集群 devices 的保障为 2 × node；其 8 个设备中有 7 个在使用，"
            "而它需要 2 个各有 4 个设备的实例。"
        )
    with translation.override("en"):
        assert translated(waits) == str(waits)


def test_a_moment_is_written_as_the_language_writes_dates() -> None:
    opens = sentence(message("not-before", not_before=Moment(1_700_000_000)))

    with translation.override("zh-hans"):
        assert translated(opens) == "最早启动时间：2023年11月14日 22:13:20 UTC。"


def test_a_message_of_another_version_keeps_the_text_of_its_time() -> None:
    gone = Sentence("It waits for a tape.", Message("tape", {}))
    changed = Sentence("It waits for node n-1.", Message("repair-node", {"name": "n-1"}))

    with translation.override("zh-hans"):
        assert translated(gone) == "It waits for a tape."
        assert translated(changed) == "It waits for node n-1."


def test_a_reason_is_reported_with_the_facts_of_the_english_one() -> None:
    with translation.override("zh-hans"):
        told = translated(
            sentence("too-many-live-jobs-of-person", name="ada", n=1, live=1, new=2, most=2)
        )
        assert told == "ada 有 1 个活动作业；再加 2 个将超过每人 2 个的上限。"
        assert translated(sentence(message("held"))) == "它被保留。"


def test_what_has_no_translation_stays_and_english_is_left_alone() -> None:
    with translation.override("zh-hans"):
        assert translated("qqq has no such shape") == "qqq has no such shape"
        assert (
            translated(endless := f"n{'9' * 600} has 1 live job; 2 more are too many.") == endless
        )
        assert translated(7) == 7
    with translation.override("en"):
        assert translated("queued") == "queued"
        assert script_words() == {}
