"""The ``#SBATCH`` lines of a batch script: which options there are, and what was written."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from portal.api.importers.reading import Report
from scheduling.core.jobspec.errors import Place, RefusalError
from tessera.slurm_options import ALL, MAYBE_WITH_VALUE, SHORT, WITH_VALUE, full_name

_MARK: Final = "#SBATCH"
_OTHERS: Final = ("#PBS", "#BSUB", "#$ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option as it was written.

    Attributes:
        value: empty for a flag.
        line: from 1.
    """

    name: str
    value: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A batch script, taken apart.

    Attributes:
        interpreter: what stands after ``#!``; empty without such a line.
        options: by long name; of an option that stands twice, the later one.
        lines: the script itself, without the first line and without those of options.
    """

    interpreter: str
    options: dict[str, Option]
    lines: list[str]


def place_of(name: str, report: Report) -> Place:
    """The place of an option."""
    return Place(f"--{name}", report.errors)


def read_script(text: str, report: Report) -> Script:
    """Take a script apart; unknown options and lines that Slurm ignores are reported."""
    lines = text.replace("\r\n", "\n").split("\n")
    interpreter = ""
    if lines[0].startswith("#!"):
        interpreter = lines.pop(0)[2:].strip()
        first = 2
    else:
        report.warn(Place("line 1"), "is no #! line, which sbatch wants; bash is used.")
        first = 1
    options: dict[str, Option] = {}
    kept: list[str] = []
    is_open = True
    for number, line in enumerate(lines, first):
        if line.startswith(_MARK) and not line[len(_MARK) :][:1].strip():
            if is_open:
                _read_line(line[len(_MARK) :], number, options, report)
            else:
                _late(line, number, report)
            continue
        if line.startswith(_OTHERS):
            words = "Options of another scheduler are not read."
            report.lacks(Place(f"line {number}"), line, words, needed=True)
        is_open = is_open and (not line.strip() or line.lstrip().startswith("#"))
        kept.append(line)
    return Script(interpreter=interpreter, options=options, lines=kept)


def _late(line: str, number: int, report: Report) -> None:
    words = "It stands below the first command, where Slurm does not read it either."
    report.lacks(Place(f"line {number}"), line, words, needed=False)


def _read_line(text: str, number: int, options: dict[str, Option], report: Report) -> None:
    place = Place(f"line {number}", report.errors)
    try:
        words = split_words(text)
        for name, value in _pairs(words):
            if name not in ALL:
                there = Place(f"--{name}", report.errors)
                report.lacks(there, value, f"--{name} is not known here.", needed=True)
                continue
            if name in options and options[name].value != value:
                report.warn(
                    place_of(name, report),
                    f"stands twice; the one of line {number} counts, as with Slurm.",
                )
            options[name] = Option(name=name, value=value, line=number)
    except RefusalError as refusal:
        place.note(text.strip(), refusal)


def split_words(text: str) -> list[str]:
    """Words as sbatch takes them apart: quotes, backslashes, and ``#`` before a comment.

    Raises:
        RefusalError: a quote is not closed.
    """
    words: list[str] = []
    word: str | None = None
    quote = ""
    characters = iter(text)
    for char in characters:
        if quote:
            if char == quote:
                quote = ""
            else:
                word = (word or "") + char
        elif char in "\"'":
            quote, word = char, word or ""
        elif char == "\\":
            word = (word or "") + next(characters, "")
        elif char.isspace():
            words, word = (words if word is None else [*words, word]), None
        elif char == "#" and word is None:
            break
        else:
            word = (word or "") + char
    if quote:
        raise RefusalError("has a quote that is not closed.", f"Close it with {quote}.")
    return words if word is None else [*words, word]


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """Long names with values; names that are not known come with what follows them."""
    left = iter(words)
    for word in left:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            known = full_name(name)
            if not equals and known in WITH_VALUE:
                value = _value(left, word)
            yield known, value
        elif word.startswith("-") and len(word) > 1:
            yield from _short_pairs(word, left)
        elif word in ("hetjob", "packjob"):
            raise RefusalError(
                "divides a job of different parts, which cannot be read.",
                "Write one role for each part in a job of this cluster.",
            )
        else:
            raise RefusalError(f"has {word[:40]!r}, which is no option.", "Begin options with --.")


def _short_pairs(word: str, left: Iterator[str]) -> Iterator[tuple[str, str]]:
    position = 1
    while position < len(word):
        letter = word[position]
        name = SHORT.get(letter, letter)
        position += 1
        if name in WITH_VALUE:
            yield name, word[position:].removeprefix("=") or _value(left, word)
            return
        if name not in ALL or name in MAYBE_WITH_VALUE:
            yield name, word[position:]
            return
        yield name, ""


def _value(left: Iterator[str], word: str) -> str:
    value = next(left, None)
    if value is None:
        raise RefusalError(f"gives {word[:40]} no value.", "Write one after it.")
    return value
