"""``sbatch``: a script and options become the text that the importer reads."""

import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import typer

from tessera.cli.exits import Exit, UsageError, exit_of_job
from tessera.cli.session import Session
from tessera.results import Body, remarks_of
from tessera.slurm_options import ALL, MAYBE_WITH_VALUE, SHORT, WITH_VALUE, full_name

POLL_SECONDS: Final = 1.0
_OWN: Final = frozenset(
    {"parsable", "test-only", "wait", "quiet", "verbose", "help", "usage", "wrap"}
)
_FROM_ENVIRONMENT: Final = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_EXPORT": "export",
}
_USAGE: Final = "Usage: sbatch [OPTIONS...] script [args...]   (- reads standard input)"
_HELP: Final = f"""\
{_USAGE}

Submit a batch script. Options on the command line override its #SBATCH lines. All options of
sbatch are accepted; those that Tessera does not support give a warning, see --test-only.

  -p, --partition NAME      virtual cluster
  -A, --account NAME        tenant
  -q, --qos NAME            priority class
  -J, --job-name NAME       name of the job
  -N, --nodes N             nodes
  -n, --ntasks N            tasks; --ntasks-per-node, -c/--cpus-per-task
  -G, --gpus N              devices; --gpus-per-node, --gpus-per-task, --gres=gpu:N
      --mem SIZE            memory of a node
  -t, --time LIMIT          such as 90, 1:30:00 or 2-12
  -a, --array LIST          such as 0-9%2
  -d, --dependency LIST     such as afterok:17
  -H, --hold                hold the job until it is released
      --wrap COMMAND        a command in place of a script
      --test-only           check the script and show warnings; submit nothing
      --parsable            print only the job ID
  -W, --wait                wait until all its jobs have ended
  -Q, --quiet               no warnings
  -h, --help                show this message and exit"""


@dataclass(slots=True)
class Asked:
    """A parsed command line.

    Attributes:
        options: options by long name, in order; a flag has an empty value.
        words: the script and its arguments.
    """

    options: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)


def read_arguments(arguments: Sequence[str]) -> Asked:
    """Parse options up to the first positional word, and return the rest.

    Raises:
        UsageError: an option is unknown, or lacks its value.
    """
    asked, left = Asked(), list(arguments)
    while left:
        word = left.pop(0)
        if word == "--" or not word.startswith("-") or word == "-":
            asked.words = left if word == "--" else [word, *left]
            return asked
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            known = full_name(name)
            _check(known, word)
            if known in WITH_VALUE and not equals:
                value = _next(left, word)
            asked.options[known] = value
        else:
            _short(word, left, asked)
    return asked


def _short(word: str, left: list[str], asked: Asked) -> None:
    position = 1
    while position < len(word):
        name = SHORT.get(word[position], word[position])
        _check(name, word)
        position += 1
        if name in WITH_VALUE:
            asked.options[name] = word[position:].removeprefix("=") or _next(left, word)
            return
        if name in MAYBE_WITH_VALUE:
            asked.options[name] = word[position:]
            return
        asked.options[name] = ""


def _check(name: str, word: str) -> None:
    if name not in ALL:
        raise UsageError(f"sbatch: unrecognized option '{word}'")


def _next(left: list[str], word: str) -> str:
    if not left:
        raise UsageError(f"sbatch: option '{word}' requires an argument")
    return left.pop(0)


def script_text(asked: Asked, script: str, environment: dict[str, str]) -> str:
    """Insert the options of the environment and the command line into the script.

    They follow the script's own options, so that they override them.

    Raises:
        UsageError: an option contains a line break, or the script cannot take the arguments.
    """
    given = {
        option: environment[name]
        for name, option in _FROM_ENVIRONMENT.items()
        if environment.get(name)
    }
    given |= {name: value for name, value in asked.options.items() if name not in _OWN}
    lines = script.split("\n")
    at = 1 if lines[0].startswith("#!") else 0
    while at < len(lines) and (not lines[at].strip() or lines[at].lstrip().startswith("#")):
        at += 1
    added = [_option_line(name, value) for name, value in given.items()]
    if asked.words[1:]:
        if lines[0].startswith("#!") and "sh" not in lines[0]:
            raise UsageError("sbatch: only shell scripts accept arguments")
        added.append(f"set -- {shlex.join(asked.words[1:])}")
    return "\n".join([*lines[:at], *added, *lines[at:]])


def _option_line(name: str, value: str) -> str:
    if "\n" in value or "\r" in value:
        raise UsageError(f"sbatch: the value of --{name} contains a line break")
    return f"#SBATCH --{name}" + (f"={shlex.quote(value)}" if value else "")


def run_sbatch(session: Session, arguments: Sequence[str]) -> None:
    """Submit a batch script, or check it with --test-only."""
    asked = read_arguments(arguments)
    if {"help", "usage"} & set(asked.options):
        typer.echo(_HELP)
        return
    text = script_text(asked, _script(asked), dict(os.environ))
    dry = "test-only" in asked.options
    with session.client() as client:
        answer = client.import_document(text, form="sbatch", dry_run=dry)
        if "quiet" not in asked.options:
            _say(answer)
        if dry:
            typer.echo("sbatch: the script is valid; nothing was submitted", err=True)
            return
        number = answer["job"]["id"]
        typer.echo(number if "parsable" in asked.options else f"Submitted batch job {number}")
        if "wait" in asked.options:
            raise typer.Exit(_wait(client, answer["jobs"]))


def _script(asked: Asked) -> str:
    if "wrap" in asked.options:
        if asked.words:
            raise UsageError("sbatch: a script and --wrap cannot be combined")
        return f"#!/bin/sh\n{asked.options['wrap']}\n"
    if not asked.words:
        raise UsageError(_USAGE)
    if asked.words[0] == "-":
        return sys.stdin.read()
    try:
        return Path(asked.words[0]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"sbatch: {asked.words[0]} cannot be read: {error}") from error


def _say(answer: Body) -> None:
    for remarks in remarks_of(answer):
        for option, message in remarks.entries:
            place = f"{option}: " if option else ""
            typer.echo(f"sbatch: {remarks.heading}: {place}{message}", err=True)


def _wait(client: Any, numbers: Sequence[int]) -> Exit:
    """Wait for all jobs, and return the worst exit status."""
    worst = Exit.OK
    for number in numbers:
        while not (job := client.job(number)).has_ended:
            time.sleep(POLL_SECONDS)
        worst = max(worst, exit_of_job(job.state))
    return worst
