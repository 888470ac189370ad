"""Documents of jobs as YAML text for people: keys in a useful order, scripts as blocks."""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from portal.api.documents import read_document
from scheduling.compat.result import ImportRefusedError

WIDTH: Final = 100_000


class _Writer(yaml.SafeDumper):
    """Indents lists below their keys, and writes values instead of aliases."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        return True


def _write_list(writer: _Writer, value: list[Any]) -> yaml.Node:
    is_plain = all(not isinstance(inner, dict | list) for inner in value)
    return writer.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=is_plain)


def _write_text(writer: _Writer, text: str) -> yaml.Node:
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=_style_of(text))


_Writer.add_representer(list, _write_list)
_Writer.add_representer(str, _write_text)


def to_yaml(document: Mapping[str, Any], *, in_line: bool = False) -> str:
    """``document`` as text; ``in_line``: as ``{key: value}`` on one line."""
    text: str = yaml.dump(
        plain(document),
        Dumper=_Writer,
        default_flow_style=in_line,
        sort_keys=False,
        allow_unicode=True,
        width=WIDTH,
    )
    return text


def plain(value: Any) -> Any:
    """Return a mutable copy made of dicts and lists."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _style_of(text: str) -> str | None:
    """Return the style: ``|`` for several lines if representable, else quotes if needed."""
    lines = text.split("\n")
    printable = all(character.isprintable() or character == "\n" for character in text)
    as_block = len(lines) > 1 and all(line == line.rstrip() for line in lines)
    if as_block and printable and lines[0] and not lines[0].startswith(" "):
        return "|"
    return '"' if not printable or len(lines) > 1 or not _reads_back(text) else None


def _reads_back(text: str) -> bool:
    """Return whether our parser reads the text correctly without quotes."""
    try:
        return isinstance(read_document(text), str)
    except ImportRefusedError:
        return True  # not by itself; the writer quotes texts that its own parser would refuse
