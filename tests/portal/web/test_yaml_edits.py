"""Changes of the form in the text: one entry changes, comments and order of all else stay."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from portal.web.job_documents import plain, to_yaml
from portal.web.submit_fields import apply
from portal.web.submit_text import MOST_EDITS, read_typed, with_changes
from scheduling.compat.documents import parse_document

TEXT = """\
# wider
name: hello   # short

roles:
  worker:   # w
    devices:   2   # two
    env: {A: "x", B: http://y}
    command: |
      one
      two

    # tail
  other:
    command: hi   # there
notify:
  on: [failed]   # x
# end
"""


@pytest.mark.parametrize(
    ("keys", "value", "before", "after"),
    [
        (("name",), "neu", "name: hello   # short", "name: neu   # short"),
        (("roles", "worker", "devices"), 4, "devices:   2   # two", "devices: 4   # two"),
        (
            ("roles", "worker", "command"),
            "a\nb\n",
            "      one\n      two\n",
            "      a\n      b\n",
        ),
        (("roles", "worker", "command"), None, "    command: |\n      one\n      two\n", ""),
        (("roles", "worker", "image"), "x:y", "two\n\n", "two\n    image: x:y\n\n"),
        (("roles", "worker", "env", "A"), None, '{A: "x", B: http://y}', "{B: 'http://y'}"),
        (("roles", "other"), None, "  other:\n    command: hi   # there\n", ""),
        (("roles", "other", "command"), None, "other:\n    command: hi", "other: {}"),
        (("notify", "on"), None, "notify:\n  on: [failed]   # x\n", ""),
        (("elastic", "min"), 2, "# x\n", "# x\nelastic:\n  min: 2\n"),
    ],
)  # fmt: skip
def test_a_change_leaves_all_else_as_it_was(keys, value, before, after):
    changed = with_changes(read_typed(TEXT), [(keys, value)])

    assert changed.text == TEXT.replace(before, after)


@pytest.mark.parametrize("text", ['{"name": "a", "roles": {}}', "a: &x {b: 1}\nc: *x\n", ""])
def test_a_text_that_cannot_be_edited_is_written_anew(text):
    changed = with_changes(read_typed(text), [(("a", "b"), 2)])

    assert changed.document == {**(parse_document(text) or {}), "a": {"b": 2}}


TEXTS = st.one_of(
    st.text("ab:#-'\"{}[]|>&*! \n\té0", max_size=8),
    st.sampled_from(["no", "1:30", "0x1", "1e3", "~", "2024-01-01", "a\n\n", "=", "007"]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(["a", "b", "roles"])


@given(st.dictionaries(KEYS, VALUES, max_size=3))
def test_a_written_document_is_read_back_as_it_was(document):
    assert parse_document(to_yaml(document)) == document


@given(
    st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=3), min_size=1, max_size=3),
    st.lists(st.tuples(st.lists(KEYS, min_size=1, max_size=3).map(tuple), VALUES), max_size=3),
)
# The first edit is beside a key in explicit syntax and breaks the text for the second.
@example({"a": {"b": {"": ""}}}, [(("a", "b", "a"), []), (("a", "a"), None)])
# The second change replaces the object of the first.
@example({"a": {"a": None}}, [(("a", "a"), None), (("a",), False)])
def test_changes_mean_what_they_mean_for_the_document(document, changes):
    typed = read_typed("# first\n" + to_yaml(document))
    expected = plain(document)
    for keys, value in changes:
        apply(expected, keys, plain(value))

    assert with_changes(typed, changes).document == expected


def test_many_changes_write_the_document_anew() -> None:
    """Each edit composes the whole text; a form may post 1,000 fields."""
    changes = [((f"key-{number}",), number) for number in range(MOST_EDITS + 1)]

    few = with_changes(read_typed("a: 1  # kept\n"), changes[:-1])
    many = with_changes(read_typed("a: 1  # kept\n"), changes)

    assert "# kept" in few.text
    assert "# kept" not in many.text
    assert many.document == {"a": 1, **{keys[0]: value for keys, value in changes}}
