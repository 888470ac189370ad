"""Replay of stored rounds: each one must give its stored decision, bit for bit."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import orjson

from scheduling.common.canonical_json import canonical_json
from scheduling.core.round.decide import DECISION_VERSION
from scheduling.core.round.replaying import differing_fields, replay_round
from scheduling.core.round.stored import UnreadableRoundError, read_stored
from scheduling.rounds.models import Round
from scheduling.rounds.services.evidence import read_round, stored_fields
from scheduling.storage.base import FileStorage

_FIRST_VERSION: Final = 1
"""Decision version of records without a version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReplay:
    """A stored round and its replay.

    Attributes:
        version: decision version of the record.
        differs: fields of the decision that differ; empty if the replay is equal.
        unreadable: error of the file; empty if the round could be replayed.
    """

    number: int
    version: int = _FIRST_VERSION
    differs: tuple[str, ...] = ()
    unreadable: str = ""

    @property
    def is_same_version(self) -> bool:
        """Whether the record must be equal."""
        return self.version == DECISION_VERSION


def replay_stored_rounds(
    *, storage: FileStorage, first: int = 1, last: int | None = None
) -> Iterator[RoundReplay]:
    """Replay stored rounds in the order of numbers.

    Args:
        storage: has the files of rounds.
        first: smallest number of a round.
        last: largest number; None for no limit.
    """
    rows = Round.objects.exclude(snapshot_path="").filter(number__gte=first).order_by("number")
    if last is not None:
        rows = rows.filter(number__lte=last)
    for row in rows.iterator():
        yield _replay(row, storage)


def _replay(row: Round, storage: FileStorage) -> RoundReplay:
    try:
        document = read_round(storage=storage, stored=row)
        snapshot, stored = read_stored(document)
    except (FileNotFoundError, UnreadableRoundError, ValueError) as error:
        return RoundReplay(number=row.number, unreadable=str(error))
    version = int(document.get("decision_version", _FIRST_VERSION))
    result = replay_round(snapshot, stored)
    # Fields of values are in declaration order; fields of a document are sorted.
    decided = orjson.loads(canonical_json(stored_fields(result)))
    if canonical_json(decided) == canonical_json(document["result"]):
        return RoundReplay(number=row.number, version=version)
    differs = differing_fields(result, stored) or ("encoding",)
    return RoundReplay(number=row.number, version=version, differs=differs)
