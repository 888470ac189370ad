"""Documents of jobs as YAML text for people: keys in a useful order, scripts as blocks."""

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from portal.api.importers.documents import parse_document
from portal.api.importers.result import ImportRefusedError

WIDTH = 100_000


def round_trip() -> YAML:
    """The reader and writer that keeps comments, order and quotes."""
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = WIDTH
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.allow_unicode = True
    return yaml


def to_yaml(document: Mapping[str, Any]) -> str:
    """``document`` as text."""
    return dump(styled(document))


def dump(tree: object) -> str:
    """A tree of ``round_trip`` as text."""
    into = io.StringIO()
    round_trip().dump(tree, into)
    return into.getvalue()


def styled(value: object) -> Any:
    """Plain values as a tree whose texts are written so that they are read back as they are."""
    if isinstance(value, Mapping):
        return CommentedMap((key, styled(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        sequence = CommentedSeq(styled(inner) for inner in value)
        if all(not isinstance(inner, Mapping | list | tuple) for inner in value):
            sequence.fa.set_flow_style()
        return sequence
    return styled_text(value) if isinstance(value, str) else value


def styled_text(text: str) -> str:
    """A text of several lines as a block, where a block can hold it."""
    lines = text.split("\n")
    plain = all(character.isprintable() or character == "\n" for character in text)
    as_block = len(lines) > 1 and all(line == line.rstrip() for line in lines)
    found: str = text
    if as_block and plain and lines[0] and not lines[0].startswith(" "):
        found = LiteralScalarString(text)
    elif not plain or len(lines) > 1 or not _reads_back(text):
        found = DoubleQuotedScalarString(text)
    return found


def _reads_back(text: str) -> bool:
    """Whether the text may stand without quotes as far as our own reader is concerned."""
    try:
        return isinstance(parse_document(text), str)
    except ImportRefusedError:
        return True  # not by itself; the writer quotes what its own reader would not take
