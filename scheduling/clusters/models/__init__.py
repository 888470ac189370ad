"""Rows of clusters."""

from scheduling.clusters.models.import_rules import ImportRule
from scheduling.clusters.models.nodes import Device, Node, NodeTenancy
from scheduling.clusters.models.topology import Topology
from scheduling.clusters.models.virtual_clusters import (
    VC_COLUMNS,
    ClusterRules,
    PinnedCell,
    PriorityClass,
    VcLimit,
    VcQuota,
    VcValues,
    VirtualCluster,
)

__all__ = [
    "VC_COLUMNS",
    "ClusterRules",
    "Device",
    "ImportRule",
    "Node",
    "NodeTenancy",
    "PinnedCell",
    "PriorityClass",
    "Topology",
    "VcLimit",
    "VcQuota",
    "VcValues",
    "VirtualCluster",
]
