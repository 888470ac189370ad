"""Reasons why a job waits, is refused or can never start: codes and foreign names."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self


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
    NO_STORAGE = _Row(
        "no-storage",
        "ReqNodeNotAvail",
        "",
        "when it may use it again; or ask an admin",
        "A storage of the job was deleted, or the job may not use it any more.",
    )
    STORAGE_NOT_ON_NODES = _Row(
        "storage-not-on-nodes",
        "ReqNodeNotAvail",
        "",
        "when a node has it",
        "A storage of the job is not usable on the nodes.",
    )
    NO_DEVICE_WITH_SHARING_MODE = _Row(
        "no-device-with-sharing-mode",
        "Resources",
        "",
        "later; or ask an admin",
        "No device is idle, and no device in use of its types has a sharing mode for guests.",
    )
    GUEST_CAP_REACHED = _Row(
        "guest-cap-reached",
        "Resources",
        "",
        "later",
        "No device is idle, and each device that takes the job as a guest has its maximum "
        "number of guests.",
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


if __name__ == "__main__":
    print(ReasonCode.table())
