"""Bitwise comparison of two trainings by the hashes of their checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

SETTINGS: Final = ("seed", "logical_workers", "level", "threads", "torch")
"""Fields of a receipt besides the hash; runs with different values may differ bitwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One checkpoint: number of steps, SHA-256 of the complete state, and settings."""

    attempt: int
    step: int
    sha256: str
    settings: Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of the checkpoints of two training runs.

    Attributes:
        common: steps at which both runs saved, in order.
        same: number of leading common steps with equal hashes.
        first_difference: the first step with different hashes, or None.
        left, right: hashes of the two runs at that step.
        settings: differing settings from the receipts, by name.
    """

    common: tuple[int, ...]
    same: int
    first_difference: int | None
    left: str
    right: str
    settings: Mapping[str, tuple[str, str]]


def compare(left: Sequence[Receipt], right: Sequence[Receipt]) -> Comparison:
    """Compare two training runs.

    Args:
        left: the checkpoints of one, in the order in which they were saved; if a step was saved
            several times, the last one counts.
        right: receipts of the other.
    """
    mine = {one.step: one.sha256 for one in left}
    theirs = {one.step: one.sha256 for one in right}
    common = tuple(sorted(mine.keys() & theirs.keys()))
    parted = next((step for step in common if mine[step] != theirs[step]), None)
    return Comparison(
        common=common,
        same=len(common) if parted is None else common.index(parted),
        first_difference=parted,
        left="" if parted is None else mine[parted],
        right="" if parted is None else theirs[parted],
        settings=_different(_settings(left), _settings(right)),
    )


def changed_steps(receipts: Sequence[Receipt]) -> tuple[int, ...]:
    """Return the steps with different hashes in one training, which is thus not reproducible."""
    hashes: dict[int, set[str]] = {}
    for one in receipts:
        hashes.setdefault(one.step, set()).add(one.sha256)
    return tuple(sorted(step for step, found in hashes.items() if len(found) > 1))


def _settings(receipts: Sequence[Receipt]) -> Mapping[str, str]:
    """Return each setting as the newest receipt records it."""
    found: dict[str, str] = {}
    for one in receipts:
        found |= {name: str(one.settings[name]) for name in SETTINGS if name in one.settings}
    return found


def _different(left: Mapping[str, str], right: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
    pairs = {name: (left.get(name, ""), right.get(name, "")) for name in SETTINGS}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
