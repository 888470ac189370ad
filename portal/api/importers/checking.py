"""The last step of an import: would the translation be accepted, and if not, what is to mend."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from portal.api.importers.reading import Section
from portal.api.importers.result import Imported, ImportRefusedError
from scheduling.core.jobspec import FieldError, InvalidJobSpecError, parse

Paths = Sequence[tuple[str, str]]


def finish_translation(
    top: Section,
    *,
    spec: dict[str, Any],
    nodes: tuple[dict[str, Any], ...],
    paths: Paths,
    format: str,
    holds_secrets: bool,
) -> Imported:
    """The result of reading a document with one job, or with nodes and an empty ``spec``.

    Raises:
        ImportRefusedError: something in it is wrong, or the native spec would be refused.
    """
    top.finish()
    top.report.raise_errors()
    if spec:
        check_translation(spec, paths)
    return Imported(
        spec=spec,
        nodes=nodes,
        warnings=tuple(top.report.warnings),
        unsupported=tuple(top.report.unsupported),
        format=format,
        holds_secrets=holds_secrets,
    )


def check_translation(spec: Mapping[str, Any], paths: Paths) -> None:
    """Check a translation and name what is wrong by the fields of the original.

    Args:
        spec: the native document.
        paths: patterns of our paths with what stood there in the original; all are tried.

    Raises:
        ImportRefusedError: the native spec would be refused.
    """
    try:
        parse(spec)
    except InvalidJobSpecError as refused:
        raise ImportRefusedError([_renamed(error, paths) for error in refused.errors]) from None


def _renamed(error: FieldError, paths: Paths) -> FieldError:
    path = error.field
    for pattern, wanted in paths:
        path = re.sub(pattern, wanted, path)
    return replace(error, field=path)
