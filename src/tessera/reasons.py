"""Reasons why a job waits, is refused or can never start: codes, foreign names, sentences."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from tessera.messages import Template, counted, fixed


@dataclass(frozen=True, slots=True)
class _Row:
    """Properties of a reason code.

    Attributes:
        code: part of the API; it never changes.
        slurm: the name that ``tessera slurm squeue`` shows.
        kueue: the name in Kueue; empty if Kueue has none.
        runs: time at which a job with this reason runs.
        meaning: one sentence for the documentation.
        is_final: the job can never start without a change.
        is_gate: the owner can remove the reason by an amendment; other devices do not help.
        only_time_helps: no change of the job removes the reason; the job starts by itself.
    """

    code: str
    slurm: str
    kueue: str
    runs: str
    meaning: str
    is_final: bool = False
    is_gate: bool = False
    only_time_helps: bool = False


class ReasonCode(StrEnum):
    """The public codes."""

    row: _Row

    # A type checker compares calls such as ``ReasonCode("held")`` with this signature.
    def __new__(cls, row: Any) -> Self:
        member = str.__new__(cls, row.code)
        member._value_ = row.code
        member.row = row
        return member

    @staticmethod
    def table() -> str:
        """Render all codes as a table in Markdown, as in ``docs/reasons.md``."""
        lines = ["| code | when it runs | meaning | Slurm | Kueue |", "|---|---|---|---|---|"]
        lines += [
            f"| `{row.code}` | {row.runs} | {row.meaning} | {row.slurm} | {row.kueue or '-'} |"
            for row in (code.row for code in ReasonCode)
        ]
        return "\n".join(lines)

    INVALID_SPEC = _Row(
        "invalid-spec",
        "BadConstraints",
        "Misconfigured",
        "never; correct it",
        "The document is not valid, or its pinned cell was removed.",
        is_final=True,
    )
    UNKNOWN_VC = _Row(
        "unknown-vc",
        "InvalidAccount",
        "Misconfigured",
        "never; correct it",
        "The virtual cluster does not exist, or you may not use it.",
        is_final=True,
    )
    UNKNOWN_TYPE = _Row(
        "unknown-type",
        "BadConstraints",
        "NoMatchingFlavor",
        "never; correct it",
        "The cluster has no devices of that type.",
        is_final=True,
    )
    UNSUPPORTED_FIELD = _Row(
        "unsupported-field",
        "BadConstraints",
        "",
        "never; correct it",
        "A field that is not supported yet.",
    )
    EXCEEDS_VC_MAX = _Row(
        "exceeds-vc-max",
        "AssocMaxGRESPerJob",
        "ExceedsMaxQuota",
        "never; request a quota",
        "More than the virtual cluster guarantees in total.",
        is_final=True,
    )
    EXCEEDS_USER_MAX = _Row(
        "exceeds-user-max",
        "QOSMaxGRESPerUser",
        "ExceedsMaxQuota",
        "never; request a higher cap",
        "More than the cap of the user allows.",
        is_final=True,
    )
    DEADLINE_INFEASIBLE = _Row(
        "deadline-infeasible",
        "DeadLine",
        "",
        "never",
        "It cannot end before its deadline on any devices.",
        is_final=True,
    )
    VC_GUARANTEE_IN_USE = _Row(
        "vc-guarantee-in-use",
        "AssocGrpGRES",
        "WaitingForQuota",
        "later",
        "Jobs of the same virtual cluster use the guarantee.",
    )
    USER_CAP_REACHED = _Row(
        "user-cap-reached",
        "QOSMaxGRESPerUser",
        "",
        "later",
        "The user is at the limit of devices.",
    )
    NO_CELL_OF_LEVEL = _Row(
        "no-cell-of-level",
        "Resources",
        "TopologyPlacementFailed",
        "later",
        "Enough devices are free, but not close together.",
    )
    CELLS_UNHEALTHY = _Row(
        "cells-unhealthy",
        "ReqNodeNotAvail",
        "TopologyPlacementFailed",
        "after repair",
        "The cells that fit are unhealthy, or on cordoned nodes.",
    )
    CPU_OR_MEMORY = _Row(
        "cpu-or-memory",
        "Resources",
        "",
        "never; correct it",
        "It needs more CPUs or memory than its devices include.",
        is_final=True,
    )
    WAITING_FOR_CPUS = _Row(
        "waiting-for-cpus",
        "Resources",
        "WaitingForQuota",
        "later",
        "It has no devices, and the CPUs or the memory that belong to no device are in use.",
    )
    NO_NODE_WITH_CPUS = _Row(
        "no-node-with-cpus",
        "Resources",
        "",
        "never; correct it, or ask an admin",
        "It has no devices, and no node has enough CPUs and memory that belong to no device.",
        is_final=True,
    )
    NO_NODE_WITH_DOCKER = _Row(
        "no-node-with-docker",
        "ReqNodeNotAvail",
        "",
        "never; ask an admin",
        "It has an image, and no node has a container engine.",
        is_final=True,
    )
    NO_NODE_WITH_RDMA = _Row(
        "no-node-with-rdma",
        "ReqNodeNotAvail",
        "",
        "later; or ask an admin",
        "Its container requests InfiniBand devices, and no node with enough free devices has "
        "them.",
    )
    GPU_REQUIREMENT = _Row(
        "gpu-requirement-unmet",
        "ReqNodeNotAvail",
        "",
        "later; or ask an admin",
        "It requires another GPU driver, another version of CUDA or more memory per device than "
        "the nodes with enough free devices have.",
    )
    NODE_NOT_ISOLATED = _Row(
        "node-not-isolated",
        "ReqNodeNotAvail",
        "",
        "later, on a node that no other tenant owns; or ask an admin",
        "It must not share a node with another tenant, or no node has its minimum isolation "
        "level.",
    )
    NODE_DEDICATED = _Row(
        "node-dedicated",
        "ReqNodeNotAvail",
        "",
        "later",
        "The nodes with enough free devices are dedicated to other tenants, or it needs a node "
        "of its tenant alone.",
    )
    STORAGE_NOT_ON_NODES = _Row(
        "storage-not-on-nodes",
        "ReqNodeNotAvail",
        "",
        "when a node has it",
        "A storage of the job is not usable on the nodes, or the job may not use it any more.",
    )
    NO_HOST_FOR_GUEST = _Row(
        "no-host-for-guest",
        "Resources",
        "",
        "later",
        "No device is idle, and no device in use takes the job as a guest.",
    )
    BEHIND_HIGHER_PRIORITY = _Row(
        "behind-higher-priority",
        "Priority",
        "WaitingForQuota",
        "later",
        "Other jobs are ahead of it in the queue.",
    )
    WAITING_VICTIM_CHECKPOINT = _Row(
        "waiting-victim-checkpoint",
        "Resources",
        "WaitingForPreemptedWorkloads",
        "soon",
        "The jobs on its cells are saving their work.",
        only_time_helps=True,
    )
    HELD = _Row(
        "held",
        "JobHeldUser",
        "Suspended",
        "when released",
        "A user or its sweep holds it.",
        is_gate=True,
    )
    HELD_BY_POLICY = _Row(
        "held-by-policy", "JobHeldAdmin", "", "by rule", "The policy assigns no devices to it now."
    )
    NOT_BEFORE = _Row(
        "not-before", "BeginTime", "", "at its time", "It has an earliest start.", is_gate=True
    )
    AFTER_JOB = _Row(
        "after-job", "Dependency", "", "by rule", "It depends on other jobs.", is_gate=True
    )
    RESERVATION = _Row(
        "reservation", "Reservation", "", "by rule", "Cells are reserved for another job."
    )
    OPPORTUNISTIC_NO_IDLE = _Row(
        "opportunistic-no-idle",
        "Resources",
        "WaitingForQuota",
        "best effort",
        "No devices are idle.",
    )
    OPPORTUNISTIC_CAP = _Row(
        "opportunistic-cap",
        "QOSGrpGRES",
        "",
        "later",
        "The virtual cluster is at its limit of borrowed devices.",
    )
    NO_PARALLEL_PLAN = _Row(
        "no-parallel-plan",
        "BadConstraints",
        "Misconfigured",
        "after an amendment, or a new profile",
        "The profile of a hybrid job has no usable parallel plan at its number of devices.",
        is_gate=True,
    )
    BACKOFF_AFTER_FAILURE = _Row(
        "backoff-after-failure",
        "BeginTime",
        "PodsReadyTimeout",
        "at its time",
        "The next attempt is scheduled for later.",
        only_time_helps=True,
    )
    SCHEDULER_NOT_RUNNING = _Row(
        "scheduler-not-running",
        "SchedDown",
        "",
        "when it runs again",
        "No round for 3 intervals.",
        only_time_helps=True,
    )
    WAITING_FOR_ROUND = _Row(
        "waiting-for-round",
        "None",
        "",
        "in seconds",
        "Just submitted or changed; the next round is due.",
        only_time_helps=True,
    )


REASONS: Final[Mapping[str, Template]] = {
    # Parts of sentences.
    "devices": counted("%(n)s device", "%(n)s devices"),
    "instances": counted("%(n)s instance of %(devices)s", "%(n)s instances of %(devices)s"),
    "jobs": counted("job %(shown)s", "jobs %(shown)s"),
    "jobs-and-more": fixed("jobs %(shown)s and %(more)s more"),
    "nodes-and-more": fixed("%(names)s and %(more)s more"),
    "cells-of-level": fixed("%(count)s × %(level)s"),
    "no-cells": fixed("no cells there"),
    "type-in-chain": fixed("%(kind)s in %(chain)s"),
    "the-cluster": fixed("the cluster"),
    "the-virtual-cluster": fixed("virtual cluster %(name)s"),
    "the-pinned-cell": fixed("the pinned cell %(pinned)s"),
    # Closed gates.
    "held": fixed("It is on hold."),
    "turn-of-sweep": counted(
        "The sweep is at its limit: at most %(n)s job runs at a time.",
        "The sweep is at its limit: at most %(n)s jobs run at a time.",
    ),
    "after-failed": fixed("It depends on %(jobs)s, which did not succeed, so it never starts."),
    "after-jobs": fixed("It depends on %(jobs)s."),
    "not-before": fixed("Earliest start: %(not_before)s."),
    "backoff": fixed("Its last attempt failed; the next is due at %(backoff_until)s."),
    # Caps, ports, and earlier jobs of the queue.
    "user-max": counted(
        "%(name)s may use at most %(cap)s device; this job needs %(wanted)s.",
        "%(name)s may use at most %(cap)s devices; this job needs %(wanted)s.",
        by="cap",
    ),
    "user-cap": counted(
        "%(name)s uses %(held)s of at most %(cap)s device; this job needs %(wanted)s more.",
        "%(name)s uses %(held)s of at most %(cap)s devices; this job needs %(wanted)s more.",
        by="cap",
    ),
    "borrow-cap": fixed(
        "%(name)s borrows %(borrowed)s devices and may borrow %(cap)s; this job needs %(wanted)s "
        "more."
    ),
    "no-parallel-plan": fixed(
        "It has no parallel plan: by its profile, no grid fits %(count)s or any other size."
    ),
    "no-parallel-plan-at-size": fixed(
        "It has no parallel plan for %(count)s: by its profile, it can run on %(sizes)s."
    ),
    "ports-in-use": fixed(
        "Jobs ahead of it use the ports: it needs %(wanted)s, and %(free)s are free."
    ),
    "behind-head": fixed("Job %(head)s is ahead of it in %(name)s and does not fit yet."),
    "waits-for-victims": counted(
        "It starts when the job on its cells has saved its work and released them.",
        "It starts when the %(n)s jobs on its cells have saved their work and released them.",
    ),
    "waits-for-leaving": fixed(
        "It starts when the jobs on its cells have saved their work and released them."
    ),
    # Decisions of its policy.
    "policy-gave-away": fixed("The policy has assigned its cells to other jobs in this round."),
    "waits-for-partner": fixed(
        "Its policy runs it on the device of job %(holder)s, once that device can be shared."
    ),
    "policy-gives-nothing": fixed("The policy assigns no devices to it in this round."),
    "policy-refuses": fixed("Its virtual cluster's policy refuses it."),
    "policy-reserves": counted(
        "%(n)s device is reserved for it, starting in about %(minutes)s min.",
        "%(n)s devices are reserved for it, starting in about %(minutes)s min.",
    ),
    "policy-reserves-type": counted(
        "%(n)s device of type %(type)s is reserved for it, starting in about %(minutes)s min.",
        "%(n)s devices of type %(type)s are reserved for it, starting in about %(minutes)s min.",
    ),
    "deadline-infeasible": fixed(
        "Its deadline cannot be met in addition to the deadlines already promised."
    ),
    # Unsuitable nodes.
    "no-container-engine": fixed("It needs an image, and no node has a container engine."),
    "driver-too-low": fixed(
        "It requires GPU driver %(least)s or newer; the newest driver of a node is %(most)s."
    ),
    "cuda-too-low": fixed(
        "It requires CUDA %(least)s or newer; the drivers of the nodes support at most CUDA "
        "%(most)s."
    ),
    "device-memory-too-low": fixed(
        "It requires devices with %(least)g GiB of memory; the nodes have at most %(most)g GiB in "
        "each device."
    ),
    "no-gpu-facts": fixed("It has requirements on GPUs (%(name)s), and no node reports a value."),
    "no-rdma": fixed(
        "Its container requests InfiniBand devices, and no node with enough free devices has them."
    ),
    "no-nvlink": fixed(
        "No node with enough free devices has an NVLink domain of the requested device types."
    ),
    "needs-own-node": fixed(
        "Its container uses the IPC namespace of the node, which needs a node that is dedicated "
        "to its tenant alone."
    ),
    "cpu-or-memory": fixed(
        "Each device includes at most %(cpus)g CPUs and %(gigabytes).0f GB of memory; an "
        "instance of this job needs more than its devices include."
    ),
    "waiting-for-cpus": counted(
        "It needs %(n)s instance of up to %(cpus)g CPUs and %(memory)g GiB that belong to no "
        "device; of the suitable nodes, the best has %(free)g CPUs and %(left)g GiB free.",
        "It needs %(n)s instances of up to %(cpus)g CPUs and %(memory)g GiB that belong to no "
        "device; of the suitable nodes, the best has %(free)g CPUs and %(left)g GiB free.",
    ),
    "no-node-with-cpus": counted(
        "It needs %(n)s instance of up to %(cpus)g CPUs and %(memory)g GiB that belong to no "
        "device; of the suitable nodes, the largest has %(most)g CPUs and %(there)g GiB.",
        "It needs %(n)s instances of up to %(cpus)g CPUs and %(memory)g GiB that belong to no "
        "device; of the suitable nodes, the largest has %(most)g CPUs and %(there)g GiB.",
    ),
    "no-cpu-pool": fixed(
        "It has no devices, and all CPUs and memory of the suitable nodes belong to devices."
    ),
    "no-usable-cpu-pool": fixed(
        "The nodes with CPUs that belong to no device are unhealthy, cordoned or draining."
    ),
    "behind-oldest-cpu-job": fixed(
        "Nodes are reserved for a job without devices that has waited for more than "
        "%(minutes)s min."
    ),
    "after-many-cpu-trials": fixed(
        "This round tried %(n)s other jobs without devices of this tenant, the most in one round."
    ),
    "after-many-cpu-starts": fixed(
        "This round started %(n)s jobs without devices, the maximum of one round."
    ),
    "below-isolation": counted(
        "Jobs of %(name)s run only on nodes of isolation level %(level)s or better, and %(n)s "
        "node has a lower level.",
        "Jobs of %(name)s run only on nodes of isolation level %(level)s or better, and %(n)s "
        "nodes have a lower level.",
    ),
    "nodes-dedicated": counted(
        "%(n)s node is dedicated to other tenants, and no other node has enough free devices.",
        "%(n)s nodes are dedicated to other tenants, and no other node has enough free devices.",
    ),
    "storage-not-allowed": fixed(
        "Storage %(name)s does not exist any more, or jobs of %(vc)s may not use it any more."
    ),
    "storages-missing": counted(
        "%(n)s node does not have all storages of the job (%(names)s), and no other node has "
        "enough free devices.",
        "%(n)s nodes do not have all storages of the job (%(names)s), and no other node "
        "has enough free devices.",
    ),
    "node-of-other-tenant": fixed(
        "The job cannot share a node without isolation: node %(node)s belongs to another tenant."
    ),
    "nodes-of-other-tenants": fixed(
        "The job cannot share a node without isolation: %(n)s nodes belong to other tenants."
    ),
    "nodes-needed-by-guarantees": fixed(
        "The job cannot share a node without isolation, and the guarantees of other tenants "
        "need the free ones."
    ),
    "node-unhealthy": fixed("It would fit if node %(names)s were healthy."),
    "nodes-unhealthy": fixed("It would fit if nodes %(names)s were healthy."),
    "node-excluded": fixed("It would fit if node %(names)s were not excluded for it."),
    "nodes-excluded": fixed("It would fit if nodes %(names)s were not excluded for it."),
    # Final reasons: waiting does not help.
    "no-quota": fixed("Virtual cluster %(vc)s has no cells."),
    "instance-too-large": fixed("One instance needs %(wanted)s; a node has at most %(most)s."),
    "no-such-level": fixed("No suitable chain has the level %(level)s."),
    "job-too-wide": fixed("The job needs %(wanted)s in one %(level)s; the largest has %(most)s."),
    "job-too-large": fixed(
        "The job needs %(wanted)s; %(owner)s has at most %(most)s of one chain."
    ),
    "job-too-large-for-pinned": fixed(
        "The job needs %(wanted)s; %(owner)s has %(most)s in total."
    ),
    "roles-too-large": fixed(
        "Its roles need %(wanted)s of %(kinds)s together; %(owner)s has %(most)s."
    ),
    "roles-need-healthy": fixed(
        "Its roles need %(wanted)s of %(kinds)s together; %(sound)s are healthy."
    ),
    # Devices in use by others.
    "guarantee-apart": fixed(
        "Virtual cluster %(vc)s is guaranteed %(quota)s; %(free)s of its %(total)s are free, "
        "but not together as %(request)s on level %(level)s."
    ),
    "guarantee-in-use": fixed(
        "Virtual cluster %(vc)s is guaranteed %(quota)s; %(used)s of its %(total)s are in use, "
        "and it needs %(request)s."
    ),
    "idle-apart": counted(
        "%(n)s device of %(kind)s is idle, but not as %(request)s on level %(level)s.",
        "%(n)s devices of %(kind)s are idle, but not as %(request)s on level %(level)s.",
    ),
    "none-idle": fixed(
        "No device of %(kind)s is idle, and it needs %(request)s on level %(level)s."
    ),
}


if __name__ == "__main__":
    print(ReasonCode.table())
