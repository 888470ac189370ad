"""JSON and YAML from strangers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.compat.documents import MAX_DEPTH, parse_document
from scheduling.compat.openpai.job import is_openpai
from scheduling.compat.result import ImportRefusedError


def refusal(text, content_type="", **more):
    with pytest.raises(ImportRefusedError) as refused:
        parse_document(text, content_type, **more)
    (error,) = refused.value.errors
    return error


def test_json_and_yaml_report_the_same():
    wanted = {"name": "a", "list": [1, 2.5, True, None], "deep": {"x": "y"}}

    from_json = parse_document(
        b'{"name": "a", "list": [1, 2.5, true, null], "deep": {"x": "y"}}', "application/json"
    )
    from_yaml = parse_document("name: a\nlist: [1, 2.5, true, null]\ndeep:\n  x: y\n")

    assert from_json == from_yaml == wanted


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("Yes", "Yes"),
        ("on", "on"),
        ("1:30:00", "1:30:00"),
        ("2030-01-01", "2030-01-01"),
        ("2030-01-01T00:00:00Z", "2030-01-01T00:00:00Z"),
        ("010", "010"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("=", "="),
        ("1.2.3", "1.2.3"),
        ("10.0.0.1", "10.0.0.1"),
        (".inf", ".inf"),
        ("null", None),
        ("~", None),
        ("True", True),
        ("12", 12),
        ("-3", -3),
        ("0", 0),
        ("1e3", 1000.0),
        ("0.5", 0.5),
        ('"12"', "12"),
        ("'true'", "true"),
        ("!!str 12", "12"),
        ("٣", "٣"),
    ],
)
def test_yaml_takes_for_something_else_only_what_it_surely_is(text, value):
    found = parse_document(f"a: {text}")["a"]

    assert (found, type(found)) == (value, type(value))


def test_keys_are_texts_as_they_were_written():
    assert parse_document("NO: 1\n1: 2\n~: 3\n'': 4") == {"NO": 1, "1": 2, "~": 3, "": 4}


def test_block_texts_are_carried_literally():
    text = 'command: |\n  echo "$(id)"  \n\n  it\'s: \\n # no comment\n'

    assert parse_document(text)["command"] == 'echo "$(id)"  \n\nit\'s: \\n # no comment\n'


def test_anchors_and_merges_are_understood():
    text = "base: &b {a: 1, b: 2}\none:\n  <<: *b\n  b: 3\ntwo: {<<: [*b, {c: 4}]}\nthree: *b"

    found = parse_document(text)

    assert found["one"] == {"a": 1, "b": 3}
    assert found["two"] == {"a": 1, "b": 2, "c": 4}
    assert found["three"] == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        ("a: 1\nb: c: d", "mapping values", "line 2, column 5"),
        ("a: 1\nb: 2\na: 3", "twice", "line 3, column 1"),
        ("x:\n  - {a: 1, 'a': 2}", "twice", "line 2, column 12"),
        ("a: [1, 2", "expected", "line"),
        ("a: *nowhere", "*nowhere", "line 1, column 4"),
        ("a: &x [*x]", "*x", "line 1, column 8"),
        ("a: 1\n---\nb: 2", "more than one", "line 2, column 1"),
        ("a: !!python/object/apply:os.system [id]", "tag", "line 1, column 4"),
        ("a: !!binary aGk=", "tag", "line 1, column 4"),
        ("a: !mine b", "tag", "line 1, column 4"),
        ("? [a]\n: b", "key", "line 1, column 3"),
        ("? {a: b}\n: c", "key", "line 1, column 3"),
        ("a: {<<: 3}", "merges", "line 1, column 9"),
        ("a: 1\nb: -1e999", "digits", "line 2, column 4"),
        ("[" * 60 + "]" * 60, "deeply", "line 1, column 51"),
        ("a: '\t\n", "", "line"),
    ],
)
def test_a_mistake_in_yaml_is_named_with_its_line(text, message, where):
    error = refusal(text)

    assert message in error.message
    assert where in error.message
    assert error.remedy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,\n "b" 2}', "line 2, column 6"),
        ('{"a": 1, "a": 2}', '"a" twice'),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ("name: a", "line 1, column 1"),
        ("", "line 1, column 1"),
        ('{"a": ' + "1" * 5000 + "}", "digits"),
        ('{"a": 1e999}', "digits"),
        ('{"a": -1e999}', "digits"),
        ("[" * 100_000, "deeply"),
        ("[" * 51 + "]" * 51, "deeply"),
        ('{"a":' * 51 + "1" + "}" * 51, "deeply"),
    ],
)
def test_a_mistake_in_json_is_named(text, message):
    assert message in refusal(text, "application/json; charset=utf-8").message


@pytest.mark.parametrize("media_type", ["application/json", "application/yaml"])
def test_as_many_levels_as_are_taken_are_read(media_type):
    assert parse_document("[" * MAX_DEPTH + "]" * MAX_DEPTH, media_type)


def test_a_small_text_that_expands_to_a_large_one_is_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]

    assert "too many" in refusal("\n".join(lines)).message


def test_a_document_that_is_too_large_is_not_read():
    assert refusal("a" * 101, max_bytes=100).code == "too-long"
    assert refusal("é" * 51, max_bytes=100).code == "too-long"


@pytest.mark.parametrize("text", [b"\xff\xfea", b"a: \xc3("])
def test_bytes_that_are_not_utf_8_are_refused(text):
    assert "UTF-8" in refusal(text).message


def test_a_byte_order_mark_is_no_part_of_the_document():
    assert parse_document(b"\xef\xbb\xbfa: 1") == {"a": 1}
    assert parse_document('\ufeff{"a": 1}', "application/json") == {"a": 1}


def test_a_line_of_a_document_with_secrets_is_not_shown():
    error = refusal('secrets:\n  token: "hunter2\n')

    assert "hunter2" not in str(error.to_json())


def test_openpai_is_recognised_by_its_version():
    assert is_openpai({"protocolVersion": 2})
    assert is_openpai({"protocolVersion": "2"})
    assert not is_openpai({"protocolVersion": 1})
    assert not is_openpai({"name": "a"})
    assert not is_openpai([2])


SNIPPETS = st.sampled_from(
    [*"{}[]:,-?&*!|>'\"%@`#\n \t~<\\", "a", "1", "&a ", "*a", "<<", ": ", "- ", "\n  ", "---\n"]
)


@given(text=st.text(max_size=200) | st.lists(SNIPPETS, max_size=40).map("".join) | st.binary())
def test_whatever_is_sent_it_is_read_or_refused(text):
    for content_type in ("application/yaml", "application/json"):
        try:
            parse_document(text, content_type)
        except ImportRefusedError as refused:
            (error,) = refused.errors
            str(error.to_json()).encode()
