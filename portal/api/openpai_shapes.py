"""Response shapes of jobs and virtual clusters in OpenPAI's units (GPUs, processors, MiB)."""

from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from scheduling.clusters.queries.capacities import DeviceCapacity, VcCapacity
from scheduling.core.lifecycle import TERMINAL, FailureClass, JobState
from scheduling.enums import MemberStep
from scheduling.jobs.queries.job_detail import AttemptView, JobDetail, MemberView
from scheduling.jobs.queries.named_jobs import NamedJob

_S = JobState
STATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        _S.QUEUED.value: "WAITING",
        _S.ADMITTED.value: "WAITING",
        _S.STARTING.value: "WAITING",
        _S.RUNNING.value: "RUNNING",
        _S.SUSPECT.value: "RUNNING",
        _S.PREEMPTING.value: "WAITING",
        _S.STOPPING.value: "STOPPING",
        _S.SUCCEEDED.value: "SUCCEEDED",
        _S.FAILED.value: "FAILED",
        _S.STOPPED.value: "STOPPED",
    }
)
"""Job states of Tessera and their OpenPAI names; docs/compatibility.md has the same table."""

_SUB_STATES: Final[Mapping[str, str]] = MappingProxyType(
    {
        _S.QUEUED.value: "AttemptCreationPending",
        _S.ADMITTED.value: "AttemptPreparing",
        _S.STARTING.value: "AttemptPreparing",
        _S.RUNNING.value: "AttemptRunning",
        _S.SUSPECT.value: "AttemptRunning",
        _S.PREEMPTING.value: "AttemptDeleting",
        _S.STOPPING.value: "AttemptDeleting",
    }
)
_STOPPED: Final = frozenset({_S.STOPPING.value, _S.STOPPED.value})
_PLATFORM: Final = frozenset({FailureClass.NODE.value, FailureClass.PLATFORM.value})
_RESOURCE: Final = frozenset({FailureClass.PREEMPTED.value})

LogAddress = Callable[[MemberView, int], str]
"""Function that returns the address of a member's log in the attempt with that number."""


def job_summary(job: NamedJob) -> dict[str, Any]:
    """Return a job in the form of OpenPAI's job list."""
    return {
        "debugId": str(job.id),
        "name": job.name,
        "frameworkName": f"{job.owner}~{job.name}",
        "username": job.owner,
        **_standing(job.state, job.attempts, job.failures),
        "createdTime": milliseconds(job.submitted_at),
        "submissionTime": milliseconds(job.submitted_at),
        "launchedTime": milliseconds(job.first_started_at),
        "completedTime": milliseconds(job.finished_at),
        "appExitCode": job.exit_code,
        "virtualCluster": job.virtual_cluster,
        "totalGpuNumber": job.devices,
        "totalTaskNumber": job.instances,
        "totalTaskRoleNumber": job.roles,
        "jobPriority": job.priority,
    }


def job_document(detail: JobDetail, log_address: LogAddress) -> dict[str, Any]:
    """Return the details of a job with its task roles under their OpenPAI names."""
    row = detail.row
    newest = detail.attempts[-1] if detail.attempts else None
    return {
        "debugId": str(row.id),
        "name": row.name,
        "frameworkName": f"{row.owner}~{row.name}",
        "jobStatus": {
            "username": row.owner,
            **_standing(row.state, row.attempts, detail.failures),
            "createdTime": milliseconds(row.submitted_at),
            "submissionTime": milliseconds(row.submitted_at),
            "launchedTime": milliseconds(detail.first_started_at),
            "completedTime": milliseconds(row.finished_at),
            "appId": str(row.id),
            "appProgress": 1 if row.is_over else 0,
            "appTrackingUrl": "",
            "appLaunchedTime": milliseconds(newest.running_at if newest else None),
            "appCompletedTime": milliseconds(newest.ended_at if newest else None),
            "appExitCode": row.exit_code,
            "appExitSpec": None,
            "appExitDiagnostics": detail.end_message or None,
            "appExitMessages": None,
            "appExitTriggerMessage": detail.end_message or None,
            "appExitTriggerTaskRoleName": None,
            "appExitTriggerTaskIndex": None,
            "appExitType": row.failure_class or None,
            "virtualCluster": row.virtual_cluster,
            "jobPriority": row.priority,
        },
        "taskRoles": _task_roles(detail, newest, log_address),
    }


def milliseconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


def _standing(state: str, attempts: int, failures: Mapping[str, int]) -> dict[str, Any]:
    platform = sum(failures.get(name, 0) for name in _PLATFORM)
    resource = sum(failures.get(name, 0) for name in _RESOURCE)
    return {
        "state": STATES[state],
        "subState": _SUB_STATES.get(state, "Completed"),
        "executionType": "STOP" if state in _STOPPED else "START",
        "retries": max(attempts - 1, 0),
        "retryDetails": {
            "user": sum(failures.values()) - platform - resource,
            "platform": platform,
            "resource": resource,
        },
        "retryDelayTime": None,
    }


def _task_roles(
    detail: JobDetail, newest: AttemptView | None, log_address: LogAddress
) -> dict[str, Any]:
    there = detail.spec.get("compat", {}).get("role_names", {})
    members = {(member.role, member.rank): member for member in (newest.members if newest else ())}
    number = newest.number if newest else 0
    waits = newest is not None and newest.ended_at is not None and detail.row.state not in TERMINAL
    return {
        there.get(role, role): {
            "taskRoleStatus": {"name": there.get(role, role)},
            "taskStatuses": [
                _task(
                    rank,
                    None if waits else members.get((role, rank)),
                    STATES[detail.row.state],
                    lambda member: log_address(member, number),
                )
                for rank in range(int(spec.get("instances", 1)))
            ],
        }
        for role, spec in detail.spec["roles"].items()
    }


def _task(
    index: int, member: MemberView | None, state: str, log: Callable[[MemberView], str]
) -> dict[str, Any]:
    if member is None:
        return {"taskIndex": index, "taskState": state, **_NOT_PLACED}
    return {
        "taskIndex": index,
        "taskState": _task_state(member, state),
        "containerId": str(member.id),
        "containerIp": None,
        "containerNodeName": member.node,
        "containerPorts": {label: ports[0] for label, ports in member.ports.items() if ports},
        "containerGpus": sum(1 << device for device in member.devices),
        "containerLog": log(member),
        "containerExitCode": member.exit_code,
    }


_NOT_PLACED: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "containerId": None,
        "containerIp": None,
        "containerNodeName": None,
        "containerPorts": {},
        "containerGpus": None,
        "containerLog": None,
        "containerExitCode": None,
    }
)


def _task_state(member: MemberView, state: str) -> str:
    if member.step == MemberStep.RUNNING:
        return "STOPPING" if member.stopping else "RUNNING"
    if member.step not in (MemberStep.EXITED, MemberStep.RELEASED):
        return "WAITING"
    if member.exit_code is None or member.stopping:
        return "STOPPED" if state in ("STOPPED", "STOPPING") else state
    return "SUCCEEDED" if member.exit_code == 0 else "FAILED"


def cluster_summary(row: VcCapacity) -> dict[str, Any]:
    return {
        "capacity": row.percent,
        "maxCapacity": row.percent,
        "usedCapacity": row.used_percent,
        "numJobs": row.running_jobs + row.queued_jobs,
        "numActiveJobs": row.running_jobs,
        "numPendingJobs": row.queued_jobs,
        "resourcesUsed": _resources(row.used),
        "resourcesGuaranteed": _resources(row.healthy),
        "resourcesTotal": _resources(row.promised),
        "dedicated": False,
        "status": "RUNNING",
    }


def _resources(amount: DeviceCapacity) -> dict[str, int]:
    found = device_amounts(amount)
    return {**found, "vCores": found["cpu"], "GPUs": found["gpu"]}


def device_amounts(amount: DeviceCapacity) -> dict[str, int]:
    return {
        "gpu": amount.devices,
        "cpu": int(amount.cpus),
        "memory": amount.memory_bytes >> 20,
    }
