"""The input of a round: database rows of one consistent view, as plain values of the core."""

from scheduling.rounds.snapshot.reading import (
    Reading,
    RoundConfig,
    cluster_spec,
    next_round_number,
    take_snapshot,
)

__all__ = ["Reading", "RoundConfig", "cluster_spec", "next_round_number", "take_snapshot"]
