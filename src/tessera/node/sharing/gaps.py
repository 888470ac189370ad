"""Following the holder's gaps: when a guest may start its next module.

The holder's phase byte shows whether it uses the device. A module that is expected to end within
the gap costs nothing. Any other start costs the expected overlap with the holder's work, and the
guest must have saved that much credit; ``compute`` is the credit that it earns in a second.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

GUARD = 1.25
"""Assumed maximum duration of a module, as a multiple of its longest time."""
SLICE_SECONDS = 0.0005
"""Interval at which a waiting guest reads the phase byte."""
_GAPS = 20
_LEAST_GAPS = 5


class StepPhase(NamedTuple):
    """The holder's phase: whether it uses the device, and the boot-clock time of the change."""

    busy: bool
    since: float


class Follower(NamedTuple):
    """State of a guest at its gates.

    Attributes:
        credit: seconds of overlap that the guest may cause now.
        at: time up to which credit has been earned.
        gaps: seconds of the holder's latest gaps, at most 20.
        usual_gap: their lower quartile, in seconds; 0 until 5 gaps were seen.
    """

    credit: float = 0.0
    at: float = 0.0
    gaps: Tuple[float, ...] = ()
    usual_gap: float = 0.0


class GateAnswer(NamedTuple):
    """Whether the guest starts its next module; otherwise, when it asks again.

    It asks again after ``wait_seconds``, or within a slice after the phase or the bound changes.
    """

    go: bool
    wait_seconds: float = 0.0


def after_gap(follower: Follower, seconds: float) -> Follower:
    """Record a gap of the holder that has ended."""
    gaps = (*follower.gaps, seconds)[-_GAPS:]
    usual = sorted(gaps)[len(gaps) // 4] if len(gaps) >= _LEAST_GAPS else 0.0
    return follower._replace(gaps=gaps, usual_gap=usual)


def after_closed(follower: Follower, now: float) -> Follower:
    """Drop the credit when the gate opens again: none is earned while it is closed."""
    return follower._replace(credit=0.0, at=now)


def ask(
    follower: Follower,
    now: float,
    compute: float,
    module_seconds: float,
    phase: Optional[StepPhase],
) -> Tuple[Follower, GateAnswer]:
    """Answer a guest that waits at a gate.

    Args:
        follower: the state after the previous answer.
        now: the node's boot clock, in seconds.
        compute: the compute in force, see ``bounds.compute_at``; 0 = the gate is closed.
        module_seconds: the guest's longest module, positive.
        phase: the holder's phase; None where the guest may not see it.

    Returns:
        The next state and the answer.
    """
    if compute <= 0:
        return after_closed(follower, now), GateAnswer(go=False, wait_seconds=SLICE_SECONDS)
    earned = compute * max(now - follower.at, 0.0)
    credit = min(follower.credit + earned, module_seconds)
    cost = _overlap(follower, now, module_seconds, phase)
    # The tolerance absorbs rounding errors of the sums of slices.
    if cost <= credit + 1e-12:
        return follower._replace(credit=max(credit - cost, 0.0), at=now), GateAnswer(go=True)
    wait = SLICE_SECONDS
    if phase is None or phase.busy:
        wait = max((cost - credit) / compute, wait)
    return follower._replace(credit=credit, at=now), GateAnswer(go=False, wait_seconds=wait)


def _overlap(
    follower: Follower, now: float, module_seconds: float, phase: Optional[StepPhase]
) -> float:
    """Return the seconds by which a module that starts now is expected to delay the holder."""
    if phase is None or phase.busy:
        return module_seconds
    elapsed = now - phase.since
    if elapsed >= follower.usual_gap:
        return module_seconds
    beyond = elapsed + GUARD * module_seconds - follower.usual_gap
    return min(max(beyond, 0.0), module_seconds)
