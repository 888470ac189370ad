"""Reports of nodes as values with their database writes; many share one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Self

from scheduling.clusters.services import node_contact
from scheduling.clusters.services.first_node import create_defaults
from scheduling.clusters.services.storages import record_storages
from scheduling.core.lifecycle import FailureClass
from scheduling.runs.models import Member
from scheduling.runs.services import attempts
from tessera.protocol import ExitRecord, Inventory
from tessera.storage import StorageProbe
from workers.services import disks, telemetry
from workers.services.dispatch import MemberRef
from workers.services.logs import close_logs
from workers.services.shared_devices import keep_shared
from workers.transports.base import DeviceReading, NodeLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A fact from one node about itself or one of its members."""

    order: ClassVar[int] = 0
    """Within a turn, reports with a lower order are written first."""
    is_slow: ClassVar[bool] = False
    """Whether a report may take a large part of a second, and contains nothing about members."""

    node_id: int

    def write(self, now: datetime) -> None:
        """Write the report. Idempotent: repeated or late reports change nothing."""
        self.write_all([self], now)

    @classmethod
    def write_all(cls, news: Sequence[Self], now: datetime) -> None:
        """Write many of one kind; frequent kinds do it in a few statements."""
        for item in news:
            item.write(now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(NodeReport):
    """A run can start."""

    order = 1
    member_id: int

    @classmethod
    def write_all(cls, news: Sequence[Self], now: datetime) -> None:
        """Update the members, and the gangs that are complete."""
        attempts.mark_all_prepared(member_ids=[item.member_id for item in news], now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparing(NodeReport):
    """A node is preparing a run; the message describes the progress."""

    member_id: int
    message: str

    @classmethod
    def write_all(cls, news: Sequence[Self], now: datetime) -> None:
        """Store the newest message of each member."""
        attempts.note_preparing(messages={item.member_id: item.message for item in news})


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareFailed(NodeReport):
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
class Running(NodeReport):
    """The process of a run has started (and may have ended).

    Attributes:
        started_at: on the control plane's clock; None where the node's time is not known.
        isolation: the level at which it runs.
        network: ``own`` or ``shared`` with its node.
        warnings: codes, for instance ``limits-not-enforced``.
    """

    order = 2
    member_id: int
    pid: int | None
    boot_id: str
    started_at: datetime | None = None
    isolation: str = ""
    network: str = ""
    warnings: tuple[str, ...] = ()

    @classmethod
    def write_all(cls, news: Sequence[Self], now: datetime) -> None:
        """Update the members, and the jobs whose members all run."""
        attempts.mark_all_running(
            starts=[
                attempts.ReportedStart(
                    member_id=item.member_id,
                    pid=item.pid,
                    boot_id=item.boot_id[:64],
                    started_at=item.started_at or now,
                    isolation=item.isolation,
                    network=item.network,
                    warnings=item.warnings,
                )
                for item in news
            ],
            now=now,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited(NodeReport):
    """A run has ended, by its exit record.

    Attributes:
        ended_at: on the control plane's clock; None where the node's time is not known.
    """

    order = 3
    member_id: int
    record: ExitRecord
    ended_at: datetime | None = None

    @classmethod
    def write_all(cls, news: Sequence[Self], now: datetime) -> None:
        """Update the members, and their gangs and jobs."""
        first = {item.member_id: item for item in reversed(news)}
        attempts.mark_all_exited(
            records={member_id: item.record for member_id, item in first.items()},
            ended_at={pk: item.ended_at for pk, item in first.items() if item.ended_at},
            now=now,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(NodeReport):
    """A run was removed before its start."""

    order = 3
    member_id: int

    def write(self, now: datetime) -> None:
        """Release the member."""
        attempts.mark_cancelled(member_id=self.member_id, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(NodeReport):
    """A run has certainly ended, with an unknown result."""

    order = 3
    member_id: int
    message: str

    def write(self, now: datetime) -> None:
        """Count the member as lost."""
        attempts.mark_lost(member_id=self.member_id, message=self.message, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverBegan(NodeReport):
    """The node of a member is gone, and the member never got its start directive."""

    order = 3
    member_id: int
    message: str

    def write(self, now: datetime) -> None:
        """Release the member if it has to stop; otherwise end its attempt with a node failure."""
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
class Removed(NodeReport):
    """The node has deleted the directory of a run; the rest of its log is lost."""

    order = 6
    rank: MemberRef
    log_first: int
    log_end: int

    @classmethod
    def write_all(cls, news: Sequence[Self], now: datetime) -> None:
        """Close the logs and note the removal."""
        ends: dict[MemberRef, tuple[int, int]] = {}
        for item in news:
            # A comparison that began before the removal reports it again, without the log's gaps.
            ends.setdefault(item.rank, (item.log_first, item.log_end))
        attempts.mark_removed(member_ids=[rank.member_id for rank in ends], now=now)
        close_logs(ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned(NodeReport):
    """A running job's node has received new training settings."""

    order = 4
    member_id: int
    version: int

    def write(self, now: datetime) -> None:
        """Store the version of its settings."""
        attempts.mark_tuned(member_id=self.member_id, version=self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(NodeReport):
    """The node of a holder has received the guests of its devices."""

    order = 4
    member_id: int
    version: int

    def write(self, now: datetime) -> None:
        """Store the version of its guests."""
        attempts.mark_shared(member_id=self.member_id, version=self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed(NodeReport):
    """The node has confirmed new deadlines for these members."""

    member_ids: Sequence[int]

    @classmethod
    def write_all(cls, news: Sequence[Self], now: datetime) -> None:
        """Store the time, at which the fence starts."""
        member_ids = {member_id for item in news for member_id in item.member_ids}
        attempts.record_renewal(member_ids=sorted(member_ids), now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactLost(NodeReport):
    """The node does not respond."""

    order = 4
    reason: str
    down: bool = False

    def write(self, now: datetime) -> None:
        """Mark the node as suspect or down."""
        node_contact.contact_lost(
            node_id=self.node_id, reason=self.reason, now=now, down=self.down
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContactBack(NodeReport):
    """The node responds."""

    order = 4
    boot_id: str

    @classmethod
    def write_all(cls, news: Sequence[Self], now: datetime) -> None:
        """Mark the nodes as up again."""
        boot_ids = {item.node_id: item.boot_id[:64] for item in news}
        node_contact.contacts_back(boot_ids=boot_ids, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed(NodeReport):
    """The inventory of a node."""

    is_slow = True
    inventory: Inventory

    def write(self, now: datetime) -> None:
        """Store the inventory."""
        node_contact.record_probe(
            node_id=self.node_id,
            inventory=self.inventory.to_json(),
            has_docker=bool(self.inventory.docker_socket),
            cpus=float(self.inventory.cpus),
            memory_bytes=self.inventory.memory_bytes,
            now=now,
        )
        create_defaults(node_id=self.node_id, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragesFound(NodeReport):
    """The probes of storages on a node."""

    probes: Sequence[StorageProbe]

    def write(self, now: datetime) -> None:
        """Store the probes."""
        record_storages(node_id=self.node_id, probes=self.probes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(NodeReport):
    """A minute of telemetry is complete."""

    readings: Sequence[NodeLoad]
    at: datetime

    def write(self, now: datetime) -> None:
        """Store the minute, and check the free space of the node's disk."""
        telemetry.keep_minute(node_id=self.node_id, readings=self.readings, at=self.at)
        disks.look_at_node(node_id=self.node_id, readings=self.readings, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinated(NodeReport):
    """A reading of telemetry contains the state of coordinators of shared devices."""

    devices: Sequence[DeviceReading]

    def write(self, now: datetime) -> None:
        """Store the state at once: pages show it, and rounds choose devices for guests by it."""
        keep_shared(node_id=self.node_id, devices=self.devices, now=now)
