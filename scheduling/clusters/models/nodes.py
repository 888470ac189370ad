"""Rows of nodes, their devices and tenancies, and versions of the topology."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from scheduling.core.messages import sentence
from scheduling.core.sharing.hosts import Consent
from scheduling.enums import CanaryState, NodeState, one_of
from tenants.models import Tenant
from tenants.roles import Permission
from tenants.tenancy import TenantManager
from tessera import job_networks
from tessera.isolation import CONTAINER, LEVELS

PLAIN_LEVELS = [level for level in LEVELS if level != CONTAINER]
"""Levels at which jobs without an image run."""
CONSENTS = [consent.value for consent in Consent]


class Node(models.Model):
    """A machine that is reached over SSH.

    ``host_key`` is the pinned public key line; a node with another key is refused. ``contact`` is
    the state that the node service observes (ready, suspect, down). ``held`` is the state that an
    admin set (cordoned, draining). ``jump_host`` (``host``, ``port``, ``user``, ``host_key``,
    ``host_key_fingerprint``) is the host through which the node is reached, with its pinned key;
    empty for a direct connection. Only ``services.node_contact`` and ``services.node_rows``
    derive ``state`` from both. The row of a removed node remains as history; ``last_address``
    (``host:port``) identifies its host.

    ``isolation`` has the results of the isolation probes, and ``isolation_level`` the best level
    for plain jobs; it is empty before the first probe. ``enforces_limits`` is true if the node
    enforces CPU and memory limits, and None before the first probe. ``dedicated_to`` has the IDs
    of the only tenants whose jobs may use the node; an empty list allows all tenants.

    ``visible_paths`` lists the paths that jobs may use besides their own directories: objects with
    ``path``, ``writable`` and ``tenants`` (IDs; empty for all). ``job_network`` selects the
    network of plain jobs of one instance; if it is empty, the configuration file of the node
    applies. ``plain_network`` and ``container_network`` are the networks of such jobs and
    containers; they are empty if unknown. ``has_rdma`` is true if its containers can get
    InfiniBand devices. ``driver_version``, ``cuda_version`` and ``gpu_memory_bytes`` (of the
    smallest GPU) are facts of the last probe, empty or 0 if unknown. ``type_memory`` has the bytes
    of the smallest GPU by device type if the node has GPUs of several types, and
    ``nvlink_types`` the types whose devices are in NVLink domains. ``data_interface`` names the
    network interface for traffic between the members of a gang; if it is empty, the fastest common
    one is used. ``storages`` has the last probe of each source of a storage, by source.
    ``guests`` limits the guests on its devices (``Consent``), whatever their holders allow.
    ``device_cpus`` and ``device_memory_bytes`` are the share of each device; None is an equal part
    of the node. Jobs without devices use what the shares leave.
    """

    name = models.CharField(max_length=63)
    host = models.CharField(max_length=255, blank=True)
    port = models.PositiveIntegerField(default=22)
    user = models.CharField(max_length=64, blank=True)
    host_key = models.TextField(blank=True)
    host_key_fingerprint = models.CharField(max_length=100, blank=True)
    jump_host = models.JSONField(default=dict, blank=True)
    labels = models.JSONField(default=dict, blank=True)
    state = models.CharField(max_length=16, choices=NodeState, default=NodeState.DOWN)
    state_reason = models.CharField(max_length=500, blank=True)
    state_since = models.DateTimeField()
    contact = models.CharField(max_length=16, choices=NodeState, default=NodeState.DOWN)
    contact_reason = models.CharField(max_length=500, blank=True)
    held = models.CharField(max_length=16, choices=NodeState, blank=True, default="")
    held_reason = models.CharField(max_length=500, blank=True)
    inventory = models.JSONField(default=dict, blank=True)
    has_docker = models.BooleanField(default=False)
    has_rdma = models.BooleanField(default=False)
    guests = models.CharField(max_length=16, default=Consent.ANY.value)
    driver_version = models.CharField(max_length=128, blank=True, default="")
    cuda_version = models.CharField(max_length=32, blank=True, default="")
    gpu_memory_bytes = models.BigIntegerField(default=0)
    type_memory = models.JSONField(default=dict, blank=True)
    nvlink_types = models.JSONField(default=list, blank=True)
    data_interface = models.CharField(max_length=15, blank=True, default="")
    isolation = models.JSONField(default=list, blank=True)
    enforces_limits = models.BooleanField(null=True)
    isolation_level = models.CharField(max_length=16, blank=True, default="")
    dedicated_to = models.JSONField(default=list, blank=True)
    visible_paths = models.JSONField(default=list, blank=True)
    job_network = models.CharField(max_length=16, blank=True, default="")
    plain_network = models.CharField(max_length=16, blank=True, default="")
    container_network = models.CharField(max_length=16, blank=True, default="")
    storages = models.JSONField(default=dict, blank=True)
    cpus = models.FloatField(default=0)
    memory_bytes = models.BigIntegerField(default=0)
    device_cpus = models.FloatField(null=True)
    device_memory_bytes = models.BigIntegerField(null=True)
    boot_id = models.CharField(max_length=64, blank=True)
    probed_at = models.DateTimeField(null=True)
    last_contact_at = models.DateTimeField(null=True)
    declared_dead_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    removed_at = models.DateTimeField(null=True)
    last_address = models.CharField(max_length=262, blank=True, default="")
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=one_of("state", NodeState), name="node_state_is_known"
            ),
            models.CheckConstraint(
                condition=Q(contact__in=["ready", "suspect", "down"]), name="node_contact_is_known"
            ),
            models.CheckConstraint(
                condition=Q(held__in=["", "cordoned", "draining"]), name="node_held_is_known"
            ),
            models.CheckConstraint(
                condition=Q(port__gte=1, port__lte=65535), name="node_port_is_in_range"
            ),
            models.CheckConstraint(
                condition=Q(isolation_level__in=["", *PLAIN_LEVELS]),
                name="node_isolation_level_is_known",
            ),
            models.CheckConstraint(condition=Q(guests__in=CONSENTS), name="node_guests_are_known"),
            models.CheckConstraint(
                condition=Q(job_network__in=["", *job_networks.SETTINGS]),
                name="node_job_network_is_known",
            ),
            models.UniqueConstraint(
                fields=["name"], condition=Q(removed_at=None), name="node_one_per_name"
            ),
            models.UniqueConstraint(
                fields=["host", "port"], condition=~Q(host=""), name="node_one_per_address"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Storage(models.Model):
    """A storage that jobs mount by name; ``core.storages.StorageRule`` describes its columns.

    ``tenants``, ``vcs`` and ``defaults`` are lists of IDs. Only storages for checkpoints have no
    mount point.
    """

    name = models.CharField(max_length=40, unique=True)
    source = models.CharField(max_length=1300)
    mount = models.CharField(max_length=1024, blank=True)
    writable = models.BooleanField(default=False)
    checkpoints = models.BooleanField(default=False)
    tenants = models.JSONField(default=list, blank=True)
    vcs = models.JSONField(default=list, blank=True)
    defaults = models.JSONField(default=list, blank=True)
    note = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField()
    version = models.PositiveIntegerField(default=1)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(
                condition=~Q(mount="") | Q(checkpoints=True), name="storage_has_a_mount_point"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class RegistryLogin(models.Model):
    """The login of a tenant at an image registry, for pulls of its jobs' images.

    ``sealed`` is the encrypted password, which nothing returns. A job that names a login of its
    own (``image_secret``) uses that instead.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="registry_logins")
    registry = models.CharField(max_length=255)
    username = models.CharField(max_length=255)
    sealed = models.BinaryField()
    changed_at = models.DateTimeField()

    objects = TenantManager("tenant_id", Permission.MANAGE_HOOKS)

    class Meta:
        ordering = ["tenant_id", "registry"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "registry"], name="registry_login_one_per_registry"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.registry} of tenant {self.tenant_id}"


class NodeTenancy(models.Model):
    """The ownership of a node by one tenant, from ``taken_at`` until an admin resets it.

    The commit of a round creates it with the first job that runs without isolation on the node.
    Every such member refers to the open row. A node has at most one open row, so that it never
    runs jobs of two tenants without isolation. It does not expire, since a job can leave files
    behind.
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="tenancies")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    taken_at = models.DateTimeField()
    taken_by_job_id = models.BigIntegerField(null=True)
    reset_at = models.DateTimeField(null=True)
    reset_reason = models.CharField(max_length=500, blank=True)

    objects = TenantManager("tenant_id")

    class Meta:
        ordering = ["node_id", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["node"], condition=Q(reset_at=None), name="tenancy_one_open_per_node"
            ),
        ]

    def __str__(self) -> str:
        return f"node {self.node_id} of tenant {self.tenant_id}"


class Device(models.Model):
    """A device on a leaf cell: a GPU, or a declared CPU slot.

    ``uuid`` identifies a GPU and never changes in a row. ``index`` is the number of its leaf on
    the node, and ``address`` the address of the leaf in the topology. ``driver_index``,
    ``pci_address``, ``serial``, ``model`` (the reported type) and ``sharing_modes`` are facts of
    the last probe that found it. ``disabled_reason`` is set by an admin, until ``disabled_until``
    or without end, ``fault`` by the last probe, and ``canary`` while the device waits for a canary
    job after a fault, or has failed it; ``set_health`` derives ``healthy`` and ``health_reason``
    from these. ``suspect_since`` is the time since which unusually many jobs of
    several tenants failed on it. ``guests`` limits its guests like ``Node.guests``. The row of a
    device that has left the topology remains as history (``retired_at``).
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="devices")
    index = models.PositiveIntegerField()
    address = models.CharField(max_length=255, unique=True)
    chain = models.CharField(max_length=100)
    device_type = models.CharField(max_length=100)
    uuid = models.CharField(max_length=100, blank=True)
    serial = models.CharField(max_length=64, blank=True, default="")
    pci_address = models.CharField(max_length=32, blank=True, default="")
    driver_index = models.PositiveIntegerField(null=True)
    model = models.CharField(max_length=128, blank=True, default="")
    is_gpu = models.BooleanField(default=False)
    healthy = models.BooleanField(default=True)
    health_reason = models.CharField(max_length=500, blank=True)
    disabled_reason = models.CharField(max_length=500, blank=True, default="")
    disabled_until = models.DateTimeField(null=True)
    fault = models.CharField(max_length=500, blank=True, default="")
    canary = models.CharField(
        max_length=16, blank=True, choices=CanaryState, default="", db_default=""
    )
    suspect_since = models.DateTimeField(null=True)
    cpus = models.FloatField(default=0)
    memory_bytes = models.BigIntegerField(default=0)
    sharing_modes = models.JSONField(default=list, blank=True)
    guests = models.CharField(max_length=16, default=Consent.ANY.value)
    retired_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["node_id", "index"]
        constraints = [
            models.UniqueConstraint(
                fields=["node", "index"],
                condition=Q(retired_at=None),
                name="device_one_per_index",
            ),
            models.UniqueConstraint(
                fields=["node", "uuid"],
                condition=Q(retired_at=None) & ~Q(uuid=""),
                name="device_one_per_uuid",
            ),
            models.CheckConstraint(
                condition=Q(guests__in=CONSENTS), name="device_guests_are_known"
            ),
        ]
        indexes = [
            # Covering index for the check of each submit, which reads thousands of devices.
            models.Index(
                fields=["device_type", "node"],
                condition=Q(retired_at=None),
                name="device_types_by_node",
            ),
        ]

    def __str__(self) -> str:
        return self.address

    def set_health(self) -> None:
        """Derive the health from ``disabled_reason``, ``fault``, ``canary``; does not save."""
        canary = {
            CanaryState.DUE: sentence("device-awaits-canary"),
            CanaryState.FAILED: sentence("device-failed-canary"),
        }
        state = canary[CanaryState(self.canary)] if self.canary else ""
        self.health_reason = self.disabled_reason or self.fault or state
        self.healthy = not self.health_reason


class Topology(models.Model):
    """One version of the physical cluster: cell types and cells, as canonical JSON.

    Versions are appended and never changed. ``version`` is unique, so the second of two editors of
    the same version is refused.
    """

    version = models.PositiveIntegerField()
    spec = models.JSONField()
    reason = models.CharField(max_length=200, blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["version"], name="topology_one_per_version"),
            models.CheckConstraint(
                condition=Q(version__gt=0), name="topology_version_is_positive"
            ),
        ]

    def __str__(self) -> str:
        return f"topology {self.version}"
