"""Messages as values: stored, read back, and rendered from the table of the room."""

import ast
import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.messages import TABLE, english, message, sentence
from scheduling.core.reasons import Reason, stored_steps, stored_text
from tenants.messages import TENANTS
from tenants.messages import sentence as tenant_sentence
from tessera.messages import (
    BASE,
    PLAIN,
    Listing,
    Message,
    Moment,
    Parameter,
    Sentence,
    Table,
    Template,
    capitalised,
    english_of,
    follow,
    message_from,
    message_of,
    placed,
    plain,
    sentence_from,
)
from tessera.reasons import ReasonCode

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("tenants", "scheduling", "portal", "workers")

ALL = Table(TABLE, TENANTS)

names = st.text(min_size=1, max_size=8)
numbers = st.integers(0, 10_000)


def parameters(depth: int = 2) -> st.SearchStrategy[Parameter]:
    """Any parameter, with messages and listings down to a depth."""
    leaves: st.SearchStrategy[Any] = st.one_of(
        names, numbers, st.floats(0, 1e9), st.builds(Moment, st.floats(0, 2e9))
    )
    if depth == 0:
        return leaves
    inner = parameters(depth - 1)
    listings = st.builds(
        Listing,
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.sampled_from(["", "and", "or"]),
    )
    return st.one_of(leaves, listings, messages(depth - 1))


def messages(depth: int = 2) -> st.SearchStrategy[Message]:
    """A message of any code of the table, with the parameters of its template."""

    def of(code: str) -> st.SearchStrategy[Message]:
        template = TABLE[code]
        kinds = {
            name: numbers
            if name == template.by or _is_number(template, name)
            else parameters(depth - 1)
            if depth > 0
            else names
            for name in template.names
        }
        return st.fixed_dictionaries(kinds).map(lambda params: Message(code, params))

    codes = sorted(code for code in TABLE if code != PLAIN)
    return st.one_of(names.map(plain), st.sampled_from(codes).flatmap(of))


def _is_number(template: Template, name: str) -> bool:
    return f"%({name})s" not in template.one + template.many


@given(messages())
def test_a_stored_message_is_read_back_as_it_was(found: Message) -> None:
    assert message_from(json.loads(json.dumps(found.to_json()))) == found
    assert message_from(orjson.loads(orjson.dumps(found))) == found


@given(messages())
def test_every_message_has_an_english_text_without_placeholders(found: Message) -> None:
    words = english(found)

    assert isinstance(words, str)
    assert "%(" not in words or "%(" in json.dumps(found.to_json(), ensure_ascii=False)


@given(messages())
def test_a_sentence_keeps_its_message_when_it_is_stored_copied_or_pickled(found: Message) -> None:
    made = sentence(found)
    stored = sentence_from(json.loads(json.dumps(made.to_json())))

    for one in (stored, copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert one == english(found)
        assert isinstance(one, Sentence)
        assert one.message == found


@given(messages(), st.lists(messages(), max_size=3))
def test_a_stored_reason_has_its_message_and_the_english_text_of_its_time(
    found: Message, steps: list[Message]
) -> None:
    reason = Reason(code=ReasonCode.HELD, message=found, unblock=tuple(steps))
    detail = json.loads(json.dumps(reason.to_json()))

    told = stored_text("in the words of its time", detail)
    assert told == "in the words of its time"
    assert isinstance(told, Sentence)
    assert told.message == found
    assert stored_steps(detail) == tuple(map(english, steps))


def test_rows_from_before_messages_hold_texts_only() -> None:
    detail = {"blocked_by": [], "unblock": ["Release it."]}

    assert stored_text("It waits.", detail) == "It waits."
    assert stored_steps(detail) == ("Release it.",)
    assert message_from("It waits.") == plain("It waits.")


def test_counts_lists_and_phrases_are_written_in_english() -> None:
    shape = Listing(
        tuple(
            message("instances", n=n, devices=message("devices", n=size))
            for n, size in ((1, 4), (2, 1))
        ),
        "and",
    )
    how = message(
        "gates-and", gates=Listing((message("released"),)), how=message("on-type", type="b")
    )

    assert english(message("less-fits", less=shape)) == (
        "Request 1 instance of 4 devices and 2 instances of 1 device: that fits now."
    )
    assert english(message("starts-now", how=how)) == (
        "Released and on devices of type b it starts now."
    )
    assert english(message("not-before", not_before=Moment(1_700_000_000))) == (
        "Earliest start: 14 Nov 2023 22:13:20 UTC."
    )


def test_a_sentence_may_be_a_parameter_and_be_of_another_room() -> None:
    own = sentence("device-reason", index=1, value=sentence("no-healthy-device"))
    lower = tenant_sentence("forbidden-for", what=plain(sentence("the-cluster")))

    assert own == "Device 1: no healthy device"
    assert own.message.params["value"] == message("no-healthy-device")
    assert lower == "You are not allowed to do that to the cluster."


def test_sentences_in_a_row_keep_their_messages() -> None:
    fault, remedy = sentence("missing"), sentence("remove-it")

    both = placed("name", follow(fault, "", remedy))
    assert both == "name: is missing. Remove it."
    assert message_of(both).params["fault"] == message_of(follow(fault, remedy))
    assert message_of(capitalised(fault)) == fault.message
    assert capitalised(fault) == "Is missing."
    assert (follow("", ""), follow("", fault)) == ("", fault)
    assert type(english_of(fault)) is str


def test_a_name_at_the_beginning_of_a_sentence_stays_as_it_is() -> None:
    told = english(message("borrow-cap", name="vision-a", borrowed=2, cap=3, wanted=4))

    assert told.startswith("vision-a borrows 2 devices")


@pytest.mark.parametrize("params", [{}, {"node": "n-1", "more": 2}, {"name": "n-1"}])
def test_a_message_takes_the_parameters_of_its_template_and_no_others(
    params: dict[str, Parameter],
) -> None:
    with pytest.raises(TypeError, match="repair-node takes node"):
        message("repair-node", **params)


def test_a_code_without_a_template_is_refused() -> None:
    with pytest.raises(KeyError):
        message("no-such-code")
    with pytest.raises(ValueError, match="more than one template for held"):
        Table(BASE, {"held": Template("Held.")}, {"held": Template("It is held.")})


def test_a_plural_has_the_parameters_of_its_singular_or_fewer_there() -> None:
    for code, template in TABLE.items():
        if template.many:
            one, many = Template(template.one).names, Template(template.many).names
            assert one - {template.by} == many - {template.by}, code
            assert template.by, code
    assert Template("%(n)s job", "%(n)s jobs", "n").names == {"n"}


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call of ``message`` or ``sentence`` with a code in the product, with where it is."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if "messages import" not in source:
                continue
            for node in ast.walk(ast.parse(source)):
                if not isinstance(node, ast.Call):
                    continue
                name = getattr(node.func, "id", "")
                if name == "message" or (name == "sentence" and is_code(node.args[0])):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def is_code(argument: ast.expr) -> bool:
    """Whether the argument is a code, or a choice between codes; else it is a message."""
    if isinstance(argument, ast.IfExp):
        return is_code(argument.body) and is_code(argument.orelse)
    return isinstance(argument, (ast.Constant, ast.JoinedStr))


def codes_of(code: ast.expr) -> list[str]:
    """The codes that an expression may be: a literal, a choice of them, or those of a prefix."""
    if isinstance(code, ast.IfExp):
        return [*codes_of(code.body), *codes_of(code.orelse)]
    if isinstance(code, ast.JoinedStr):  # a prefix, and a code of another table
        prefix = code.values[0]
        assert isinstance(prefix, ast.Constant), ast.unparse(code)
        return [one for one in ALL if one.startswith(str(prefix.value))]
    assert isinstance(code, ast.Constant), ast.unparse(code)
    return [str(code.value)]


def test_each_code_has_a_template_and_is_given_its_parameters() -> None:
    used = set()
    for place, call in calls():
        given_names = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
        is_open = any(keyword.arg is None for keyword in call.keywords)  # **facts
        for code in codes_of(call.args[0]):
            used.add(code)
            assert code in ALL, f"{place}: no template for {code}"
            wanted = ALL[code].names
            assert given_names <= wanted if is_open else given_names == wanted, f"{place}: {code}"

    assert set(ALL) - used - set(BASE) == set(), "templates that nothing uses"
