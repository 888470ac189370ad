"""Settings of ``workers`` as one frozen value; only this module reads Django's settings here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from django.conf import settings

from scheduling.storage.base import FileStorage
from scheduling.storage.config import StorageConfig
from scheduling.storage.opening import open_storage
from tenants.keyring import current_keyring

NODE_LEASE_SECONDS: Final = 12.0
"""Lifetime of a node lease, renewed every 2 s: another host takes over within 15 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of node services. Times are in seconds.

    Attributes:
        data_dir: directory of files that only this host needs.
        storage_config: storage of logs and archives; None for the data directory.
        installation: identifies runs of this installation (``tenants.keyring``).
        ignore_images: run a job without its image if the node has no container engine.
        host_network: a gang of several instances may use the network of its nodes.
        local_images: prefixes of images that did not come from a registry.
        registry_mirrors: mirror of each registry that has one, by host.
        node_lease: lifetime of a node lease without renewal.
        look_every: interval between reads of nodes and leases.
        reap_every: interval between two searches for lost members.
        tick: polling interval without a wake-up.
        run_lease: lifetime of a run without a renewal.
        renew_every: interval between two renewals of all runs of a node; at most 60.
        reconcile_every: interval between two comparisons of rows and run directories.
        probe_every: interval between two probes of a node.
        telemetry_every: interval between two readings of a node's telemetry.
        goodput_every: length of the intervals over which reports are summed up.
        contact_every: interval between two requests that only check that a node responds.
        unreached_after: silence after which the service releases a node for another service.
        first_contact: the same limit for a node that has never responded to this service.
        down_after: silence after which a node is down.
        first_backoff, longest_backoff: pauses between two attempts to connect.
        first_return: pause before the first retry of a released node.
        fence_margin: added to lease and grace period before runs of an unreachable node count as
            gone.
        log_cap_bytes: bytes retained of each member's log.
        transfer_bytes: largest checkpoint that is copied between nodes.
        transfer_seconds: limit of that copy; then the job starts without it.
        archive_bytes: limit of all uploaded archives of a tenant.
        disk_bytes: limit of a job's run directory and checkpoints on a node; 0 for none.
    """

    data_dir: Path
    installation: str
    storage_config: StorageConfig | None = None
    ignore_images: bool = False
    host_network: bool = True
    local_images: tuple[str, ...] = ()
    registry_mirrors: Mapping[str, str] = field(default_factory=dict)
    node_lease: float = NODE_LEASE_SECONDS
    look_every: float = 2.0
    reap_every: float = 5.0
    tick: float = 1.0
    run_lease: float = 1800.0
    renew_every: float = 20.0
    reconcile_every: float = 60.0
    probe_every: float = 60.0
    telemetry_every: float = 15.0
    goodput_every: float = 5.0
    contact_every: float = 3.0
    unreached_after: float = 8.0
    first_contact: float = 10.0
    down_after: float = 60.0
    first_backoff: float = 0.5
    longest_backoff: float = 30.0
    first_return: float = 15.0
    fence_margin: float = 60.0
    log_cap_bytes: int = 64 << 20
    archive_bytes: int = 20 << 30
    disk_bytes: int = 0
    transfer_bytes: int = 100 << 30
    transfer_seconds: float = 1800.0

    @property
    def storage(self) -> FileStorage:
        return open_storage(self.storage_config or StorageConfig(data_dir=self.data_dir))


def worker_settings() -> WorkerSettings:
    environment = settings.TESSERA
    return WorkerSettings(
        data_dir=environment.data_dir,
        storage_config=environment.storage,
        installation=current_keyring().installation,
        ignore_images=environment.images == "ignore",
        host_network=environment.host_network == "gangs",
        local_images=environment.local_images,
        registry_mirrors=environment.registry_mirrors,
        run_lease=environment.lease_seconds,
        log_cap_bytes=environment.log_cap_bytes,
        archive_bytes=environment.archive_bytes,
        disk_bytes=environment.disk_bytes,
        transfer_bytes=settings.CHECKPOINT_TRANSFER_BYTES,
        transfer_seconds=settings.CHECKPOINT_TRANSFER_SECONDS,
    )


def public_key() -> str:
    """Return the public key that nodes authorize; empty before ``set_up``."""
    keys = current_keyring().ssh_keys
    return f"{keys[0].public} tessera" if keys else ""


def client_keys() -> tuple[bytes, ...]:
    """Return the private keys with which nodes are reached, the current one first."""
    return tuple(key.private.encode() for key in current_keyring().ssh_keys)
