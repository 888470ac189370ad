"""Rows of nodes, topology and virtual clusters."""

from scheduling.clusters.models.device_types import DeviceAlias
from scheduling.clusters.models.nodes import (
    Device,
    Node,
    NodeTenancy,
    RegistryLogin,
    Storage,
    Topology,
)
from scheduling.clusters.models.virtual_clusters import (
    VC_COLUMNS,
    ClusterRules,
    ImportRule,
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
    "DeviceAlias",
    "ImportRule",
    "Node",
    "NodeTenancy",
    "PinnedCell",
    "PriorityClass",
    "RegistryLogin",
    "Storage",
    "Topology",
    "VcLimit",
    "VcQuota",
    "VcValues",
    "VirtualCluster",
]
