"""Environment variables of a job: rendezvous, devices, identity, names of other systems."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from scheduling.compat.formats import foreign_variables
from scheduling.compat.importer import as_variable
from scheduling.core.jobspec import JobSpec, ProfileUse
from tessera.hardware import ASCEND, NVIDIA
from tessera.inventory import BY_DEVICE_REQUEST

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMember:
    """Address and ports of one rank of the gang.

    Attributes:
        rank: within the role; ``node_rank`` through the gang.
        host: address for the other ranks.
        ports: ports of the member by label.
        processes: processes with an own rank that run its command.
        node_host: address of its node; empty if equal to ``host``.
        interface: network interface of its node for traffic of the gang; empty if not chosen.
        adapters: active InfiniBand adapters of its node, if the gang is on several nodes.
    """

    role: str
    rank: int
    node_rank: int
    host: str
    devices: tuple[int, ...]
    ports: Mapping[str, Sequence[int]]
    processes: int = 1
    node_host: str = ""
    interface: str = ""
    adapters: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptGang:
    """Common data of the members of an attempt.

    Attributes:
        port: the rendezvous port.
        members: every rank, in the order of ``node_rank``.
        layout: logical workers of each process, by member; None without a layout.
        plan: document of the parallel plan; None without one.
    """

    spec: JobSpec
    job_id: int
    job_name: str
    attempt_number: int
    tenant: str
    virtual_cluster: str
    user: str
    port: int
    members: tuple[GangMember, ...]
    layout: Sequence[Sequence[int]] | None = None
    plan: Mapping[str, Any] | None = None

    def alone(self) -> "AttemptGang":
        """Build the gang of one rank in its own network; its address is the loopback address."""
        (member,) = self.members
        inside = replace(member, host=LOOPBACK, node_host=member.host)
        return replace(self, members=(inside,))

    @property
    def master(self) -> GangMember:
        """The rank that hosts the rendezvous."""
        return self.members[0]

    def of_role(self, role: str) -> list[GangMember]:
        """Return the ranks of one role, in order."""
        return sorted((m for m in self.members if m.role == role), key=lambda m: m.rank)


def as_name(text: str) -> str:
    """Return ``text`` as suffix of a variable name: capitals, digits, underscores."""
    return as_variable(text).upper()


__all__ = ("AttemptGang", "GangMember", "job_environment")

# One thread for each declared CPU slot and each process of several, so that neighbours do not
# compete; torchrun does so as well.
_ONE_THREAD: Final = MappingProxyType({"OMP_NUM_THREADS": "1"})


def job_environment(
    gang: AttemptGang,
    member: GangMember,
    gpus: Sequence[str] = (),
    *,
    gpu_access: str = "",
    vendor: str = NVIDIA,
) -> dict[str, str]:
    """Return a rank's variables: defaults, user variables and facts, in ascending precedence.

    Args:
        gang: common data of the members.
        member: the rank.
        gpus: UUIDs of its GPUs, or their indices where there are no UUIDs; empty if its devices
            are no GPUs.
        gpu_access: how the engine gives GPUs to its container, one of ``GPU_ACCESSES``; empty for
            a plain process.
        vendor: of the node's GPUs.
    """
    has_neighbours = not gpus or member.processes > 1
    defaults = {**(_ONE_THREAD if has_neighbours else {}), **_libraries(member)}
    platform = {
        **_rendezvous(gang, member),
        **_devices(member),
        **_visible(gpus, gpu_access, vendor),
        **_identity(gang, member),
        **_peers(gang, member),
        **foreign_variables(gang, member, has_gpus=bool(gpus)),
    }
    return {**defaults, **gang.spec.roles[member.role].env, **platform}


def _libraries(member: GangMember) -> dict[str, str]:
    """Return the network of the gang for communication libraries, which would guess otherwise."""
    found = {}
    if member.interface:
        # NCCL reads a name without "=" as a prefix.
        found["NCCL_SOCKET_IFNAME"] = f"={member.interface}"
        found["GLOO_SOCKET_IFNAME"] = found["TP_SOCKET_IFNAME"] = member.interface
    if member.adapters:
        found["NCCL_IB_HCA"] = f"={','.join(member.adapters)}"
    return found


def _rendezvous(gang: AttemptGang, member: GangMember) -> dict[str, str]:
    """Return the variables of the first process of a member, as torchrun sets them."""
    before = sum(m.processes for m in gang.members[: member.node_rank])
    return {
        "MASTER_ADDR": gang.master.host,
        "MASTER_PORT": str(gang.port),
        "WORLD_SIZE": str(sum(m.processes for m in gang.members)),
        "RANK": str(before),
        "NNODES": str(len(gang.members)),
        "NODE_RANK": str(member.node_rank),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": str(member.processes),
    }


def _devices(member: GangMember) -> dict[str, str]:
    return {
        "TESSERA_JOB_DEVICES": ",".join(str(index) for index in member.devices),
        "TESSERA_JOB_DEVICE_COUNT": str(len(member.devices)),
    }


def _visible(gpus: Sequence[str], gpu_access: str, vendor: str) -> dict[str, str]:
    """Return the variables by which the libraries of the vendor find the GPUs of a member."""
    nvidia = () if vendor != NVIDIA else gpus
    found = _gpus_in_container(nvidia, gpu_access) if gpu_access else _gpus_of_process(nvidia)
    if vendor == NVIDIA:
        return found
    inside = ",".join(str(number) for number in range(len(gpus)))
    if vendor == ASCEND:
        ids = {"ASCEND_RT_VISIBLE_DEVICES": inside if gpu_access else ",".join(gpus)}
        return {**found, **ids, **({"ASCEND_VISIBLE_DEVICES": "void"} if gpu_access else {})}
    if gpus:
        del found["CUDA_VISIBLE_DEVICES"]  # HIP reads it too
    if gpu_access:
        return {**found, "AMD_VISIBLE_DEVICES": "none", "HIP_VISIBLE_DEVICES": inside}
    # HIP counts within the GPUs that ROCR, the layer below, shows.
    return {**found, "ROCR_VISIBLE_DEVICES": ",".join(gpus), "HIP_VISIBLE_DEVICES": inside}


def _gpus_of_process(gpus: Sequence[str]) -> dict[str, str]:
    """Return the variables by which CUDA of a plain process finds its GPUs, and only those."""
    if not gpus:
        return {"CUDA_VISIBLE_DEVICES": ""}
    # By default, CUDA orders GPUs by speed, so its numbers differ from those of the driver.
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _gpus_in_container(gpus: Sequence[str], gpu_access: str) -> dict[str, str]:
    """Return the variables for a container, in which the GPUs have the numbers 0 to n - 1.

    ``NVIDIA_VISIBLE_DEVICES`` is always set: many images set it to ``all``, and NVIDIA's runtime
    would then add every GPU of the node.
    """
    by_request = gpus and gpu_access == BY_DEVICE_REQUEST
    visible = {"NVIDIA_VISIBLE_DEVICES": ",".join(gpus) if by_request else "void"}
    if not gpus:
        return {**visible, "CUDA_VISIBLE_DEVICES": ""}
    return {**visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _identity(gang: AttemptGang, member: GangMember) -> dict[str, str]:
    return {
        "TESSERA_JOB_ATTEMPT_NUMBER": str(gang.attempt_number),
        "TESSERA_JOB_ROLE_SIZE": str(len(gang.of_role(member.role))),
        "TESSERA_JOB_NODE_RANK": str(member.node_rank),
        "TESSERA_JOB_NODE_HOST": member.node_host or member.host,
        "TESSERA_JOB_DEVICES_TOTAL": str(sum(len(m.devices) for m in gang.members)),
        "TESSERA_JOB_VC": gang.virtual_cluster,
        "TESSERA_JOB_TENANT": gang.tenant,
        "TESSERA_JOB_USER": gang.user,
        **_part(gang),
        **_elastic(gang),
        **_parallel(gang),
    }


def _part(gang: AttemptGang) -> dict[str, str]:
    """Return the instance index of a job without a gang; its ranks begin at 0."""
    part = gang.spec.part
    if part is None:
        return {}
    return {"TESSERA_JOB_PART": str(part.rank), "TESSERA_JOB_PARTS": str(part.size)}


def _elastic(gang: AttemptGang) -> dict[str, str]:
    """Return the allowed sizes after a notice, and the training settings."""
    elastic = gang.spec.elastic
    if elastic is None:
        return {}
    asked = sum(role.instances * role.devices for role in gang.spec.roles.values())
    least, most = elastic.bounds(asked)
    said = {
        "DEVICES_MIN": least,
        "DEVICES_MAX": most,
        "ELASTIC_MODE": elastic.mode.value,
        "LOGICAL_WORKERS": elastic.logical_workers,
        "DETERMINISM": elastic.determinism,
        "INITIAL_BATCH": elastic.initial_batch,
        "MAX_BATCH": elastic.max_batch,
        "MAX_LOCAL_BATCH": elastic.max_local_batch,
        "PROFILE": elastic.profile.value if elastic.profile is ProfileUse.ONLY else None,
        "TOTAL_STEPS": elastic.total_steps,
        "EPOCHS": elastic.epochs,
        "LAYOUT": json.dumps(gang.layout, separators=(",", ":")) if gang.layout else None,
    }
    return {f"TESSERA_JOB_{name}": str(value) for name, value in said.items() if value is not None}


def _parallel(gang: AttemptGang) -> dict[str, str]:
    """Return the parallel plan, and the declarations that the training uses without one."""
    parallel = gang.spec.parallel
    if parallel is None:
        return {}
    said = {
        "PLAN": json.dumps(gang.plan, separators=(",", ":")) if gang.plan else None,
        "PARALLEL": json.dumps(parallel.to_json(), separators=(",", ":")),
    }
    return {f"TESSERA_JOB_{name}": value for name, value in said.items() if value is not None}


def _peers(gang: AttemptGang, member: GangMember) -> dict[str, str]:
    hosts = {
        f"TESSERA_JOB_HOSTS_{as_name(role)}": ",".join(m.host for m in gang.of_role(role))
        for role in gang.spec.roles
    }
    ports = {
        f"TESSERA_JOB_PORTS_{as_name(label)}": ",".join(str(port) for port in numbers)
        for label, numbers in member.ports.items()
    }
    return hosts | ports
