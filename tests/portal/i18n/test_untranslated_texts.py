"""Texts in the code that reach a page without a message or a phrase of the catalogue."""

import ast
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
