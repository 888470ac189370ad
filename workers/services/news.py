"""What nodes have told, as values that know how to be written; many share one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from scheduling.core.lifecycle import FailureClass
from scheduling.models import Member
from scheduling.services import attempts, node_contact
from tessera.protocol import ExitRecord, Inventory
from workers.services import goodput, telemetry
from workers.services.dispatch import Rank
from workers.services.log_rows import keep_log
from workers.services.reports import Progress
from workers.transports.base import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """Something about one node or one of its members."""

    node_id: int

    def write(self, now: datetime) -> None:
        """Write it. Idempotent: news that come twice or too late change nothing."""
        raise TypeError(f"{type(self).__name__} says nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(News):
    """A run can start."""

    member_id: int

    def write(self, now: datetime) -> None:
        """Move the member, and the gang when it is complete."""
        attempts.mark_prepared(member_id=self.member_id, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareFailed(News):
    """A run cannot start on this node."""

    member_id: int
    failure_class: str
    code: str
    message: str

    def write(self, now: datetime) -> None:
        """End the attempt with this failure."""
        attempts.mark_prepare_failed(
            member_id=self.member_id,
            failure=FailureClass(self.failure_class),
            code=self.code,
            message=self.message,
            now=now,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Running(News):
    """A run's process runs (or has run already)."""

    member_id: int
    pid: int | None
    boot_id: str
    started_at: float | None

    def write(self, now: datetime) -> None:
        """Move the member, and the job when all its members run."""
        attempts.mark_running(
            member_id=self.member_id,
            pid=self.pid,
            boot_id=self.boot_id[:64],
            started_at=_not_after(self.started_at, now),
            now=now,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited(News):
    """A run has ended, as its exit record says."""

    member_id: int
    record: ExitRecord

    def write(self, now: datetime) -> None:
        """Move the member and all that follows from it."""
        attempts.mark_exited(member_id=self.member_id, record=self.record, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(News):
    """A run that had not started is gone."""

    member_id: int

    def write(self, now: datetime) -> None:
        """Release the member."""
        attempts.mark_cancelled(member_id=self.member_id, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(News):
    """A run is proved gone, and nobody knows how it ended."""

    member_id: int
    message: str

    def write(self, now: datetime) -> None:
        """Count the member as lost."""
        attempts.mark_lost(member_id=self.member_id, message=self.message, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverBegan(News):
    """A member that was never told to start, on a node that is gone."""

    member_id: int
    message: str

    def write(self, now: datetime) -> None:
        """Release it if it is asked to leave; otherwise its attempt ends for the node's sake."""
        if Member.objects.filter(pk=self.member_id, stop_asked_at__isnull=False).exists():
            attempts.mark_cancelled(member_id=self.member_id, now=now)
            return
        attempts.mark_preparing(member_ids=[self.member_id], now=now)
        attempts.mark_prepare_failed(
            member_id=self.member_id,
            failure=FailureClass.NODE,
            code="node-gone",
            message=self.message,
            now=now,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed(News):
    """A run's directory is gone from its node; its log is here as far as it was kept."""

    rank: Rank
    log_first: int
    log_end: int

    def write(self, now: datetime) -> None:
        """Close the log and forget the directory."""
        attempts.mark_removed(member_ids=[self.rank.member_id], now=now)
        keep_log(self.rank, first=self.log_first, end=self.log_end, closed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed(News):
    """The node has confirmed new deadlines for these members."""

    member_ids: Sequence[int]

    def write(self, now: datetime) -> None:
        """Note when; the fence counts from there."""
        attempts.record_renewal(member_ids=list(self.member_ids), now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKept(News):
    """A log has been fetched up to ``end``."""

    rank: Rank
    first: int
    end: int

    def write(self, now: datetime) -> None:
        """Note how far."""
        keep_log(self.rank, first=self.first, end=self.end, closed=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed(News):
    """A rank has reported progress."""

    rank: Rank
    progress: Progress
    at: datetime

    def write(self, now: datetime) -> None:
        """Add it to the attempt's sample."""
        goodput.add_progress(rank=self.rank, progress=self.progress, at=self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactLost(News):
    """The node does not answer."""

    reason: str
    down: bool = False

    def write(self, now: datetime) -> None:
        """Suspect it, or count it out."""
        node_contact.contact_lost(
            node_id=self.node_id, reason=self.reason, now=now, down=self.down
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactBack(News):
    """The node answers."""

    boot_id: str

    def write(self, now: datetime) -> None:
        """Count on it again."""
        node_contact.contact_back(node_id=self.node_id, boot_id=self.boot_id[:64], now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed(News):
    """What the node says it has."""

    inventory: Inventory

    def write(self, now: datetime) -> None:
        """Keep it."""
        node_contact.record_probe(
            node_id=self.node_id,
            inventory=self.inventory.to_json(),
            has_docker=bool(self.inventory.docker_socket),
            cpus=float(self.inventory.cpus),
            memory_bytes=self.inventory.memory_bytes,
            now=now,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(News):
    """A minute of telemetry is complete."""

    readings: Sequence[Telemetry]
    at: datetime

    def write(self, now: datetime) -> None:
        """Keep the minute."""
        telemetry.keep_minute(node_id=self.node_id, readings=self.readings, at=self.at)


def _not_after(seconds: float | None, now: datetime) -> datetime:
    """A node's clock may be wrong; nothing has started in the future."""
    if seconds is None:
        return now
    try:
        return min(datetime.fromtimestamp(seconds, UTC), now)
    except (OverflowError, ValueError, OSError):
        return now
