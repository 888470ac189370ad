"""Edits of one value in a YAML text; comments, order and quotes elsewhere are preserved.

The caller parses the result again and compares it with the expected document: anchors, merge keys
and other rare syntax may come out wrong here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from portal.web.job_text import to_yaml

Entry = tuple[yaml.Node, yaml.Node]


def composed(text: str) -> yaml.Node | None:
    """The nodes of a text with their places; None for an empty one.

    Args:
        text: a document that ``parse_document`` has read. libyaml composes by recursion without a
            bound of its own.
    """
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.CSafeLoader)
    return node


def with_value(text: str, keys: Sequence[str], expected: Mapping[str, Any]) -> str | None:
    """Return the text with the value of ``expected`` below ``keys``, or without it.

    Returns:
        None if no single entry in block style can be changed.
    """
    node, wanted, above = composed(text), expected, None
    for key in keys:
        if not isinstance(node, yaml.MappingNode) or node.flow_style or not node.value:
            break
        found = entry_of(node, key)
        if key not in wanted:
            return text if found is None else _without(text, node, found, above, wanted)
        if found is None:
            column = node.value[0][0].start_mark.column
            at = _line_end(text, _end(text, node))
            return f"{text[:at]}\n{' ' * column}{_written(key, wanted[key], column)}{text[at:]}"
        node, wanted, above = found[1], wanted[key], found
    return None if above is None else _replaced(text, above, wanted)


def entry_of(node: yaml.MappingNode, key: str) -> Entry | None:
    """The key and value nodes of a mapping's entry."""
    return next((entry for entry in node.value if entry[0].value == key), None)


def _replaced(text: str, entry: Entry, value: object) -> str:
    key = entry[0]
    in_line = isinstance(entry[1], yaml.MappingNode) and bool(entry[1].flow_style)
    start, end = key.start_mark, max(_end(text, entry[1]), text.find(":", key.end_mark.index) + 1)
    written = _written(key.value, value, start.column, in_line=in_line)
    return text[: start.index] + written + text[end:]


def _without(
    text: str, node: yaml.MappingNode, entry: Entry, above: Entry | None, left: object
) -> str | None:
    if len(node.value) == 1:
        return None if above is None else _replaced(text, above, left)
    start = text.rfind("\n", 0, entry[0].start_mark.index) + 1
    end = max(_end(text, entry[1]), entry[0].end_mark.index)
    return text[:start] + text[_line_end(text, end) + 1 :]


def _written(key: str, value: object, column: int, *, in_line: bool = False) -> str:
    """An entry as text, from its key on; further lines are indented for a key in ``column``."""
    if in_line:
        return to_yaml({key: value}, in_line=True)[1:-2]
    first, *further = to_yaml({key: value}).removesuffix("\n").split("\n")
    return "\n".join([first, *(" " * column + line if line else "" for line in further)])


def _end(text: str, node: yaml.Node) -> int:
    """Return the end of a node's last value; the end mark of a block is behind its comments."""
    if isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _end(text, last[1] if isinstance(last, tuple) else last)
    start, end = node.start_mark.index, node.end_mark.index
    return start + len(text[start:end].rstrip())


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end
