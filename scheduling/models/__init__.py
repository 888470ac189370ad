"""Rows of the scheduling room."""

from scheduling.models.attempts import (
    Attempt,
    AttemptProgress,
    AttemptUse,
    Lease,
    Member,
    StepTally,
)
from scheduling.models.estimates import EstimateRecord, StartEstimate
from scheduling.models.import_rules import ImportRule
from scheduling.models.job_limits import JobLimit
from scheduling.models.jobs import Job, JobDependency, JobEvent, JobSecret, SourceArchive
from scheduling.models.nodes import Device, Node, NodeTenancy
from scheduling.models.notices import (
    Delivery,
    DeliveryState,
    GpuHourBudget,
    Notice,
    NotificationPreference,
    QuotaMark,
    Webhook,
)
from scheduling.models.personal import JobTemplate, SavedView, Sweep
from scheduling.models.preemptions import Preemption
from scheduling.models.replays import ShadowDecision, WhatIf
from scheduling.models.rounds import QueueOrder, Round
from scheduling.models.tallies import EvictionTally, WaitTally
from scheduling.models.topology import Topology
from scheduling.models.usage import UsageDay, UsageJob, UsageMark, UsageMonth
from scheduling.models.virtual_clusters import (
    VC_COLUMNS,
    ClusterRules,
    PinnedCell,
    PriorityClass,
    VcLimit,
    VcQuota,
    VcValues,
    VirtualCluster,
)
from scheduling.models.watching import IdleRule, IdleSpell, LogRule, LogRuleHit

__all__ = [
    "VC_COLUMNS",
    "Attempt",
    "AttemptProgress",
    "AttemptUse",
    "ClusterRules",
    "Delivery",
    "DeliveryState",
    "Device",
    "EstimateRecord",
    "EvictionTally",
    "GpuHourBudget",
    "IdleRule",
    "IdleSpell",
    "ImportRule",
    "Job",
    "JobDependency",
    "JobEvent",
    "JobLimit",
    "JobSecret",
    "JobTemplate",
    "Lease",
    "LogRule",
    "LogRuleHit",
    "Member",
    "Node",
    "NodeTenancy",
    "Notice",
    "NotificationPreference",
    "PinnedCell",
    "Preemption",
    "PriorityClass",
    "QueueOrder",
    "QuotaMark",
    "Round",
    "SavedView",
    "ShadowDecision",
    "SourceArchive",
    "StartEstimate",
    "StepTally",
    "Sweep",
    "Topology",
    "UsageDay",
    "UsageJob",
    "UsageMark",
    "UsageMonth",
    "VcLimit",
    "VcQuota",
    "VcValues",
    "VirtualCluster",
    "WaitTally",
    "Webhook",
    "WhatIf",
]
