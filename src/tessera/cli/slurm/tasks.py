"""Job IDs as Slurm's commands take them: ``12``; of arrays ``12_3``, ``12_[0-4,7]``."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tessera.cli.exits import UsageError
from tessera.cli.slurm.words import ARRAY
from tessera.client import Client

MOST_TASKS: Final = 1000
_TASK: Final = "SLURM_ARRAY_TASK_ID"
_ARRAY: Final = "SLURM_ARRAY_JOB_ID"
_BETWEEN: Final = re.compile(r",(?![^\[]*\])")
_JOB: Final = re.compile(r"([0-9]{1,18})(?:_(?:([0-9]{1,9})|\[([0-9,:-]{1,2000})\]))?")
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?")


def numbers_of(client: Client, words: Sequence[str]) -> list[int]:
    """The jobs that are meant, in the order in which they are named.

    Args:
        client: asks which jobs the tasks of an array are.
        words: as they were given, each with one or several numbers parted by commas.

    Raises:
        UsageError: a word is not a job ID, or the array has no such task.
    """
    read = [_read(word) for text in words for word in _BETWEEN.split(text)]
    found: list[int] = []
    for number, tasks in read:
        found += [number] if tasks is None else _jobs_of_tasks(client, number, tasks)
    return found


def number_of(client: Client, word: str) -> int:
    """The ID of exactly one job; see ``numbers_of``."""
    found = numbers_of(client, [word])
    if len(found) != 1:
        raise UsageError(f"expected one job, not {len(found)}")
    return found[0]


def _read(word: str) -> tuple[int, list[int] | None]:
    """The job ID and the named tasks; no tasks: None."""
    match = _JOB.fullmatch(word)
    if match is None:
        raise _invalid(word)
    if match[2]:
        return int(match[1]), [int(match[2])]
    return int(match[1]), _tasks(match[3], word) if match[3] else None


def _tasks(text: str, word: str) -> list[int]:
    found: dict[int, None] = {}
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _invalid(word)
        first, last = int(match[1]), int(match[2] or match[1])
        tasks = range(first, last + 1, int(match[3] or 1))
        if not tasks or len(found) + len(tasks) > MOST_TASKS:
            raise _invalid(word)
        found |= dict.fromkeys(tasks)
    return list(found)


def _jobs_of_tasks(client: Client, array: int, tasks: Sequence[int]) -> list[int]:
    first = client.get(f"jobs/{array}/")
    env = _environment(first)
    if _TASK not in env or env.get(_ARRAY, str(array)) != str(array):
        raise UsageError(f"Job {array} is not an array")
    found = {}
    if env[_TASK].isdecimal():
        found[int(env[_TASK])] = array
    left = set(tasks) - set(found)
    for row in _of_one_name(client, array, first) if left else ():
        ending = str(row["name"]).rpartition(" ")[2]
        if not (ending.isascii() and ending.isdecimal() and int(ending) in left):
            continue
        # Other arrays may have the same name: the job itself knows whose task it is.
        env = _environment(client.get(f"jobs/{row['id']}/"))
        if (env.get(_ARRAY), env.get(_TASK)) == (str(array), str(int(ending))):
            found[int(ending)] = int(row["id"])
            left.discard(int(ending))
            if not left:
                break
    if left:
        raise UsageError(f"Job {array} has no task {min(left)}")
    return [found[task] for task in tasks]


def _of_one_name(
    client: Client, array: int, first: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """Jobs of arrays of this name and person that are not older, the newest first."""
    name = str((first.get("labels") or {}).get(ARRAY) or "")
    user = str(first["user"])
    for row in client.pages("jobs/", label=f"{ARRAY}={name}", user=user, state="live,ended"):
        if int(row["id"]) < array:
            return
        yield row


def _environment(job: Mapping[str, Any]) -> dict[str, str]:
    """What the specification of a job from a batch script puts into its environment."""
    roles = (job.get("spec") or {}).get("roles") or {}
    return {str(k): str(v) for role in roles.values() for k, v in (role.get("env") or {}).items()}


def _invalid(word: str) -> UsageError:
    return UsageError(f"Invalid job id {word[:40]}")
