"""Stored rounds: snapshot and decision of each round with changes, for replays and checks."""

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields
from datetime import datetime
from typing import Any, Final

import orjson
import zstandard
from django.db.models import F

from scheduling.common.canonical_json import canonical_json
from scheduling.core.round.decide import DECISION_VERSION
from scheduling.core.round_result import RoundResult
from scheduling.core.values import ClusterSnapshot
from scheduling.rounds.models import Round
from scheduling.rounds.snapshot import Reading
from scheduling.storage.base import FileStorage, StorageUnavailableError
from scheduling.storage.errors import StorageAwayError

ROUNDS_DIR: Final = "rounds"
PER_FOLDER: Final = 1000
FORMAT: Final = 1
HASH_DIGITS: Final = 12
NUMBER_DIGITS: Final = 9
OMITTED_IF_EMPTY: Final = frozenset(
    {
        "grids",
        "given_sizes",
        "hosts",
        "guests",
        "guest_needs",
        "guest_leaves",
        "promotions",
        "peers",
        "peer_needs",
        "pair_paces",
        "suspect_devices",
        "cpu_pools",
        "cpu_queued",
        "cpu_holding",
        "cpu_starts",
        "cpu_preemptions",
    }
)
"""Fields that are not stored if they are empty, so that older rounds have the same bytes."""


class _Spelled:
    """Cache of encoded JSON: most jobs have the same values in consecutive rounds."""

    def __init__(self) -> None:
        self._known: Mapping[int, tuple[object, orjson.Fragment]] = {}

    def of(self, values: Mapping[int, object]) -> list[orjson.Fragment]:
        """Return the JSON of each value, and drop cache entries of other keys."""
        before, now = self._known, {}
        for key, value in values.items():
            known = before.get(key)
            if known is None or known[0] is not value:
                known = value, orjson.Fragment(canonical_json(value))
            now[key] = known
        self._known = now
        return [fragment for _, fragment in now.values()]


_QUEUED: Final = _Spelled()
_HOLDING: Final = _Spelled()


def spelled_round(snapshot: ClusterSnapshot, result: RoundResult) -> bytes:
    """Return the canonical JSON of a round; each shared value is encoded once."""
    read, decided = stored_fields(snapshot), stored_fields(result)
    read["queued"] = _QUEUED.of({job.id: job for job in snapshot.queued})
    read["holding"] = _HOLDING.of({job.id: job for job in snapshot.holding})
    # Jobs with the same reason share one object.
    reasons = {id(reason): reason for reason in result.reasons.values()}
    spelled = {at: orjson.Fragment(canonical_json(reason)) for at, reason in reasons.items()}
    decided["reasons"] = {job_id: spelled[id(reason)] for job_id, reason in result.reasons.items()}
    return canonical_json(
        {
            "decision_version": DECISION_VERSION,
            "format": FORMAT,
            "result": _in_order(decided),
            "snapshot": _in_order(read),
        }
    )


def stored_fields(value: ClusterSnapshot | RoundResult) -> dict[str, Any]:
    """Return the fields of a round that are stored, by name."""
    return {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if field.name not in OMITTED_IF_EMPTY or getattr(value, field.name)
    }


def _in_order(spelled: Mapping[str, Any]) -> orjson.Fragment:
    """Return the fields in declaration order, as in an encoding of the complete value."""
    parts = (b'"%b":%b' % (name.encode(), canonical_json(of)) for name, of in spelled.items())
    return orjson.Fragment(b"{%b}" % b",".join(parts))


def store_round(
    *, storage: FileStorage, number: int, reading: Reading, result: RoundResult
) -> tuple[str, str, int]:
    """Store a round's snapshot and decision; the file appears only when it is complete.

    Its name contains its hash, since two hosts may decide rounds of the same number: only one of
    them commits, and the file of the other one must not replace it.

    Returns:
        Name of the file, SHA-256 of the canonical JSON, and file size in bytes.
    """
    document = spelled_round(reading.snapshot, result)
    digest = hashlib.sha256(document).hexdigest()
    folder = f"{ROUNDS_DIR}/{number // PER_FOLDER:06d}"
    name = f"{folder}/{number:0{NUMBER_DIGITS}d}-{digest[:HASH_DIGITS]}.json.zst"
    packed = zstandard.ZstdCompressor(level=3).compress(document)
    storage.put(name, packed)
    return name, digest, len(packed)


def store_shadows(*, storage: FileStorage, stored: Round, answers: object) -> int:
    """Store the decisions of a round's shadow policies next to its file, and count their bytes.

    Returns:
        The size of the file in bytes.
    """
    packed = zstandard.ZstdCompressor(level=3).compress(canonical_json(answers))
    storage.put(_shadow_name(stored), packed)
    Round.objects.filter(pk=stored.pk).update(snapshot_bytes=F("snapshot_bytes") + len(packed))
    return len(packed)


def read_shadows(*, storage: FileStorage, stored: Round) -> list[dict[str, Any]]:
    """Return the decisions of a round's shadow policies; empty if their file was pruned."""
    if not stored.snapshot_path:
        return []
    try:
        packed = _get(storage, _shadow_name(stored))
    except FileNotFoundError:
        return []
    loaded: list[dict[str, Any]] = orjson.loads(zstandard.ZstdDecompressor().decompress(packed))
    return loaded


def _get(storage: FileStorage, name: str) -> bytes:
    try:
        return storage.get(name)
    except StorageUnavailableError as error:
        raise StorageAwayError.of_round() from error


def _shadow_name(stored: Round) -> str:
    folder, _, name = stored.snapshot_path.rpartition("/")
    shadows = name.replace(".json.", ".shadows.json.", 1)
    return f"{folder}/{shadows}" if folder else shadows


def read_round(*, storage: FileStorage, stored: Round) -> dict[str, Any]:
    """Return the document of a stored round, checked against the hash in its row.

    Raises:
        FileNotFoundError: the round changed nothing, or its file has been pruned.
        StorageAwayError: the object store does not respond.
        ValueError: the file is damaged, or its hash differs.
    """
    if not stored.snapshot_path:
        raise FileNotFoundError(f"round {stored.number} made no changes and stored no snapshot")
    packed = _get(storage, stored.snapshot_path)
    try:
        document = zstandard.ZstdDecompressor().decompress(packed)
    except zstandard.ZstdError as error:
        raise ValueError(f"the file of round {stored.number} is damaged: {error}") from error
    if hashlib.sha256(document).hexdigest() != stored.snapshot_sha256:
        raise ValueError(f"the file of round {stored.number} does not have the stored hash")
    loaded: dict[str, Any] = orjson.loads(document)
    return loaded


def prune_rounds(*, storage: FileStorage, older_than: datetime, keep_bytes: int) -> int:
    """Delete files of old rounds, then the oldest files beyond ``keep_bytes``.

    Rows of deleted files get an empty path.

    Returns:
        The number of deleted files.
    """
    kept = 0
    doomed: list[Round] = []
    needed: set[str] = set()
    for stored in Round.objects.exclude(snapshot_path="").order_by("-number"):
        kept += stored.snapshot_bytes
        if stored.started_at < older_than or kept > keep_bytes:
            doomed.append(stored)
        else:
            needed |= {stored.snapshot_path, _shadow_name(stored)}
    storage.delete(_names(storage, doomed, needed))
    Round.objects.filter(pk__in=[stored.pk for stored in doomed]).update(snapshot_path="")
    return len(doomed)


def _names(storage: FileStorage, doomed: Sequence[Round], needed: Set[str]) -> set[str]:
    """Return the files of old rounds, including those of schedulers that lost a round."""
    names = {name for stored in doomed for name in (stored.snapshot_path, _shadow_name(stored))}
    newest = max((stored.number for stored in doomed), default=0)
    folders = {stored.snapshot_path.rpartition("/")[0] for stored in doomed} - {""}
    for folder in folders:
        for found in storage.files(folder):
            number = found.name.rpartition("/")[2][:NUMBER_DIGITS]
            if number.isdecimal() and int(number) <= newest:
                names.add(found.name)
    return names - needed
