"""Parsing of ``#SBATCH`` lines, and options without a counterpart."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from scheduling.compat.reading import ParseReport, Section
from scheduling.compat.slurm.messages import phrase
from scheduling.core.jobspec.errors import DocumentPlace, RefusalError
from tessera.messages import Sentence
from tessera.slurm_options import ALL, MAYBE_WITH_VALUE, SHORT, WITH_VALUE, full_name

_MARK: Final = "#SBATCH"
_OTHERS: Final = ("#PBS", "#BSUB", "#$ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option in the script.

    Attributes:
        value: empty for a flag.
        line: line number, from 1.
    """

    name: str
    value: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A parsed batch script.

    Attributes:
        interpreter: text after ``#!``; empty without such a line.
        options: options by long name; the last one of repeated options.
        lines: the script without the first line and without option lines.
    """

    interpreter: str
    options: dict[str, Option]
    lines: list[str]


def place_of(name: str, report: ParseReport) -> DocumentPlace:
    """Return the document place of an option, for reports."""
    return DocumentPlace(f"--{name}", report.errors)


def read_script(text: str, report: ParseReport) -> Script:
    """Parse a script; report unknown options and lines that Slurm ignores."""
    lines = text.replace("\r\n", "\n").split("\n")
    interpreter = ""
    if lines[0].startswith("#!"):
        interpreter = lines.pop(0)[2:].strip()
        first = 2
    else:
        report.warn(DocumentPlace("line 1"), phrase("slurm-no-shebang"))
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
            words = phrase("slurm-other-scheduler")
            report.leave_out(DocumentPlace(f"line {number}"), line, words, needed=True)
        is_open = is_open and (not line.strip() or line.lstrip().startswith("#"))
        kept.append(line)
    return Script(interpreter=interpreter, options=options, lines=kept)


def _late(line: str, number: int, report: ParseReport) -> None:
    words = phrase("slurm-late-option")
    report.leave_out(DocumentPlace(f"line {number}"), line, words, needed=False)


def _read_line(text: str, number: int, options: dict[str, Option], report: ParseReport) -> None:
    place = DocumentPlace(f"line {number}", report.errors)
    try:
        words = split_words(text)
        for name, value in _pairs(words):
            if name not in ALL:
                there = DocumentPlace(f"--{name}", report.errors)
                report.leave_out(
                    there, value, phrase("slurm-unknown-option", name=name), needed=True
                )
                continue
            if name in options and options[name].value != value:
                report.warn(place_of(name, report), phrase("slurm-option-twice", line=number))
            options[name] = Option(name=name, value=value, line=number)
    except RefusalError as refusal:
        place.note(text.strip(), refusal)


def split_words(text: str) -> list[str]:
    """Split a line into words as sbatch does: quotes, backslashes, and ``#`` before a comment.

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
        raise RefusalError(phrase("slurm-open-quote"), phrase("slurm-close-quote", quote=quote))
    return words if word is None else [*words, word]


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of long option name and value; an unknown name has a value only after ``=``."""
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
            raise RefusalError(phrase("slurm-hetjob"), phrase("slurm-write-roles"))
        else:
            raise RefusalError(
                phrase("slurm-not-an-option", word=repr(word[:40])), phrase("slurm-write-option")
            )


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
        raise RefusalError(phrase("slurm-no-value", option=word[:40]), phrase("slurm-write-value"))
    return value


# (needed, message): whether the job depends on the option, and its effect in Slurm.
_REST: Final[dict[str, tuple[bool, Sentence]]] = {
    "output": (False, phrase("slurm-output")),
    "error": (False, phrase("slurm-error")),
    "open-mode": (False, phrase("slurm-open-mode")),
    "exclusive": (False, phrase("slurm-exclusive")),
    "nodelist": (True, phrase("import-no-node-choice")),
    "exclude": (True, phrase("slurm-exclude")),
    "nodefile": (True, phrase("slurm-nodefile")),
    "licenses": (True, phrase("slurm-licenses")),
    "container-mounts": (True, phrase("import-mounts")),
    "container-name": (True, phrase("slurm-container-name")),
    "container-save": (True, phrase("slurm-container-save")),
    "container-mount-home": (True, phrase("slurm-container-home")),
    "container-writable": (False, phrase("slurm-container-writable")),
    "container": (True, phrase("slurm-oci")),
    "input": (True, phrase("slurm-input")),
    "export-file": (True, phrase("slurm-export-file")),
    "time-min": (False, phrase("slurm-time-min")),
    "nice": (False, phrase("import-priority")),
    "priority": (False, phrase("import-priority")),
    "clusters": (False, phrase("slurm-clusters")),
    "prefer": (False, phrase("slurm-no-features")),
    "tmp": (False, phrase("import-disk")),
    "kill-on-invalid-dep": (False, phrase("slurm-invalid-dependency")),
    "oversubscribe": (False, phrase("slurm-oversubscribe")),
    "contiguous": (False, phrase("slurm-contiguous")),
    "bb": (True, phrase("slurm-burst-buffers")),
    "bbf": (True, phrase("slurm-burst-buffers")),
    "gpus-per-socket": (True, phrase("slurm-write-gpus-per-node")),
    "ntasks-per-gpu": (True, phrase("slurm-write-ntasks-per-node")),
    "tres-per-task": (True, phrase("slurm-write-per-task")),
    "uid": (True, phrase("slurm-uid")),
    "gid": (True, phrase("slurm-uid")),
    "no-kill": (True, phrase("slurm-no-kill")),
    "reboot": (True, phrase("slurm-reboot")),
}
# Options that concern only the program sbatch, not the job.
_CLIENT: Final = [
    "parsable",
    "quiet",
    "verbose",
    "wait",
    "test-only",
    "help",
    "usage",
    "version",
    "ignore-pbs",
    "get-user-env",
]
# Options for the binding of processes, memory and clocks on a node.
_TUNING: Final = [
    "acctg-freq",
    "batch",
    "cluster-constraint",
    "core-spec",
    "cores-per-socket",
    "cpu-freq",
    "delay-boot",
    "distribution",
    "extra",
    "extra-node-info",
    "gpu-bind",
    "gpu-freq",
    "gres-flags",
    "hint",
    "mcs-label",
    "mem-bind",
    "network",
    "ntasks-per-core",
    "ntasks-per-socket",
    "oom-kill-step",
    "overcommit",
    "profile",
    "propagate",
    "resv-ports",
    "segment",
    "sockets-per-node",
    "spread-job",
    "stepmgr",
    "thread-spec",
    "threads-per-core",
    "tres-bind",
    "use-min-nodes",
    "wait-all-nodes",
    "wckey",
]


def report_client_options(given: Section) -> None:
    """Report the options that only concern the ``sbatch`` command."""
    for name in _CLIENT:
        given.leave_out(f"--{name}", phrase("slurm-client-option"), needed=False)


def report_unsupported(given: Section) -> None:
    """Report the recognised options that have no counterpart."""
    if given.peek("--input") == "/dev/null":
        given.take("--input")
    for name, (needed, words) in _REST.items():
        given.leave_out(f"--{name}", words, needed=needed)
    for name in _TUNING:
        given.leave_out(f"--{name}", phrase("slurm-tuning"), needed=False)
