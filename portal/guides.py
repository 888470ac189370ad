"""The documentation of this version: titles and headings for the search, and the texts."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from django.conf import settings

NAME: Final = re.compile(r"[a-z0-9-]{1,60}")
_TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)
_LINK: Final = re.compile(r"\]\(([a-z0-9-]+)\.md")
_SECTION: Final = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideSection:
    """A part of a document below a heading; ``number`` is its anchor."""

    number: int
    heading: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """A document; the first section has no heading."""

    name: str
    title: str
    sections: tuple[GuideSection, ...]


@lru_cache(maxsize=1)
def guides() -> tuple[Guide, ...]:
    """Return the documents by name; none if this installation has no directory ``docs``."""
    folder = Path(settings.BASE_DIR) / "docs"
    return tuple(_read(path) for path in sorted(folder.glob("*.md")) if NAME.fullmatch(path.stem))


@lru_cache(maxsize=1)
def reading_order() -> tuple[tuple[str, tuple[Guide, ...]], ...]:
    """Return the documents by reader, in the order of ``docs/README.md``."""
    index = Path(settings.BASE_DIR) / "docs" / "README.md"
    if not index.exists():
        return ()
    known = {guide.name: guide for guide in guides()}
    _lead, *parts = _SECTION.split(index.read_text(encoding="utf-8"))
    return tuple(
        (
            heading.strip(),
            tuple(known[name] for name in dict.fromkeys(_LINK.findall(text)) if name in known),
        )
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
    )


def guide_named(name: str) -> Guide | None:
    return next((guide for guide in guides() if guide.name == name), None)


def found_in_guides(text: str, *, most: int) -> tuple[tuple[Guide, GuideSection], ...]:
    """Return the sections whose headings contain ``text``; titles of documents come first."""
    wanted = text.casefold()
    titles, headings = [], []
    for guide in guides():
        if wanted in guide.title.casefold():
            titles.append((guide, guide.sections[0]))
        headings += [
            (guide, section) for section in guide.sections if wanted in section.heading.casefold()
        ]
    return tuple([*titles, *headings][:most])


def _read(path: Path) -> Guide:
    text = path.read_text(encoding="utf-8")
    title = _TITLE.search(text)
    lead, *rest = _SECTION.split(text[title.end() :] if title else text)
    parts = [("", lead), *zip(rest[::2], rest[1::2], strict=True)]
    return Guide(
        name=path.stem,
        title=title[1] if title else path.stem,
        sections=tuple(
            GuideSection(number=number, heading=heading.strip(), text=body.strip())
            for number, (heading, body) in enumerate(parts)
        ),
    )
