"""The environment of a job: rendezvous, devices, who and where, other systems' names for it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from scheduling.core.jobspec import JobSpec

OPENPAI = "openpai"
# One thread a declared CPU slot keeps neighbours out of each other's way.
_ONE_THREAD: Final = MappingProxyType({"OMP_NUM_THREADS": "1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMember:
    """One rank of the gang, as the others need to know it.

    Attributes:
        rank: within the role; ``node_rank`` through the gang.
        host: address of its node.
        ports: its ports by label.
    """

    role: str
    rank: int
    node_rank: int
    host: str
    devices: tuple[int, ...]
    ports: Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """All that the members of an attempt have in common.

    Attributes:
        port: the rendezvous port.
        members: every rank, in the order of ``node_rank``.
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

    @property
    def master(self) -> GangMember:
        """The rank that the others meet."""
        return self.members[0]

    def of_role(self, role: str) -> list[GangMember]:
        """The ranks of one role, in order."""
        return sorted((m for m in self.members if m.role == role), key=lambda m: m.rank)


def job_environment(gang: Gang, member: GangMember, *, has_gpus: bool) -> dict[str, str]:
    """What a rank finds: our defaults, over them the user's own, over them what is so.

    Args:
        gang: all that the members have in common.
        member: the rank.
        has_gpus: its devices are GPUs.
    """
    defaults = {} if has_gpus else _ONE_THREAD
    platform = {
        **_rendezvous(gang, member),
        **_devices(member, has_gpus=has_gpus),
        **_identity(gang, member),
        **_peers(gang, member),
    }
    compat = gang.spec.compat
    if compat is not None and compat.format == OPENPAI:
        platform |= _openpai(gang, member)
    return {**defaults, **gang.spec.roles[member.role].env, **platform}


def _rendezvous(gang: Gang, member: GangMember) -> dict[str, str]:
    size = str(len(gang.members))
    return {
        "MASTER_ADDR": gang.master.host,
        "MASTER_PORT": str(gang.port),
        "WORLD_SIZE": size,
        "RANK": str(member.node_rank),
        "NNODES": size,
        "NODE_RANK": str(member.node_rank),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }


def _devices(member: GangMember, *, has_gpus: bool) -> dict[str, str]:
    indices = ",".join(str(index) for index in member.devices)
    shared = {
        "TESSERA_JOB_DEVICES": indices,
        "TESSERA_JOB_DEVICE_COUNT": str(len(member.devices)),
    }
    # A declared CPU slot is no GPU.
    return {**shared, "CUDA_VISIBLE_DEVICES": indices if has_gpus else ""}


def _identity(gang: Gang, member: GangMember) -> dict[str, str]:
    return {
        "TESSERA_JOB_ATTEMPT_NUMBER": str(gang.attempt_number),
        "TESSERA_JOB_ROLE_SIZE": str(len(gang.of_role(member.role))),
        "TESSERA_JOB_NODE_RANK": str(member.node_rank),
        "TESSERA_JOB_DEVICES_TOTAL": str(sum(len(m.devices) for m in gang.members)),
        "TESSERA_JOB_VC": gang.virtual_cluster,
        "TESSERA_JOB_TENANT": gang.tenant,
        "TESSERA_JOB_USER": gang.user,
        **_part(gang),
        **_elastic(gang),
    }


def _part(gang: Gang) -> dict[str, str]:
    """Which instance this is of a job that is no gang; ranks of its own begin at 0."""
    part = gang.spec.part
    if part is None:
        return {}
    return {"TESSERA_JOB_PART": str(part.rank), "TESSERA_JOB_PARTS": str(part.size)}


def _elastic(gang: Gang) -> dict[str, str]:
    """The sizes between which the job may come back after a notice, and how it is to train."""
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
        "TOTAL_STEPS": elastic.total_steps,
        "EPOCHS": elastic.epochs,
    }
    return {f"TESSERA_JOB_{name}": str(value) for name, value in said.items() if value is not None}


def _peers(gang: Gang, member: GangMember) -> dict[str, str]:
    hosts = {
        f"TESSERA_JOB_HOSTS_{as_name(role)}": ",".join(m.host for m in gang.of_role(role))
        for role in gang.spec.roles
    }
    ports = {
        f"TESSERA_JOB_PORTS_{as_name(label)}": ",".join(str(port) for port in numbers)
        for label, numbers in member.ports.items()
    }
    return hosts | ports


def _openpai(gang: Gang, member: GangMember) -> dict[str, str]:
    """The variables that OpenPAI documents for protocol version 2, with its names of roles."""
    compat, part = gang.spec.compat, gang.spec.part
    names = dict(compat.role_names) if compat else {}
    first = part.rank if part else 0

    def named(role: str) -> str:
        return names.get(role, role)

    found = {
        "PAI_JOB_NAME": f"{gang.user}~{gang.job_name}",
        "PAI_USER_NAME": gang.user,
        "PAI_VIRTUAL_CLUSTER": gang.virtual_cluster,
        "PAI_TASK_ROLE_COUNT": str(len(gang.spec.roles)),
        "PAI_TASK_ROLE_LIST": ",".join(named(role) for role in gang.spec.roles),
        "PAI_CURRENT_TASK_ROLE_NAME": named(member.role),
        "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": str(first + member.rank),
    }
    for role, spec in gang.spec.roles.items():
        ranks = gang.of_role(role)
        name = as_variable(named(role))
        found[f"PAI_TASK_ROLE_TASK_COUNT_{name}"] = str(part.size if part else len(ranks))
        found[f"PAI_MIN_FAILED_TASK_COUNT_{name}"] = str(spec.completion.min_failed)
        found[f"PAI_MIN_SUCCEEDED_TASK_COUNT_{name}"] = str(spec.completion.min_succeeded)
        megabytes = (spec.memory or 0) >> 20
        # Devices, processors, memory, shared memory: the last is what engines give by default.
        found[f"PAI_RESOURCE_{name}"] = f"{spec.devices},{spec.cpus or 0:g},{megabytes},64"
        for peer in ranks:
            found[f"PAI_HOST_IP_{name}_{first + peer.rank}"] = peer.host
            for label, numbers in peer.ports.items():
                key = f"PAI_PORT_LIST_{name}_{first + peer.rank}_{as_variable(label)}"
                found[key] = ",".join(str(port) for port in numbers)
    return found


def as_name(text: str) -> str:
    """``text`` as the end of one of our variables: capitals, digits, underscores."""
    return as_variable(text).upper()


def as_variable(text: str) -> str:
    """``text`` as a part of a variable's name."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text)
