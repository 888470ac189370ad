"""The variables that other systems give their jobs, for jobs that were written for those."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from workers.services.gangs import Gang, GangMember, as_variable


def foreign_environment(gang: Gang, member: GangMember, *, has_gpus: bool) -> dict[str, str]:
    """What the job's ``compat.format`` promises; nothing without one.

    Args:
        gang: all that the members have in common.
        member: the rank.
        has_gpus: its devices are GPUs.
    """
    compat = gang.spec.compat
    if compat is None:
        return {}
    return _NAMERS[compat.format](gang, member, has_gpus)


def _openpai(gang: Gang, member: GangMember, _has_gpus: bool) -> dict[str, str]:
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


def _slurm(gang: Gang, member: GangMember, has_gpus: bool) -> dict[str, str]:
    """The variables of a batch script; tasks of one node are told apart by its ``srun``."""
    env = gang.spec.roles[member.role].env
    nodes = len(gang.members)
    per_node = _number(env.get("SLURM_NTASKS_PER_NODE", ""), 1)
    tasks = _number(env.get("SLURM_NTASKS", ""), nodes * per_node)
    hosts = ",".join(peer.host for peer in gang.members)
    job = str(gang.job_id)
    cpus = int(gang.spec.roles[member.role].cpus or 0)
    array = {}
    if "SLURM_ARRAY_TASK_ID" in env:
        array = {"SLURM_ARRAY_JOB_ID": env.get("SLURM_ARRAY_JOB_ID", job)}
    return {
        "SLURM_JOB_ID": job,
        "SLURM_JOBID": job,
        "SLURM_JOB_NAME": gang.job_name,
        "SLURM_JOB_USER": gang.user,
        "SLURM_JOB_ACCOUNT": gang.tenant,
        "SLURM_JOB_PARTITION": gang.virtual_cluster,
        "SLURM_CLUSTER_NAME": "tessera",
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_NODELIST": hosts,
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_NODEID": str(member.node_rank),
        "SLURMD_NODENAME": member.host,
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_NTASKS_PER_NODE": str(per_node),
        "SLURM_TASKS_PER_NODE": f"{per_node}(x{nodes})" if nodes > 1 else str(per_node),
        "SLURM_PROCID": str(member.node_rank * per_node),
        "SLURM_LOCALID": "0",
        "SLURM_RESTART_COUNT": str(max(gang.attempt_number - 1, 0)),
        **({"SLURM_CPUS_ON_NODE": str(cpus)} if cpus else {}),
        **(_slurm_gpus(gang, member) if has_gpus else {}),
        **array,
    }


def _slurm_gpus(gang: Gang, member: GangMember) -> dict[str, str]:
    count = str(len(member.devices))
    return {
        "SLURM_GPUS_ON_NODE": count,
        "SLURM_GPUS_PER_NODE": count,
        "SLURM_GPUS": str(sum(len(peer.devices) for peer in gang.members)),
        "SLURM_JOB_GPUS": ",".join(map(str, member.devices)),
    }


def _dstack(gang: Gang, member: GangMember, _has_gpus: bool) -> dict[str, str]:
    return {
        "DSTACK_RUN_NAME": gang.job_name,
        "DSTACK_NODES_NUM": str(len(gang.members)),
        "DSTACK_NODE_RANK": str(member.node_rank),
        "DSTACK_NODES_IPS": "\n".join(peer.host for peer in gang.members),
        "DSTACK_MASTER_NODE_IP": gang.master.host,
        "DSTACK_GPUS_PER_NODE": str(len(member.devices)),
        "DSTACK_GPUS_NUM": str(sum(len(peer.devices) for peer in gang.members)),
    }


def _skypilot(gang: Gang, member: GangMember, _has_gpus: bool) -> dict[str, str]:
    hosts = "\n".join(peer.host for peer in gang.members)
    rank, gpus = str(member.node_rank), str(len(member.devices))
    return {
        "SKYPILOT_NUM_NODES": str(len(gang.members)),
        "SKYPILOT_NODE_RANK": rank,
        "SKYPILOT_NODE_IPS": hosts,
        "SKYPILOT_NUM_GPUS_PER_NODE": gpus,
        "SKYPILOT_SETUP_NODE_RANK": rank,
        "SKYPILOT_SETUP_NODE_IPS": hosts,
        "SKYPILOT_SETUP_NUM_GPUS_PER_NODE": gpus,
        # The same for all attempts, as managed jobs have it.
        "SKYPILOT_TASK_ID": f"tessera-{gang.job_id}_{as_variable(gang.job_name)}",
        "SKYPILOT_USER": gang.user,
    }


def _number(text: str, otherwise: int) -> int:
    """A whole number above 0 that a person wrote, or ``otherwise``."""
    is_number = text.isascii() and text.isdecimal() and len(text) < 7 and int(text) > 0
    return int(text) if is_number else otherwise


_NAMERS: Final[Mapping[str, Callable[[Gang, GangMember, bool], dict[str, str]]]] = (
    MappingProxyType(
        {"openpai": _openpai, "slurm": _slurm, "dstack": _dstack, "skypilot": _skypilot}
    )
)
