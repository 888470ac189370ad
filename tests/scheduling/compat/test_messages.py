"""The messages of importers: every code has a template, and every template a use."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduling.compat.formats import TABLE
from scheduling.compat.hived.messages import TABLE as HIVED
from scheduling.compat.messages import SHARED
from scheduling.core.messages import TABLE as CORE
from tessera.messages import BASE, Message, Sentence, Table
from tests.support.imports import inputs, remarks

EVERY = Table(CORE, TABLE)
"""Remarks may also be faults of the job specification that was translated."""
ROOT = Path(__file__).resolve().parents[3] / "scheduling" / "compat"
MAKERS = ("phrase", "message")


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Every call that makes a message, with its code and where it is."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            code = node.args[0]
            if name in MAKERS and isinstance(code, ast.Constant):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", str(code.value), node


def literals() -> set[str]:
    """All texts in the package outside of tables."""
    return {
        str(node.value)
        for path in ROOT.rglob("*.py")
        if path.name != "messages.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
    }


def test_each_code_has_a_template_and_is_given_its_parameters() -> None:
    for place, code, call in calls():
        given = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
        is_open = any(keyword.arg is None for keyword in call.keywords)
        assert code in TABLE, f"{place}: no template for {code}"
        wanted = TABLE[code].names
        assert given <= wanted if is_open else given == wanted, f"{place}: {code}"


def test_every_template_is_used() -> None:
    looked_up = {code for code in SHARED if code.startswith("yaml-")}

    assert set(TABLE) - set(BASE) - literals() - looked_up == set()


def test_codes_begin_with_the_name_of_their_importer() -> None:
    shared = set(SHARED) - set(BASE)

    assert {code.partition("-")[0] for code in shared} == {"import", "yaml"}
    assert {code.partition("-")[0] for code in set(HIVED) - set(SHARED)} == {"hived"}


@pytest.mark.parametrize(
    ("name", "path"), inputs(), ids=lambda value: getattr(value, "stem", value)
)
def test_each_remark_is_a_message_with_the_text_of_its_template(name: str, path: Path) -> None:
    for words in remarks(name, path.read_text()):
        assert isinstance(words, Sentence)
        assert EVERY.english(words.message) == words


def test_a_code_of_one_importer_is_unknown_to_the_table_of_another() -> None:
    with pytest.raises(KeyError):
        HIVED.phrase("dstack-shell")
    assert HIVED.phrase("import-missing").message == Message("import-missing", {})
