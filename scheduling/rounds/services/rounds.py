"""One scheduling round: read, decide, and commit in one short transaction."""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from django.db import IntegrityError, transaction

from scheduling.clusters.models import VirtualCluster
from scheduling.common.on_commit import request_round_on_commit
from scheduling.common.time_limits import time_limit
from scheduling.core.lifecycle import PreemptionRule
from scheduling.core.messages import sentence
from scheduling.core.policies import make_policy
from scheduling.core.reasons import Reason
from scheduling.core.round.decide import decide_with_queue_order
from scheduling.core.round.policy_answers import MakePolicy
from scheduling.core.round_result import RoundResult
from scheduling.jobs.services.lifecycle import queued_among
from scheduling.rounds.models import Round
from scheduling.rounds.services.commit import (
    announce_wake,
    audit_reverts,
    new_faults,
    reason_detail,
    reject_jobs,
    store_reasons,
    write_faults,
    write_lines,
    write_rebindings,
)
from scheduling.rounds.services.guests import promote_guests, seats_now, start_of
from scheduling.rounds.services.starts import create_attempts
from scheduling.rounds.snapshot import Reading, RoundConfig, next_round_number, take_snapshot
from scheduling.rounds.snapshot.live_jobs import StoredReason
from scheduling.runs.services.gang_outcomes import tell_coordinators
from scheduling.runs.services.guests import send_guests_away
from scheduling.runs.services.stopping import preempt_job
from scheduling.runs.services.tallies import tallies_written_last
from scheduling.signals import round_committed

EVIDENCE_SECONDS: Final = 60.0
"""Minimum interval of stored rounds that only let jobs wait."""

Store = Callable[[int, Reading, RoundResult], tuple[str, str, int]]
"""Stores the evidence of a round; returns its path, SHA-256 and size in bytes."""


class LostRoundError(Exception):
    """Another scheduler committed a round with this number first; this round wrote nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """The result of a round.

    Attributes:
        started: jobs that got devices.
        dropped: jobs that were placed, but changed state before the commit.
        rebound: running jobs that lost or regained their guarantee.
        rejected: queued jobs that their policies rejected permanently.
        new_waits: whether a job started to wait, or waits for another reason than before.
    """

    number: int
    started: tuple[int, ...]
    preempted: tuple[int, ...]
    dropped: tuple[int, ...]
    duration_ms: float
    rebound: tuple[int, ...] = ()
    rejected: tuple[int, ...] = ()
    new_waits: bool = False


def run_round(
    *,
    now: Callable[[], datetime],
    config: RoundConfig,
    store: Store,
    cause: str = "tick",
    make: MakePolicy = make_policy,
) -> RoundOutcome:
    """Run one round from the snapshot to the commit.

    Args:
        now: returns the current time.
        config: the settings of rounds.
        store: stores the snapshot of a round with changes.
        cause: the trigger of the round, for its record.
        make: builds a policy from its name and parameters.

    Raises:
        LostRoundError: another scheduler committed first; the caller may ignore this round.
    """
    with _collector_paused():
        return _run_round(now=now, config=config, store=store, cause=cause, make=make)


def _run_round(
    *, now: Callable[[], datetime], config: RoundConfig, store: Store, cause: str, make: MakePolicy
) -> RoundOutcome:
    started_at, begun = now(), time.perf_counter()
    number = next_round_number(config.using)
    reading = take_snapshot(number=number, now=started_at, config=config)
    read_ms = _ms(begun)
    result, lines = decide_with_queue_order(
        reading.snapshot, limit=time_limit(config.policy_seconds), make=make
    )
    decided_ms = _ms(begun)
    is_kept = _changes_something(reading, result) or _has_fresh_waiters(
        reading, result, started_at
    )
    evidence = store(number, reading, result) if is_kept else ("", "", 0)
    try:
        with transaction.atomic(), tallies_written_last():
            outcome = _commit(number, reading, result, started_at)
            write_lines(lines)
            _write_round_row(
                outcome=outcome,
                reading=reading,
                result=result,
                started_at=started_at,
                committed_at=now(),
                timings={
                    "read": read_ms,
                    "decide": decided_ms - read_ms,
                    "commit": _ms(begun) - decided_ms,
                },
                evidence=evidence,
                cause=cause,
            )
    except IntegrityError as error:
        if Round.objects.filter(number=number).exists():
            raise LostRoundError(f"round {number} was committed by another process") from error
        raise
    return outcome


def _changes_something(reading: Reading, result: RoundResult) -> bool:
    """Return whether a round has any effect besides reasons of waiting jobs."""
    return bool(
        result.starts
        or result.preemptions
        or result.rebindings
        or result.rejections
        or result.guests
        or result.guest_leaves
        or result.promotions
        or result.peers
        or result.cpu_starts
        or result.cpu_preemptions
        or new_faults(reading.snapshot, result.policy_faults)
    )


def _has_fresh_waiters(reading: Reading, result: RoundResult, now: datetime) -> bool:
    """Return whether a waiting job is in no stored round, and the newest one is a minute old.

    A reason can be checked only against a stored snapshot that contains the job.
    """
    waiting = (*reading.snapshot.queued, *reading.snapshot.cpu_queued)
    fresh = [job for job in waiting if job.id in result.reasons]
    newest = max((job.submitted for job in fresh), default=0.0)
    if newest <= 0.0:
        return False
    stored = (
        Round.objects.exclude(snapshot_path="")
        .order_by("-number")
        .values_list("started_at", flat=True)
        .first()
    )
    if stored is None:
        return True
    return stored.timestamp() < min(newest, now.timestamp() - EVIDENCE_SECONDS)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause garbage collection: the many small objects of a round contain no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _commit(number: int, reading: Reading, result: RoundResult, now: datetime) -> RoundOutcome:
    wanted = [start.job_id for start in result.starts]
    wanted += [guest.job_id for guest in result.guests]
    wanted += [peer.seat.job_id for peer in result.peers]
    wanted += [start.job_id for start in result.cpu_starts]
    still_queued = queued_among(wanted)
    seats = seats_now(
        [guest for guest in result.guests if guest.job_id in still_queued],
        reading.device_ids,
        [peer for peer in result.peers if peer.seat.job_id in still_queued],
    )
    starts = [
        start for start in (*result.starts, *result.cpu_starts) if start.job_id in still_queued
    ]
    starts += [start_of(seat) for seat in seats.values()]
    started = create_attempts(number=number, starts=starts, reading=reading, now=now, seats=seats)
    tell_coordinators([seat.holder_member for job, seat in seats.items() if job in started])
    promote_guests(result.promotions, round_number=number, now=now)
    send_guests_away(result.guest_leaves, rule=sentence("guest-leaves"), now=now)
    preemptions = (*result.preemptions, *result.cpu_preemptions)
    for preemption in preemptions:
        preempt_job(
            job_id=preemption.job_id,
            for_job=preemption.for_job,
            rule=preemption.rule,
            cause=PreemptionRule(preemption.cause or PreemptionRule.POLICY),
            now=now,
        )
    audit_reverts(result.preemptions)
    rejected = reject_jobs(result.rejections, now=now)
    write_faults(reading.snapshot, result, now=now)
    announce_wake(result.wake, now=now, round_seconds=reading.snapshot.round_seconds)
    rebound = write_rebindings(rebindings=result.rebindings, round_number=number, now=now)
    new_waits = _write_reasons(reading, result)
    _write_policy_states(reading, result)
    dropped = tuple(job_id for job_id in wanted if job_id not in started)
    if dropped:
        request_round_on_commit("dropped")
    return RoundOutcome(
        number=number,
        started=tuple(start.job_id for start in starts if start.job_id in started),
        preempted=tuple(p.job_id for p in preemptions),
        dropped=dropped,
        duration_ms=0.0,
        rebound=rebound,
        rejected=rejected,
        new_waits=new_waits,
    )


def _write_reasons(reading: Reading, result: RoundResult) -> bool:
    """Store new and changed reasons; return whether a job has a reason with another code."""
    # Jobs with the same reason share one object, which is encoded and compared once.
    spelled: dict[int, StoredReason] = {}
    unchanged: dict[tuple[int, int], bool] = {}
    changed: dict[int, Reason] = {}
    same_code: set[int] = set()
    for job_id, reason in result.reasons.items():
        wanted = spelled.get(id(reason))
        if wanted is None:
            wanted = spelled[id(reason)] = StoredReason(
                code=reason.code.value, detail=reason_detail(reason)
            )
        before = reading.reasons.get(job_id)
        pair = id(before), id(wanted)
        if pair not in unchanged:
            unchanged[pair] = before == wanted
        if not unchanged[pair]:
            changed[job_id] = reason
            if before is not None and before.code == wanted.code:
                same_code.add(job_id)
    store_reasons(changed, {key: one.detail for key, one in spelled.items()}, same_code=same_code)
    return len(same_code) < len(changed)


def _write_policy_states(reading: Reading, result: RoundResult) -> None:
    before = {vc.id: vc.policy_state for vc in reading.snapshot.vcs}
    for vc_id, state in result.policy_states.items():
        if dict(state) != dict(before.get(vc_id, {})):
            VirtualCluster.objects.unscoped().filter(pk=vc_id).update(policy_state=dict(state))


def _write_round_row(
    *,
    outcome: RoundOutcome,
    reading: Reading,
    result: RoundResult,
    started_at: datetime,
    committed_at: datetime,
    timings: dict[str, float],
    evidence: tuple[str, str, int],
    cause: str,
) -> None:
    snapshot = reading.snapshot
    path, sha256, size = evidence
    Round.objects.create(
        number=outcome.number,
        started_at=started_at,
        committed_at=committed_at,
        duration_ms=round(sum(timings.values()), 3),
        cause=cause[:20],
        policies=sorted({vc.policy for vc in snapshot.vcs}),
        topology_version=snapshot.topology_version,
        queued=len(snapshot.queued) + len(snapshot.cpu_queued) - len(outcome.started),
        running=len(snapshot.holding) + len(snapshot.cpu_holding) + len(outcome.started),
        started=len(outcome.started),
        preempted=len(outcome.preempted),
        dropped=len(outcome.dropped),
        fallbacks=list(result.fallbacks),
        timings_ms={name: round(value, 3) for name, value in timings.items()},
        snapshot_path=path,
        snapshot_sha256=sha256,
        snapshot_bytes=size,
    )
    _announce(outcome, is_stored=bool(path))


def _announce(outcome: RoundOutcome, *, is_stored: bool) -> None:
    """Send the signal of the round after its commit."""
    changed = bool(outcome.started or outcome.preempted or outcome.rebound or outcome.rejected)
    transaction.on_commit(
        partial(
            round_committed.send_robust,
            sender=Round,
            number=outcome.number,
            changed=changed,
            stored=is_stored,
            new_waits=outcome.new_waits,
        )
    )


def _ms(since: float) -> float:
    return (time.perf_counter() - since) * 1000.0
