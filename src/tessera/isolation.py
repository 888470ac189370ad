"""Isolation of jobs on a node: levels, results of probes, warnings, and visible paths.

Part of the bundle for nodes: Python 3.8, standard library only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Dict, Iterable, List, Optional, Tuple

from tessera.wire import Fields, Json

NONE, NAMESPACE, USER, CONTAINER = "none", "namespace", "user", "container"
LEVELS = (NONE, NAMESPACE, USER, CONTAINER)
"""All levels, from the weakest to the strongest."""
PLAIN_LEVELS = (NONE, NAMESPACE, USER)
"""The levels of jobs without an image."""

OWN_NETWORK, SHARED_NETWORK = "own", "shared"
NETWORKS = (OWN_NETWORK, SHARED_NETWORK)

# Codes of failed starts and of warnings
NOT_AVAILABLE = "isolation-not-available"
NOT_ISOLATED = "not-isolated"
NETWORK_SHARED = "network-shared"
NETWORK_ISOLATED = "network-isolated"
LIMITS_NOT_ENFORCED = "limits-not-enforced"
RUN_WARNINGS: Dict[str, str] = {
    NOT_ISOLATED: "Not isolated from other jobs on its node",
    LIMITS_NOT_ENFORCED: "CPU and memory limits are not enforced",
    NETWORK_SHARED: "Network shared with its node",
    NETWORK_ISOLATED: "No external network connection",
}
"""Texts of warnings by code; other codes are shown unchanged."""

# Causes for which a level is not available; REMEDIES has the text for people
NOT_TRIED = "not-tried"
DECLARATION_MALFORMED = "declaration-malformed"
TURNED_OFF = "turned-off"
NO_CONTAINER_ENGINE = "no-container-engine"
NO_GPUS_IN_CONTAINERS = "no-gpus-in-containers"
NO_ROOT = "no-root-and-no-sudo-rule"
HELPER_UNSAFE = "helper-not-protected"
HELPER_DIFFERS = "helper-of-another-version"
HELPER_FAILED = "helper-failed"
APPARMOR = "userns-restricted-by-apparmor"
USERNS_DISABLED = "userns-disabled"
USERNS_LIMIT = "userns-limit-is-zero"
SECCOMP = "seccomp"
NOT_SUPPORTED = "not-supported-by-kernel"
MOUNT_REFUSED = "mount-refused"
TRIAL_FAILED = "trial-failed"
REMEDIES: Dict[str, str] = {
    NOT_TRIED: "Probe the node again.",
    DECLARATION_MALFORMED: (
        "Correct or remove the file ~/.tessera/isolation.json on the node; the detail names the"
        " field. Until then the node runs no job without an image."
    ),
    TURNED_OFF: "Remove the file ~/.tessera/isolation.json on the node, or raise its level.",
    NO_CONTAINER_ENGINE: "Install Docker or Podman, preferably rootless, for the node's user.",
    NO_GPUS_IN_CONTAINERS: (
        "Install the NVIDIA Container Toolkit on the node, configure the engine for it"
        " (`nvidia-ctk runtime configure`, or `nvidia-ctk cdi generate` for CDI), restart the"
        " engine, and probe the node again."
    ),
    NO_ROOT: (
        "Connect as root, or install the helper and its sudo rule on the node: the command"
        " `tessera node helper` writes the helper and prints the rule. Without them, namespace is"
        " the best level for jobs without an image."
    ),
    HELPER_UNSAFE: (
        "Make root the owner of /usr/local/lib/tessera/helper.pyz and of all directories above "
        "it, and let only root write to them. Until then, the sudo rule gives its account root "
        "access."
    ),
    HELPER_DIFFERS: (
        "Install the helper of this version: write it with the command `tessera node helper`,"
        " and replace /usr/local/lib/tessera/helper.pyz on the node."
    ),
    HELPER_FAILED: (
        "Read the detail: correct /etc/tessera/helper.json on the node, or let the sudo rule name"
        " the account that Tessera uses."
    ),
    APPARMOR: (
        "Install the AppArmor profile deploy/apparmor/tessera-node, or set the sysctl"
        " kernel.apparmor_restrict_unprivileged_userns=0."
    ),
    USERNS_DISABLED: "Set the sysctl kernel.unprivileged_userns_clone=1.",
    USERNS_LIMIT: "Set the sysctl user.max_user_namespaces to 10000 or more.",
    SECCOMP: (
        "Allow the system calls unshare, mount and pivot_root in the seccomp profile of the"
        " container in which the node runs."
    ),
    NOT_SUPPORTED: "Use a kernel with user namespaces (CONFIG_USER_NS=y).",
    MOUNT_REFUSED: (
        "Run the node outside of a container, or in one that leaves /proc unmasked"
        " (Docker: --security-opt systempaths=unconfined)."
    ),
    TRIAL_FAILED: "Read the detail, repair the node, and probe it again.",
}
CAUSES = tuple(REMEDIES)

SHARED_UID = 70_999
"""The user of jobs on a node whose runner is root, for tenants without a Unix user."""
RESERVED_UIDS = {65_534: "nobody", SHARED_UID: "jobs of tenants without a user id"}
"""Reserved user ids, which tenants cannot have, and their purpose."""
MOST_PROCESSES = 16_384
"""Limit of processes and threads of a job, unless the node declares another."""

MAX_VISIBLE_PATHS = 256
MAX_PATH_BYTES = 1024
MAX_REAL_PATH_BYTES = 4096
MAX_BINDS = 4096
_OF_EVERY_JOB = ("/proc", "/dev", "/sys", "/run", "/var/run")
"""Directories that each job has separately; paths below them may be devices or sockets of
services."""


def at_least(level: str, least: str) -> bool:
    """Return whether a level isolates as well as another one.

    Raises:
        ValueError: one of the two is not a valid level.
    """
    return LEVELS.index(level) >= LEVELS.index(least)


def remedy(cause: str) -> str:
    return REMEDIES.get(cause, "")


@dataclass(frozen=True)
class IsolationProbe:
    """The outcome of probing one level on a node.

    Attributes:
        level: one of ``LEVELS``.
        available: a job can run at this level.
        cause: one of ``CAUSES``; empty when the level is available.
        detail: the trial and its failure, for people.
    """

    level: str
    available: bool
    cause: str = ""
    detail: str = ""

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> IsolationProbe:
        """Read and check an outcome; unknown fields are ignored.

        Raises:
            ProtocolError: a field is of a wrong type, or the level is unknown.
        """
        take = Fields(data, "isolation")
        return cls(
            level=take.choice("level", None, LEVELS),
            available=take.boolean("available", default=False),
            cause=take.text("cause", "", 64),
            detail=take.text("detail", "", 1000),
        )


@dataclass(frozen=True)
class VisiblePath:
    """A directory or file of the node that a job may see.

    Attributes:
        path: absolute and normalised, at most 1,024 bytes.
        writable: the job may also write to it, as far as the file permissions allow.
        checkpoints: jobs do not see the directory; a job that names it as its
            ``checkpoint_dir`` gets its own directory in it.
    """

    path: str
    writable: bool = False
    checkpoints: bool = False

    def to_json(self) -> Json:
        data: Json = {"path": self.path, "writable": self.writable}
        if self.checkpoints:  # earlier versions reject the field
            data["checkpoints"] = True
        return data

    @classmethod
    def from_json(cls, data: object) -> VisiblePath:
        """Read and check a path.

        Raises:
            ProtocolError: a field is missing, unknown or of a wrong type, or the path cannot
                be shown to jobs.
        """
        take = Fields(data, "visible_path")
        found = cls(
            path=take.text("path", None, MAX_PATH_BYTES),
            writable=take.boolean("writable", default=False),
            checkpoints=take.boolean("checkpoints", default=False),
        )
        problem = path_problem(found.path)
        if problem is not None:
            raise take.refuse("path", problem)
        if found.writable and found.checkpoints:
            raise take.refuse("checkpoints", "must be false if writable is true")
        take.finish()
        return found


@dataclass(frozen=True)
class ContainerView:
    """The part of its node that a container sees, with existing paths.

    Attributes:
        binds: (path on the node, place in the container, writable), with those of the run's empty
            directories that cover hidden paths.
        checkpoints: the job's directory for checkpoints on the node.
        processes: maximum number of processes and threads of the container.
        devices: device files of its GPUs, if the engine has no other way to give them.
        groups: further groups of its processes, which may open these files.
        libraries: paths of the driver that it sees, read-only.
    """

    checkpoints: str
    binds: List[Tuple[str, str, bool]] = field(default_factory=list)
    processes: int = MOST_PROCESSES
    devices: List[str] = field(default_factory=list)
    groups: List[int] = field(default_factory=list)
    libraries: List[str] = field(default_factory=list)

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> ContainerView:
        """Read and check a view; unknown fields are ignored.

        Raises:
            ProtocolError: a field is missing or of a wrong type.
        """
        take = Fields(data, "view")
        return cls(
            checkpoints=take.text("checkpoints", None, MAX_REAL_PATH_BYTES),
            binds=[_bind(take, item) for item in take.items("binds", MAX_BINDS)],
            processes=take.integer("processes", MOST_PROCESSES, 1, 1 << 30),
            devices=take.texts("devices", MAX_BINDS, 255),
            groups=take.integers("groups", 0, 1 << 32),
            libraries=take.texts("libraries", MAX_BINDS, 255),
        )


def _bind(take: Fields, item: object) -> Tuple[str, str, bool]:
    if isinstance(item, list) and len(item) == 3:
        source, target, writable = item
        if isinstance(source, str) and isinstance(target, str) and isinstance(writable, bool):
            return source, target, writable
    raise take.refuse("binds", "must be lists of two paths and whether jobs may write")


def is_within(path: str, place: str) -> bool:
    """Return whether a path equals a directory or is below it, by their texts."""
    return f"{path}/".startswith(f"{place.rstrip('/')}/")


def path_problem(path: str) -> Optional[str]:
    """Return the reason why a path cannot be shown to jobs, or None."""
    if not path.startswith("/"):
        return "must be an absolute path"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        return "must not contain control characters"
    if any(part in ("", ".", "..") for part in path.split("/")[1:]):
        return "must name something below the root, without empty parts, '.' or '..'"
    if any(is_within(path, place) for place in _OF_EVERY_JOB):
        return "must not lie in /proc, /dev, /sys or /run"
    return None


def best_available(probes: Iterable[IsolationProbe], *, of: Tuple[str, ...] = LEVELS) -> str:
    """Return the strongest available level among some levels, or ``none``.

    Args:
        probes: probes of one node.
        of: the eligible levels; for plain jobs without ``container``.
    """
    found = {probe.level for probe in probes if probe.available}
    return next((level for level in reversed(LEVELS) if level in found and level in of), NONE)
