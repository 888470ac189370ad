"""What a publisher tells everybody: facts without names, or for an audience checked elsewhere."""

from typing import Any

from scheduling.rounds.models import Round


def round_beat(number: int) -> dict[str, Any] | None:
    """What the round ticker shows of a round; it names nobody."""
    found = (
        Round.objects.filter(number=number)
        .values("number", "duration_ms", "committed_at", "policies", "queued", "running")
        .first()
    )
    return {**found, "committed_at": found["committed_at"].isoformat()} if found else None
