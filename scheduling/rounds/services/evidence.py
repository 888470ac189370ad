"""Stored rounds: snapshot and decision of each round with changes, for replays and checks."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import orjson
import zstandard
from django.db.models import F

from scheduling.common.canonical_json import canonical_json
from scheduling.core.round.decide import DECISION_VERSION
from scheduling.core.values import ClusterSnapshot, RoundResult
from scheduling.rounds.models import Round
from scheduling.rounds.snapshot import Reading

ROUNDS_DIR: Final = "rounds"
PER_FOLDER: Final = 1000
FORMAT: Final = 1
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
    *, data_dir: Path, number: int, reading: Reading, result: RoundResult
) -> tuple[str, str, int]:
    """Write a round's snapshot and decision; the file appears only when it is complete.

    Returns:
        Path relative to ``data_dir``, SHA-256 of the canonical JSON, and file size in bytes.
    """
    document = spelled_round(reading.snapshot, result)
    folder = Path(ROUNDS_DIR) / f"{number // PER_FOLDER:06d}"
    (data_dir / folder).mkdir(parents=True, exist_ok=True)
    path = folder / f"{number:09d}.json.zst"
    packed = zstandard.ZstdCompressor(level=3).compress(document)
    temporary = data_dir / folder / f".{number:09d}.{os.getpid()}"
    temporary.write_bytes(packed)
    temporary.replace(data_dir / path)
    return str(path), hashlib.sha256(document).hexdigest(), len(packed)


def store_shadows(*, data_dir: Path, stored: Round, answers: object) -> int:
    """Store the decisions of a round's shadow policies next to its file, and count their bytes.

    Returns:
        The size of the file in bytes.
    """
    path = _shadow_path(stored)
    packed = zstandard.ZstdCompressor(level=3).compress(canonical_json(answers))
    temporary = data_dir / path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(packed)
    temporary.replace(data_dir / path)
    Round.objects.filter(pk=stored.pk).update(snapshot_bytes=F("snapshot_bytes") + len(packed))
    return len(packed)


def read_shadows(*, data_dir: Path, stored: Round) -> list[dict[str, Any]]:
    """Return the decisions of a round's shadow policies; empty if their file was pruned."""
    if not stored.snapshot_path:
        return []
    try:
        packed = (data_dir / _shadow_path(stored)).read_bytes()
    except FileNotFoundError:
        return []
    loaded: list[dict[str, Any]] = orjson.loads(zstandard.ZstdDecompressor().decompress(packed))
    return loaded


def _shadow_path(stored: Round) -> Path:
    path = Path(stored.snapshot_path)
    return path.with_name(path.name.replace(".json.", ".shadows.json.", 1))


def read_round(*, data_dir: Path, stored: Round) -> dict[str, Any]:
    """Return the document of a stored round, checked against the hash in its row.

    Raises:
        FileNotFoundError: the round changed nothing, or its file has been pruned.
        ValueError: the file is damaged, or its hash differs.
    """
    if not stored.snapshot_path:
        raise FileNotFoundError(f"round {stored.number} made no changes and stored no snapshot")
    packed = (data_dir / stored.snapshot_path).read_bytes()
    try:
        document = zstandard.ZstdDecompressor().decompress(packed)
    except zstandard.ZstdError as error:
        raise ValueError(f"the file of round {stored.number} is damaged: {error}") from error
    if hashlib.sha256(document).hexdigest() != stored.snapshot_sha256:
        raise ValueError(f"the file of round {stored.number} does not have the stored hash")
    loaded: dict[str, Any] = orjson.loads(document)
    return loaded


def prune_rounds(*, data_dir: Path, older_than: datetime, keep_bytes: int) -> int:
    """Delete files of old rounds, then the oldest files beyond ``keep_bytes``.

    Rows of deleted files get an empty path.

    Returns:
        The number of deleted files.
    """
    kept = 0
    doomed: list[Round] = []
    for stored in Round.objects.exclude(snapshot_path="").order_by("-number"):
        kept += stored.snapshot_bytes
        if stored.started_at < older_than or kept > keep_bytes:
            doomed.append(stored)
    for stored in doomed:
        (data_dir / stored.snapshot_path).unlink(missing_ok=True)
        (data_dir / _shadow_path(stored)).unlink(missing_ok=True)
    Round.objects.filter(pk__in=[stored.pk for stored in doomed]).update(snapshot_path="")
    return len(doomed)
