"""The few numbers that stand in the frame of every page."""

from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Q

from scheduling.clusters.models import Node
from scheduling.core.lifecycle import LIVE
from scheduling.enums import NodeState
from scheduling.jobs.models import Job
from tenants.viewers import Viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """What is going on, in three numbers.

    Attributes:
        live_jobs: visible to the viewer and not ended.
        nodes: all there are.
        nodes_in_trouble: suspect or down, so that somebody has to look.
    """

    live_jobs: int
    nodes: int
    nodes_in_trouble: int


def at_a_glance(viewer: Viewer) -> Glance:
    """The numbers, in two queries."""
    troubled = Q(state__in=(NodeState.SUSPECT, NodeState.DOWN))
    nodes: dict[str, Any] = Node.objects.filter(removed_at=None).aggregate(
        all=Count("id"), troubled=Count("id", filter=troubled)
    )
    return Glance(
        live_jobs=Job.objects.visible_to(viewer).filter(state__in=LIVE).count(),
        nodes=nodes["all"],
        nodes_in_trouble=nodes["troubled"],
    )
