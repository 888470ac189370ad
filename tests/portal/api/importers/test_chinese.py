"""What an importer says of a document is said in Chinese as well."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from django.utils import translation

import portal.api.importers
from portal.api.importers.documents import parse_document
from portal.api.importers.formats import TITLES
from portal.api.importers.result import ImportRefusedError
from portal.i18n import said
from tests.support.imports import inputs, outcome

KINDS: Final = ("message", "remedy")
HAN: Final = re.compile(r"[\u4e00-\u9fff]")
ENGLISH: Final = re.compile(r"\b[A-Za-z]{2,} [a-z]{2,}\b")
SENTENCE: Final = re.compile(r"(?=.* )(?=.*[A-Za-z]{3}).*\.")
FAILS: Final = ("_fail", "_fail_at")
"""They take what is wrong as their second argument, and say the line and column behind it."""
CLUSTERS: Final = "hived"
"""Whole clusters are imported by scripts, which read English."""
MODULES: Final = sorted(
    path
    for path in Path(portal.api.importers.__path__[0]).glob("*.py")
    if not path.stem.startswith(CLUSTERS)
)


def remarks(name: str, path: Path) -> Iterator[str]:
    """All remarks on a document, each warning with its place."""
    found = outcome(name, path.read_text())
    yield from found.get("warnings", ())
    for entry in (*found.get("unsupported", ()), *found.get("errors", ())):
        yield from (entry[kind] for kind in KINDS if entry.get(kind))


def sentences(path: Path) -> Iterator[str]:
    """The sentences that a module writes, with 7 for each fact in them."""
    tree = ast.parse(path.read_text())
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    explained = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in parts | explained:
            if SENTENCE.fullmatch(text := _written(node)):
                yield text
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", "") in FAILS
            and not isinstance(node.args[1], ast.Name)
        ):
            yield f"{_written(node.args[1])}, at line 7, column 7."


def _written(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_written, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "7"


def not_chinese(texts: Iterator[str]) -> dict[str, str]:
    """Those that are not said in Chinese, or not whole."""
    with translation.override("zh-hans"):
        told = {text: str(said(text)) for text in texts}
    return {
        text: shown
        for text, shown in told.items()
        if not HAN.search(shown) or ENGLISH.search(shown)
    }


@pytest.mark.parametrize("name", TITLES)
def test_every_remark_on_a_document_is_said_in_chinese(name: str) -> None:
    mine = [path for kind, path in inputs() if kind == name]

    assert len(mine) >= 15
    assert not_chinese(text for path in mine for text in remarks(name, path)) == {}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_sentence_of_an_importer_is_in_the_catalogue(path: Path) -> None:
    assert not_chinese(sentences(path)) == {}


@pytest.mark.parametrize(
    "text",
    [
        "a: b: c\n", "a: [1, 2\n", "a: {b: 1\nc: 2\n", "- a\nb: 1\n", "a: 1\n\tb: 2\n", "a: 'x\n",
        "@a\n", "a: *x\n", 'a: "\\z"\n', "a: 1\n- b\n", "a: \x01\n",
        "a: >\n b\nc\n d: e\n", "a: !x b\n",
    ],
)  # fmt: skip
def test_what_is_no_yaml_is_said_in_chinese(text: str) -> None:
    with pytest.raises(ImportRefusedError) as refused:
        parse_document(text)

    assert not_chinese(error.message for error in refused.value.errors) == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("--magic: --magic is not known here.", "--magic：这里不认识 --magic。"),
        (
            "line 1: is no #! line, which sbatch wants; bash is used.",
            "第 1 行：不是 sbatch 所要求的 #! 行；使用 bash。",
        ),
        ("taskRoles.w.commands: holds no command.", "taskRoles.w.commands：没有命令。"),
        ('env."a b": is set twice.', 'env."a b"：设置了两次。'),
        (
            'has the key "run it" twice, at line 2, column 3.',
            '第 2 行第 3 列：键 "run it" 出现了两次。',
        ),
        ("run: nobody has said this before.", "run: nobody has said this before."),
        ("Give it to nobody.", "Give it to nobody."),
    ],
)
def test_a_remark_keeps_its_place_and_its_facts(text: str, told: str) -> None:
    with translation.override("zh-hans"):
        assert said(text) == told
