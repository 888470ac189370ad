"""Texts in the code that reach a page without a message or a phrase of the catalogue."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from django.utils import translation

from portal.i18n import translated
from tenants.errors import ForbiddenError, NotFoundError, StaleEditError
from tenants.messages import sentence
from tenants.roles import Permission, Role
from tenants.viewers import Viewer

ROOT: Final = Path(__file__).resolve().parents[3]
LABELS: Final = {
    "require": "what",
    "require_version": "kind",
    "compare_and_set": "kind",
    "of": "",
}
"""Functions that show a label of their caller, with its keyword; the first argument if empty."""


def product_modules() -> list[Path]:
    """Modules whose errors pages show; REST answers in English."""
    found = [
        path
        for room in ("portal/web", "scheduling", "tenants", "workers")
        for path in sorted((ROOT / room).rglob("*.py"))
        if "migrations" not in path.parts
    ]
    assert len(found) > 500
    return found


def labels(tree: ast.Module) -> Iterator[ast.expr]:
    """The labels that calls of the functions of ``LABELS`` pass on."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if name == "of":
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            if isinstance(owner, ast.Name) and owner.id == StaleEditError.__name__:
                yield node.args[0]
        elif name in LABELS:
            yield from (word.value for word in node.keywords if word.arg == LABELS[name])


def is_translated(text: str) -> bool:
    """Whether a reader of Chinese sees another text."""
    with translation.override("zh-hans"):
        return translated(text) != text


def untranslated(tree: ast.Module) -> Iterator[str]:
    """Labels that are put together in English, or are not in the catalogue."""
    for label in labels(tree):
        if isinstance(label, ast.JoinedStr):
            yield ast.unparse(label)
        elif isinstance(label, ast.Constant) and not is_translated(str(label.value)):
            yield str(label.value)


def test_every_label_of_a_refusal_is_in_the_catalogue() -> None:
    found = {
        str(path.relative_to(ROOT)): texts
        for path in product_modules()
        if (texts := list(untranslated(ast.parse(path.read_text()))))
    }

    assert found == {}, "add the label to portal/i18n/phrases.py, or use a message"


@pytest.mark.parametrize(
    "source",
    [
        'viewer.require(permission, what="the tapes")',
        'viewer.require(permission, what=f"tape {name}")',
        'require_version(row.version, 3, kind="tape")',
        'raise StaleEditError.of("tape", 3)',
    ],
)
def test_a_label_without_translation_is_found(source: str) -> None:
    assert len(list(untranslated(ast.parse(source)))) == 1


def test_a_refusal_is_chinese_on_a_chinese_page() -> None:
    lead = Viewer(user_id=1, username="alice", roles={1: Role.MEMBER})
    cluster = sentence("tenant-named-exists", name="language")

    with pytest.raises(ForbiddenError) as labelled:
        lead.require(Permission.MANAGE_NODES, what="device types")
    with pytest.raises(NotFoundError) as composed:
        lead.require(Permission.SUBMIT_JOBS, 2, what=cluster)

    assert labelled.value.message == "You are not allowed to do that to device types."
    with translation.override("zh-hans"):
        assert translated(labelled.value.message) == "您无权对设备类型这样做。"
        assert "language" in translated(composed.value.message)
        assert "exists" not in translated(composed.value.message)


SENTENCE: Final = re.compile(r"[A-Z][a-z' ]+.* .*\.", re.DOTALL)
"""A text for people; codes, names and parts of sentences look different."""
UNSEEN: Final = frozenset(
    {
        "portal/web/errors.py",  # an answer of REST
        "portal/web/gallery.py",  # examples of components, for developers
        "tenants/audit_chain.py",  # the command verify_audit
    }
)
FOR_OPERATORS: Final = frozenset(
    {"CommandError", "NotImplementedError", "RuntimeError", "TypeError", "ValueError"}
)
"""Errors that no page shows."""


def page_modules() -> list[Path]:
    """Modules with texts of pages: not the core, whose texts are those of its tables."""
    below = (
        "scheduling/core",
        "workers/transports",
        "scheduling/management",
        "tenants/management",
    )
    return [
        path
        for path in product_modules()
        if not (name := str(path.relative_to(ROOT))).startswith(below)
        and path.name != "messages.py"
        and name not in UNSEEN
    ]


def sentences(tree: ast.Module) -> Iterator[str]:
    """Sentences in the code outside docstrings, logs, plurals and errors for operators."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.Call):
            function = node.func
            name = function.id if isinstance(function, ast.Name) else ""
            owner = function.value if isinstance(function, ast.Attribute) else None
            is_log = isinstance(owner, ast.Name) and owner.id in {"log", "logger"}
            if is_log or name in FOR_OPERATORS or name == "ngettext":
                skipped.update(map(id, ast.walk(node)))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        else:
            text = str(node.value) if isinstance(node, ast.Constant) else ""
        if SENTENCE.fullmatch(text):
            yield text


def test_every_sentence_of_a_page_has_a_message_or_is_in_the_catalogue() -> None:
    with translation.override("zh-hans"):
        found = {
            str(path.relative_to(ROOT)): texts
            for path in page_modules()
            if (
                texts := [
                    text
                    for text in sentences(ast.parse(path.read_text()))
                    if translation.gettext(text) == text
                ]
            )
        }

    assert found == {}, "use a message of the room's table, or gettext"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('raise InvalidError("Use a tape.")', "Use a tape."),
        ('raise InvalidError(f"Tape {name} is full.")', "Tape {} is full."),
        ('remedy = "Use a tape." if tape else ""', "Use a tape."),
    ],
)
def test_a_sentence_without_message_is_found(source: str, text: str) -> None:
    assert list(sentences(ast.parse(source))) == [text]


def test_logs_docstrings_and_errors_for_operators_are_not_for_pages() -> None:
    source = '"""Use a tape."""\nlog.warning("Use a tape.")\nraise ValueError("Use a tape.")'

    assert list(sentences(ast.parse(source))) == []
